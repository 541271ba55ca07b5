#!/usr/bin/env bash
# Settings of this machine with which the build of an image reaches packages: pip's, certificates, proxies. Sourced.
#
# They are passed as secrets, which are files that exist only during the build: an address that contains a password is
# then in no command line and in no layer. podman mounts the folders of packages that they name; docker build cannot.
#
# Usage:  source shell/lib/build_settings.sh; lend_settings <folder> <docker|podman>
# Reads:  PIP_*, *_proxy, REQUESTS_CA_BUNDLE, SSL_CERT_FILE, pip.conf of the machine and of the user
# Writes: <folder>/settings, which shell/inside/setup_image.sh reads; the variable `options`, arguments for the build
# Exits:  never; warns if a folder cannot be mounted
set -Eeuo pipefail

lend_settings() { # <folder> <engine>; adds to options
  local user=${PIP_CONFIG_FILE:-} global='' cert file folder
  for file in "$HOME/.pip/pip.conf" "${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf"; do
    if [[ -z ${PIP_CONFIG_FILE:-} && -f $file ]]; then user=$file; fi
  done
  for file in /etc/xdg/pip/pip.conf /etc/pip.conf; do
    if [[ -f $file ]]; then global=$file; fi
  done
  if [[ ${PIP_CONFIG_FILE:-} == /dev/null ]]; then user='' global=''; fi # pip reads no file then
  cert=$(_certificates "$user" "$global")
  (umask 077 && _write_settings "$cert" >"$1/settings")
  options+=(--secret "id=settings,src=$1/settings")
  if [[ -f $global ]]; then options+=(--secret "id=pip_global,src=$global"); fi
  if [[ -f $user ]]; then options+=(--secret "id=pip_user,src=$user"); fi
  if [[ -f $cert ]]; then options+=(--secret "id=pip_cert,src=$cert"); fi
  while IFS= read -r folder; do
    if [[ $2 == podman ]]; then
      options+=(--volume "$folder:$folder:ro")
    else
      printf 'warning: build: pip takes packages from %s, which docker cannot mount; use RUNTIME=podman or an index\n' \
        "$folder" >&2
    fi
  done < <(_folders "$user" "$global")
}

_write_settings() { # <certificates>
  local name
  for name in "${!PIP_@}" http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    case $name in
      PIP_CERT | PIP_CONFIG_FILE | PIP_CACHE_DIR) ;;
      *) if [[ -n ${!name:-} ]]; then printf 'export %s=%q\n' "$name" "${!name}"; fi ;;
    esac
  done
  printf 'export XDG_CONFIG_DIRS=/run/tprimat/global XDG_CONFIG_HOME=/run/tprimat/user\n'
  if [[ -f $1 ]]; then printf 'export PIP_CERT=/run/tprimat/cert.pem\n'; fi
}

# Print the first that pip itself would use.
_certificates() { # <pip.conf...>
  local found=${PIP_CERT:-} file name value
  for file in "$@"; do
    while IFS='= ' read -r name value; do
      if [[ -z $found && $name == cert ]]; then found=$value; fi
    done < <(if [[ -f $file ]]; then cat -- "$file"; fi)
  done
  printf '%s\n' "${found:-${REQUESTS_CA_BUNDLE:-${SSL_CERT_FILE:-}}}"
}

# Print the folders of packages. An index of files keeps its packages beside its pages, so its parent folder is needed.
_folders() { # <pip.conf...>
  local word file
  for file in "$@"; do if [[ -f $file ]]; then cat -- "$file"; fi; done |
    cat - <(printf '%s\n' "${PIP_FIND_LINKS:-}" "${PIP_INDEX_URL:-}" "${PIP_EXTRA_INDEX_URL:-}") |
    tr -s '[:space:]=' '\n' |
    while IFS= read -r word; do
      case $word in
        file:///*) word=$(dirname -- "${word#file://}") ;;
        /*) ;;
        *) continue ;;
      esac
      if [[ -d $word && $word != / ]]; then printf '%s\n' "$word"; fi
    done | sort -u
}
