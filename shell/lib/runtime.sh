#!/usr/bin/env bash
# The choice of the container engine, with the reason for it. Sourced.
#
# Usage:  source shell/lib/environment.sh; source shell/lib/runtime.sh; pick_runtime <wanted> <platform> [run|tools|build]
#         wanted: auto, docker, podman, apptainer or native. run and tools require an engine that starts our image;
#         with auto, tools run natively without one, on every platform. build requires only the engine
# Reads:  PATH, the engines, TPRIMAT_IN_CONTAINER, TPRIMAT_SIF_DIR (folder of tprimat_<platform>.sif, default: checkout)
# Writes: RUNTIME, ENGINE_INFO (not exported); one line on stderr
# Exits:  never; pick_runtime returns 2 with one error line if the wanted engine does not work
set -Eeuo pipefail

# Seconds that an engine may take to answer, and to start a container that ends at once. The first start of an image of
# 40 GB may have to unpack it.
ENGINE_TIMEOUT=${ENGINE_TIMEOUT:-60}
START_TIMEOUT=${START_TIMEOUT:-600}

ENGINE_INFO=''

# Name and tag of our image in the engine; for apptainer its file.
image_of() { # <engine> <platform>
  case $1 in
    docker) printf 'tprimat:%s\n' "$2" ;;
    podman) printf 'localhost/tprimat:%s\n' "$2" ;;
    apptainer) printf '%s/tprimat_%s.sif\n' "${TPRIMAT_SIF_DIR:-$ROOT}" "$2" ;;
  esac
}

# Print the engine's error: the last line, without hints at --help. The lines before it are warnings and versions.
_last_line() { # <text>
  local line last='no message'
  while IFS= read -r line; do
    if [[ $line == *[![:space:]]* && $line != "Run '"* && $line != "See '"* ]]; then last=$line; fi
  done <<<"$1"
  printf '%s\n' "${last#"${last%%[![:space:]]*}"}"
}

# Sets `why` to the problem, and ENGINE_INFO to the output of `docker info` for shell/lib/container.sh.
# shellcheck disable=SC2034
engine_works() { # <engine>
  local printed code=0
  if ! type -P "$1" >/dev/null; then
    why="not on PATH"
    return 1
  fi
  case $1 in
    docker)
      # The package podman-docker of Debian and Fedora installs podman under docker's name, with podman's options.
      printed=$(timeout "$ENGINE_TIMEOUT" docker --version 2>/dev/null </dev/null) || printed=''
      if [[ $printed == *odman* ]]; then
        why="is podman under another name"
        return 1
      fi
      printed=$(timeout "$ENGINE_TIMEOUT" docker info 2>&1 </dev/null) || code=$?
      ENGINE_INFO=$printed
      ;;
    podman) printed=$(timeout "$ENGINE_TIMEOUT" podman info 2>&1 </dev/null) || code=$? ;;
    apptainer) printed=$(timeout "$ENGINE_TIMEOUT" apptainer version 2>&1 </dev/null) || code=$? ;;
  esac
  case $code in
    0) return ;;
    124) why="does not answer within $ENGINE_TIMEOUT s" ;;
    *) why=$(_last_line "$printed") ;;
  esac
  return 1
}

# Sets `why` to the problem.
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

# An engine that answers may still be unable to start a container: the kernel, a limit or a full disk prevents it.
# Sets `why` to the problem.
starts_container() { # <engine> <platform>
  local image printed code=0 command
  image=$(image_of "$1" "$2")
  case $1 in
    docker | podman) command=("$1" run --rm --network none --entrypoint /bin/true "$image") ;;
    apptainer) command=(apptainer exec --cleanenv "$image" /bin/true) ;;
  esac
  printed=$(timeout "$START_TIMEOUT" "${command[@]}" 2>&1 </dev/null) || code=$?
  if ((code == 0)); then return; fi
  why="starts no container: $(_last_line "$printed")"
  if ((code == 124)); then why="starts no container within $START_TIMEOUT s"; fi
  return 1
}

# Sets `why` to the problem, and `has_engine` to true if the engine works.
is_fit() { # <engine> <platform> <run|tools|build>
  engine_works "$1" || return
  has_engine=true
  if [[ $3 == build ]]; then return; fi
  has_image "$1" "$2" && starts_container "$1" "$2"
}

_pick_automatically() { # <platform> <run|tools|build>
  local engine why has_engine=false refused='' candidates=(docker podman)
  # apptainer converts an image that docker or podman built
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
    printf 'error: RUNTIME=auto: no container can be started (%s); run ./shell/build.sh, or use RUNTIME=native\n' \
      "$refused" >&2
    return 2
  else
    printf 'warning: runtime: native, with the software of this machine instead of the image (%s)\n' "$refused" >&2
  fi
}

# Sets RUNTIME for the scripts that source this file.
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

# The id of the image, recorded in the results: it identifies the image even after its tag has moved.
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

# build.sh writes the digest beside the file. If it is missing or older than the file, 20 GB have to be read.
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
