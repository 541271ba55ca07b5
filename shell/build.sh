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
if [ -z "${BASH_VERSION:-}" ]; then echo "error: build: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

dry_run=false
child=''
leftovers=()

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
  # shellcheck source=shell/lib/runtime.sh
  source "$ROOT/shell/lib/runtime.sh"
  # shellcheck source=shell/lib/setting.sh
  source "$ROOT/shell/lib/setting.sh"
  # shellcheck source=shell/lib/build_settings.sh
  source "$ROOT/shell/lib/build_settings.sh"
  show_help_if_asked "$@"
  local platform engine base lent
  PLATFORM=cpu check_arguments "$@"
  take_arguments "$@"
  cd -- "$ROOT"
  platform=$("$ROOT/shell/platform.sh")
  pick_engine "$platform"
  if [[ $RUNTIME == apptainer ]]; then refuse_file_of_user "$platform"; fi
  lent=$(mktemp -d) # readable by this user only
  leftovers+=("$lent")
  trap 'rm -rf -- "${leftovers[@]}"' EXIT
  trap 'stop TERM 143' TERM
  trap 'stop INT 130' INT
  base=${BASE_IMAGE:-$(sed -n 's/^ARG BASE_IMAGE=//p' "$platform.Dockerfile")}
  build "$platform"
  if [[ $RUNTIME == apptainer ]]; then convert "$platform"; fi
  if [[ $dry_run == false ]]; then
    printf '%s %s\n' "$(image_of "$RUNTIME" "$platform")" "$(image_digest "$RUNTIME" "$platform")"
  fi
}

die() { # <exit code> <message...>
  printf 'error: build: %s\n' "${*:2}" >&2
  exit "$1"
}

take_arguments() { # <arguments of the script...>; sets dry_run, exports settings
  local argument
  for argument in "$@"; do
    case $argument in
      --dry-run) dry_run=true ;;
      [A-Z]*=*) export "${argument?}" ;;
      *) die 2 "got argument '$argument', wanted --dry-run or KEY=VALUE" ;;
    esac
  done
}

# A dry run prints its commands on any machine, with a note if they cannot be started here.
pick_engine() { # <platform>; sets RUNTIME (what the image is for) and engine (what builds it)
  local wanted reason
  wanted=$(setting RUNTIME)
  engine=$wanted
  case $wanted in
    native) die 2 "RUNTIME=native uses no image; use auto, docker, podman or apptainer" ;;
    apptainer) engine=auto ;;
  esac
  if [[ $wanted == apptainer && $dry_run == false ]] && ! type -P apptainer >/dev/null; then
    die 2 "RUNTIME=apptainer: apptainer is not on PATH"
  fi
  if [[ $dry_run == true && $engine == @(docker|podman) ]] && ! reason=$(pick_runtime "$engine" "$1" build 2>&1); then
    printf 'note: cannot be started here: %s\n' "${reason#error: }" >&2
    RUNTIME=$engine
  else
    pick_runtime "$engine" "$1" build || exit
    engine=$RUNTIME
  fi
  if [[ $wanted == apptainer ]]; then RUNTIME=apptainer; fi
}

# The command runs in the background, because bash handles a signal only between commands. It has its own process group,
# so that the signal also reaches what podman started for a step of the build.
run() { # <command...>
  local line
  if [[ $dry_run == true ]]; then
    printf -v line ' %q' "$@"
    printf '%s\n' "${line# }"
    return
  fi
  set -m
  "$@" </dev/null >&2 &
  child=$!
  set +m
  wait "$child" || die 1 "'$1 $2' failed with exit code $?, its reason is above"
  child=''
}

stop() { # <signal> <exit code>
  if [[ -n $child ]]; then
    kill -s "$1" -- "-$child" 2>/dev/null || true # it may have ended already
    wait "$child" || true                         # its exit code is that of the signal
  fi
  exit "$2"
}

# A tag can move; the digest identifies the base. An image that was never in a registry has only its id.
base_digest() {
  local digest
  digest=$("$engine" image inspect --format '{{range .RepoDigests}}{{.}} {{end}}{{.Id}}' "$base" 2>/dev/null) || return 0
  digest=${digest%% *}
  printf 'sha256:%s\n' "${digest##*sha256:}"
}

revision() {
  local commit
  commit=$(git rev-parse HEAD 2>/dev/null) || return 0
  if [[ -n $(git status --porcelain 2>/dev/null) ]]; then commit+=-dirty; fi
  printf '%s\n' "$commit"
}

build() { # <platform>
  local digest commit extra=() options=() started=$SECONDS
  if ! "$engine" image inspect "$base" &>/dev/null; then run "$engine" pull "$base"; fi
  digest=$(base_digest)
  commit=$(revision)
  read -ra extra <<<"${BUILD_ARGS:-}"
  lend_settings "$lent" "$engine" # sets options
  printf '%s: building %s on %s\n' "$engine" "tprimat:$1" "$base" >&2
  export DOCKER_BUILDKIT=1 # without buildx, docker then says so instead of rejecting the secrets
  run "$engine" build --tag "$(image_of "$engine" "$1")" --file "$1.Dockerfile" --build-arg "BASE_IMAGE=$base" \
    --build-arg "BASE_DIGEST=${digest:-unknown}" --build-arg "REVISION=${commit:-unknown}" "${options[@]}" "${extra[@]}" .
  if [[ $dry_run == false ]]; then printf 'built in %s s\n' "$((SECONDS - started))" >&2; fi
}

# A file of ours has its digest beside it, with its name.
refuse_file_of_user() { # <platform>
  local sif path digest=''
  sif=$(image_of apptainer "$1")
  if [[ -f $sif.sha256 ]]; then digest=$(<"$sif.sha256"); fi
  if [[ $digest == *"  "*"tprimat_$1.sif" ]]; then return; fi
  for path in "$sif" "$sif.sha256"; do
    if [[ -e $path || -L $path ]]; then
      die 2 "$path: exists, and this suite has not written it; set TPRIMAT_SIF_DIR to another folder, or remove it"
    fi
  done
}

# The file gets its name last: an interrupt must not leave a partial file that looks like an image.
convert() { # <platform>
  local sif archive
  sif=$(image_of apptainer "$1")
  archive=$(dirname -- "$sif")/.tprimat_$1.tar
  leftovers+=("$archive" "$sif.new")
  rm -f -- "$archive" # podman refuses to overwrite it
  case $engine in
    docker) run docker save --output "$archive" "$(image_of docker "$1")" ;;
    podman) run podman save --format docker-archive --output "$archive" "$(image_of podman "$1")" ;;
  esac
  run apptainer build --force "$sif.new" "docker-archive:$archive"
  run mv -f -- "$sif.new" "$sif"
  if [[ $dry_run == false ]]; then sha256sum -- "$sif" >"$sif.sha256"; fi
}

main "$@"
