#!/usr/bin/env bash
# Find the container engine that jobs run in, and say why that one. Sourced by the run_*.sh, entry.sh and build.sh.
#
# Usage:  source shell/lib/environment.sh; source shell/lib/runtime.sh; pick_runtime <wanted> <platform> [run|tools|build]
#         wanted: auto, docker, podman, apptainer or native. run wants an engine that starts our image, tools too, but
#         goes without one on every platform; build wants the engine alone
# Reads:  PATH, the engines, TPRIMAT_IN_CONTAINER, TPRIMAT_SIF_DIR (folder of tprimat_<platform>.sif, default: checkout)
# Writes: RUNTIME, ENGINE_INFO (not exported); one line on stderr
# Exits:  0; its functions return 2 with one error line where what is wanted cannot be had
set -Eeuo pipefail

# How long an engine may take to say that it works, and to start a container that ends at once. The first start of an
# image of 40 GB may have to unpack it.
ENGINE_TIMEOUT=${ENGINE_TIMEOUT:-60}
START_TIMEOUT=${START_TIMEOUT:-600}

ENGINE_INFO=''

# Name and tag of our image as the engine knows it; for apptainer the file.
image_of() { # <engine> <platform>
  case $1 in
    docker) printf 'tprimat:%s\n' "$2" ;;
    podman) printf 'localhost/tprimat:%s\n' "$2" ;;
    apptainer) printf '%s/tprimat_%s.sif\n' "${TPRIMAT_SIF_DIR:-$ROOT}" "$2" ;;
  esac
}

# The last line says it in every engine, but for the hint at help after it; the lines before are warnings and versions.
_last_line() { # <text>
  local line last='it says nothing'
  while IFS= read -r line; do
    if [[ $line == *[![:space:]]* && $line != "Run '"* && $line != "See '"* ]]; then last=$line; fi
  done <<<"$1"
  printf '%s\n' "${last#"${last%%[![:space:]]*}"}"
}

# Sets `why` to what stands in the way, and ENGINE_INFO to what docker says of itself, for shell/lib/container.sh.
# shellcheck disable=SC2034
engine_works() { # <engine>
  local said code=0
  if ! type -P "$1" >/dev/null; then
    why="not on PATH"
    return 1
  fi
  case $1 in
    docker)
      # Debian's and Fedora's podman-docker put podman there under docker's name; its options are podman's.
      said=$(timeout "$ENGINE_TIMEOUT" docker --version 2>/dev/null </dev/null) || said=''
      if [[ $said == *odman* ]]; then
        why="is podman under another name"
        return 1
      fi
      said=$(timeout "$ENGINE_TIMEOUT" docker info 2>&1 </dev/null) || code=$?
      ENGINE_INFO=$said
      ;;
    podman) said=$(timeout "$ENGINE_TIMEOUT" podman info 2>&1 </dev/null) || code=$? ;;
    apptainer) said=$(timeout "$ENGINE_TIMEOUT" apptainer version 2>&1 </dev/null) || code=$? ;;
  esac
  case $code in
    0) return ;;
    124) why="does not answer within $ENGINE_TIMEOUT s" ;;
    *) why=$(_last_line "$said") ;;
  esac
  return 1
}

# Sets `why` where it has not.
has_image() { # <engine> <platform>
  local image
  image=$(image_of "$1" "$2")
  why="no image $image, which ./shell/build.sh makes"
  case $1 in
    docker) docker image inspect "$image" &>/dev/null ;;
    podman) podman image exists "$image" &>/dev/null ;;
    apptainer) [[ -f $image ]] ;;
  esac
}

# An engine that answers may still be forbidden to start anything: by the kernel, by limits, by a full disk.
# Sets `why` where it does not.
starts_container() { # <engine> <platform>
  local image said code=0 command
  image=$(image_of "$1" "$2")
  case $1 in
    docker | podman) command=("$1" run --rm --network none --entrypoint /bin/true "$image") ;;
    apptainer) command=(apptainer exec --cleanenv "$image" /bin/true) ;;
  esac
  said=$(timeout "$START_TIMEOUT" "${command[@]}" 2>&1 </dev/null) || code=$?
  if ((code == 0)); then return; fi
  why="starts no container: $(_last_line "$said")"
  if ((code == 124)); then why="starts no container within $START_TIMEOUT s"; fi
  return 1
}

# Sets `why` where it is not, and `has_engine` where only the image is missing.
is_fit() { # <engine> <platform> <run|tools|build>
  engine_works "$1" || return
  has_engine=true
  if [[ $3 == build ]]; then return; fi
  has_image "$1" "$2" && starts_container "$1" "$2"
}

_pick_automatically() { # <platform> <run|tools|build>
  local engine why has_engine=false refused='' candidates=(docker podman)
  # apptainer makes its image from one that docker or podman have built
  if [[ $2 != build ]]; then candidates+=(apptainer); fi
  for engine in "${candidates[@]}"; do
    if is_fit "$engine" "$1" "$2"; then
      RUNTIME=$engine
      printf 'runtime: %s, the first that works%s\n' "$engine" "${refused:+ ($refused)}" >&2
      return
    fi
    refused+="${refused:+; }$engine: $why"
  done
  RUNTIME=native
  if [[ $2 == build ]]; then
    printf 'error: RUNTIME=auto: no engine that builds images (%s); install docker or podman, or use RUNTIME=native\n' \
      "$refused" >&2
    return 2
  fi
  if [[ $1 == cpu || $2 == tools ]]; then
    printf 'runtime: native (%s)\n' "$refused" >&2
  elif [[ $has_engine == true ]]; then
    printf 'error: RUNTIME=auto: no container can be had (%s); run ./shell/build.sh, or use RUNTIME=native\n' \
      "$refused" >&2
    return 2
  else
    printf 'warning: runtime: native, on the software of this machine and not of the image (%s)\n' "$refused" >&2
  fi
}

# Sets RUNTIME, which those who source this file read.
# shellcheck disable=SC2034
pick_runtime() { # <wanted> <platform> [run|tools|build]
  local wanted=$1 why has_engine
  if [[ -n ${TPRIMAT_IN_CONTAINER:-} ]]; then
    RUNTIME=native
    return
  fi
  case $wanted in
    native) RUNTIME=native ;;
    auto) _pick_automatically "$2" "${3:-run}" ;;
    docker | podman | apptainer)
      RUNTIME=$wanted
      if is_fit "$wanted" "$2" "${3:-run}"; then return; fi
      printf 'error: RUNTIME=%s: %s: %s; use RUNTIME=native, or auto for the first that works\n' \
        "$wanted" "$wanted" "$why" >&2
      return 2
      ;;
    *)
      printf 'error: RUNTIME=%s: wanted auto, docker, podman, apptainer or native\n' "$wanted" >&2
      return 2
      ;;
  esac
}

# The id of the image for the results: what ran, whatever its tag comes to mean.
image_digest() { # <engine> <platform>
  local image digest
  image=$(image_of "$1" "$2")
  case $1 in
    docker | podman)
      digest=$("$1" image inspect --format '{{.Id}}' "$image") || return
      printf 'sha256:%s\n' "${digest#sha256:}"
      ;;
    apptainer) _digest_of_file "$image" ;;
  esac
}

# build.sh leaves the digest beside the file; without it, or with an older one, 20 GB have to be read.
_digest_of_file() { # <sif>
  local digest
  [[ -f $1 ]] || return 1
  if [[ -f $1.sha256 && ! $1 -nt $1.sha256 ]]; then
    read -r digest _ <"$1.sha256"
  else
    read -r digest _ < <(sha256sum -- "$1")
  fi
  printf 'sha256:%s\n' "$digest"
}

# Started and not sourced, there is nothing else that it could do.
if [[ ${BASH_SOURCE[0]} == "$0" ]]; then sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; fi
