#!/usr/bin/env bash
# Build the image of this machine's platform: tprimat:amd, tprimat:nvd or tprimat:cpu. stdout is one line: name and id.
#
# For Apptainer (RUNTIME=apptainer), the same image is built with docker or podman and converted to a file.
# The build gets pip's settings of this machine (PIP_*, pip.conf, certificates) and the proxies as secrets, which are not
# stored in the image. podman also mounts the folders of packages that these settings name.
#
# Usage:   [BUILD_ARGS='--no-cache ...'] ./shell/build.sh [--dry-run] [PLATFORM=amd|nvd|cpu] [RUNTIME=auto|docker|podman|
#          apptainer] [BASE_IMAGE=...] [KEY=VALUE ...]
#          --dry-run prints the commands and starts none; BUILD_ARGS are words for docker build or podman build
# Reads:   <platform>.Dockerfile, the files that .dockerignore admits, TPRIMAT_SIF_DIR; pip's settings, proxies
# Writes:  the image; for apptainer tprimat_<platform>.sif and .sif.sha256 in TPRIMAT_SIF_DIR (default: the checkout)
# Exits:   0 built, 1 failed, 2 bad argument or no engine that works, 128 + signal interrupted
# Example: ./shell/build.sh PLATFORM=nvd RUNTIME=podman
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/runtime.sh"

child='' leftovers=()

main() {
  local base lent
  take_arguments "$@"
  export_settings build '--dry-run or KEY=VALUE' "${ARGUMENTS[@]}"
  cd -- "$ROOT"
  pick_engine
  if [[ $RUNTIME == apptainer ]]; then refuse_file_of_user "$PLATFORM"; fi
  lent=$(mktemp -d) # readable by this user only
  leftovers+=("$lent")
  trap 'rm -rf -- "${leftovers[@]}"' EXIT
  trap 'stop TERM 143' TERM
  trap 'stop INT 130' INT
  base=${BASE_IMAGE:-$(sed -n 's/^ARG BASE_IMAGE=//p' "$PLATFORM.Dockerfile")}
  build "$PLATFORM"
  if [[ $RUNTIME == apptainer ]]; then convert "$PLATFORM"; fi
  if [[ $is_dry_run == false ]]; then
    printf '%s %s\n' "$(image_of "$RUNTIME" "$PLATFORM")" "$(image_digest "$RUNTIME" "$PLATFORM")"
  fi
}

# A dry run prints its commands on any machine, with a note if they cannot be started here.
pick_engine() { # sets RUNTIME (what the image is for) and engine (what builds it)
  local wanted
  wanted=$(setting RUNTIME)
  if [[ $wanted == native ]]; then
    refuse "build: RUNTIME=native uses no image; use auto, docker, podman or apptainer"
  elif [[ $wanted == apptainer && $is_dry_run == false ]] && ! type -P apptainer >/dev/null; then
    refuse "build: RUNTIME=apptainer: apptainer is not on PATH"
  fi
  pick_runtime "${wanted/apptainer/auto}" "$PLATFORM" build
  engine=$RUNTIME
  if [[ $wanted == apptainer ]]; then RUNTIME=apptainer; fi
}

# The command runs in the background, because bash handles a signal only between commands. It has its own process group,
# so that the signal also reaches what podman started for a step of the build.
run() { # <command...>
  local line
  if [[ $is_dry_run == true ]]; then
    printf -v line ' %q' "$@"
    printf '%s\n' "${line# }"
    return
  fi
  set -m
  "$@" </dev/null >&2 &
  child=$!
  set +m
  wait "$child" || die build "'$1 $2' failed with exit code $?, its reason is above"
  child=''
}

stop() { # <signal> <exit code>
  if [[ -n $child ]]; then
    kill -s "$1" -- "-$child" 2>/dev/null || true # it may have ended already
    wait "$child" || true                         # its exit code is that of the signal
  fi
  exit "$2"
}

build() { # <platform>
  local digest commit extra=() options=() started=$SECONDS
  if ! "$engine" image inspect "$base" &>/dev/null; then run "$engine" pull "$base"; fi
  # a tag can move; the digest identifies the base, and an image that was never in a registry has only its id
  if digest=$("$engine" image inspect --format '{{range .RepoDigests}}{{.}} {{end}}{{.Id}}' "$base" 2>/dev/null); then
    digest=${digest%% *}
    digest=sha256:${digest##*sha256:}
  fi
  commit=$(git rev-parse HEAD 2>/dev/null) || commit=unknown
  if [[ -n $(git status --porcelain 2>/dev/null) ]]; then commit+=-dirty; fi
  read -ra extra <<<"${BUILD_ARGS:-}"
  lend_settings "$lent" "$engine" # sets options
  say "$engine: building tprimat:$1 on $base"
  export DOCKER_BUILDKIT=1 # without buildx, docker then says so instead of rejecting the secrets
  run "$engine" build --tag "$(image_of "$engine" "$1")" --file "$1.Dockerfile" --build-arg "BASE_IMAGE=$base" \
    --build-arg "BASE_DIGEST=${digest:-unknown}" --build-arg "REVISION=$commit" "${options[@]}" "${extra[@]}" .
  if [[ $is_dry_run == false ]]; then say "built in $((SECONDS - started)) s"; fi
}

# A file of ours has its digest beside it, with its name.
refuse_file_of_user() { # <platform>
  local sif path digest=''
  sif=$(image_of apptainer "$1")
  if [[ -f $sif.sha256 ]]; then digest=$(<"$sif.sha256"); fi
  if [[ $digest == *"  "*"tprimat_$1.sif" ]]; then return; fi
  for path in "$sif" "$sif.sha256"; do
    if [[ -e $path || -L $path ]]; then
      refuse "build: $path: exists, and this suite has not written it; set TPRIMAT_SIF_DIR to another folder, or remove it"
    fi
  done
}

# The file gets its name last: an interrupt must not leave a partial file that looks like an image.
convert() { # <platform>
  local sif archive format=()
  sif=$(image_of apptainer "$1")
  archive=$(dirname -- "$sif")/.tprimat_$1.tar
  leftovers+=("$archive" "$sif.new")
  rm -f -- "$archive" # podman refuses to overwrite it
  if [[ $engine == podman ]]; then format=(--format docker-archive); fi
  run "$engine" save "${format[@]}" --output "$archive" "$(image_of "$engine" "$1")"
  run apptainer build --force "$sif.new" "docker-archive:$archive"
  run mv -f -- "$sif.new" "$sif"
  if [[ $is_dry_run == false ]]; then sha256sum -- "$sif" >"$sif.sha256"; fi
}

# Settings of this machine with which the build reaches packages: pip's, certificates, proxies. They are passed as secrets,
# which are files that exist only during the build: an address that contains a password is then in no command line and in no
# layer. podman mounts the folders of packages that they name; docker build cannot.
lend_settings() { # <folder> <engine>; adds to options, writes <folder>/settings for shell/inside/setup_image.sh
  local user='' global='' cert file folder
  for file in "$HOME/.pip/pip.conf" "${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf" "${PIP_CONFIG_FILE:-}"; do
    if [[ -f $file ]]; then user=$file; fi
  done
  for file in /etc/xdg/pip/pip.conf /etc/pip.conf; do
    if [[ -f $file ]]; then global=$file; fi
  done
  if [[ ${PIP_CONFIG_FILE:-} == /dev/null ]]; then user='' global=''; fi # pip reads no file then
  # the first that pip itself would use
  cert=${PIP_CERT:-$(sed -n '/^ *cert *=/{s/^[^=]*= *//p;q}' "$user" "$global" 2>/dev/null || true)}
  cert=${cert:-${REQUESTS_CA_BUNDLE:-${SSL_CERT_FILE:-}}}
  (umask 077 && _write_settings "$cert" >"$1/settings")
  options+=(--secret "id=settings,src=$1/settings")
  if [[ -f $global ]]; then options+=(--secret "id=pip_global,src=$global"); fi
  if [[ -f $user ]]; then options+=(--secret "id=pip_user,src=$user"); fi
  if [[ -f $cert ]]; then options+=(--secret "id=pip_cert,src=$cert"); fi
  while IFS= read -r folder; do
    if [[ $2 == podman ]]; then
      options+=(--volume "$folder:$folder:ro")
    else
      say "warning: build: pip takes packages from $folder, which docker cannot mount; use RUNTIME=podman or an index"
    fi
  done < <(_folders "$user" "$global")
}

_write_settings() { # <certificates>
  local name
  for name in "${!PIP_@}" http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
    if [[ -n ${!name:-} && $name != PIP_@(CERT|CONFIG_FILE|CACHE_DIR) ]]; then
      printf 'export %s=%q\n' "$name" "${!name}"
    fi
  done
  printf 'export XDG_CONFIG_DIRS=/run/tprimat/global XDG_CONFIG_HOME=/run/tprimat/user\n'
  if [[ -f $1 ]]; then printf 'export PIP_CERT=/run/tprimat/cert.pem\n'; fi
}

# Print the folders of packages. An index of files keeps its packages beside its pages, so its parent folder is needed.
_folders() { # <pip.conf...>
  local word
  { cat -- "$@" <(printf '%s\n' "${PIP_FIND_LINKS:-}" "${PIP_INDEX_URL:-}" "${PIP_EXTRA_INDEX_URL:-}") 2>/dev/null || true; } |
    tr -s '[:space:]=' '\n' |
    while IFS= read -r word; do
      if [[ $word == file:///* ]]; then word=$(dirname -- "${word#file://}"); fi
      if [[ $word == /?* && -d $word ]]; then printf '%s\n' "$word"; fi
    done | sort -u
}

main "$@"
