#!/usr/bin/env bash
# The choice of the container engine, with the reason for it. Sourced.
#
# Usage:  . shell/lib/environment.sh; . shell/lib/runtime.sh; pick_runtime <wanted> <platform> <run|tools|build>
#         wanted: auto, docker, podman, apptainer or native. run and tools require an engine that starts our image;
#         with auto, tools run natively without one, on every platform. build requires only the engine
# Reads:  PATH, the engines, TPRIMAT_IN_CONTAINER, TPRIMAT_SIF_DIR (folder of tprimat_<platform>.sif, default: checkout)
# Writes: RUNTIME, ENGINE_INFO, can_start (not exported); one line on stderr
# Exits:  2 with one error line if the wanted engine does not work. With a dry run it takes the engine that is named all the
#         same, so that its command is printed on any machine, and sets can_start to false; with auto the plan is made
#         natively, on any machine

# Seconds that an engine may take to answer, and to start a container that ends at once. The first start of an image of
# 40 GB may have to unpack it.
ENGINE_TIMEOUT=${ENGINE_TIMEOUT:-60}
START_TIMEOUT=${START_TIMEOUT:-600}
ENGINE_INFO='' can_start=true

# Name and tag of our image in the engine; for apptainer its file.
image_of() { # <engine> <platform>
  case $1 in
    docker) printf 'tprimat:%s\n' "$2" ;;
    podman) printf 'localhost/tprimat:%s\n' "$2" ;;
    apptainer) printf '%s/tprimat_%s.sif\n' "${TPRIMAT_SIF_DIR:-$ROOT}" "$2" ;;
  esac
}

# Run a command of an engine, which may hang. Sets `printed`, and `why` to the problem: the last line without hints at
# --help, because the lines before it are warnings and versions.
_answers() { # <seconds> <what it does not do> <command...>
  local code=0
  printed=$(timeout "$1" "${@:3}" 2>&1 </dev/null) || code=$?
  case $code in
    0) return ;;
    124) why="$2 within $1 s" ;;
    *)
      why=$(grep -av -e "^Run '" -e "^See '" -e '^[[:space:]]*$' <<<"$printed" | tail -n 1) || why='no message'
      why=${why#"${why%%[![:space:]]*}"}
      ;;
  esac
  return 1
}

# Sets `why` to the problem, and ENGINE_INFO to the output of `docker info` for shell/lib/container.sh.
# shellcheck disable=SC2034
engine_works() { # <engine>
  local printed question=info
  why="not on PATH"
  type -P "$1" >/dev/null || return
  if [[ $1 == apptainer ]]; then question=version; fi
  if [[ $1 == docker ]] && _answers "$ENGINE_TIMEOUT" '' docker --version && [[ $printed == *odman* ]]; then
    # the package podman-docker of Debian and Fedora installs podman under docker's name, with podman's options
    why="is podman under another name"
    return 1
  fi
  _answers "$ENGINE_TIMEOUT" "does not answer" "$1" "$question" || return
  ENGINE_INFO=$printed
}

# Sets `why` to the problem.
has_image() { # <engine> <platform>
  local image
  image=$(image_of "$1" "$2")
  why="no image $image, which ./shell/build.sh makes"
  if [[ $1 == apptainer ]]; then [[ -f $image ]]; else "$1" image inspect "$image" &>/dev/null; fi
}

# An engine that answers may still be unable to start a container: the kernel, a limit or a full disk prevents it.
# Sets `why` to the problem.
starts_container() { # <engine> <platform>
  local printed command=("$1" run --rm --network none --entrypoint /bin/true "$(image_of "$1" "$2")")
  if [[ $1 == apptainer ]]; then command=(apptainer exec --cleanenv "$(image_of "$1" "$2")" /bin/true); fi
  if _answers "$START_TIMEOUT" "starts no container" "${command[@]}"; then return; fi
  if [[ $why != "starts no container"* ]]; then why="starts no container: $why"; fi
  return 1
}

# Sets `why` to the problem, and `has_engine` to true if the engine works.
is_fit() { # <engine> <platform> <run|tools|build>
  engine_works "$1" || return
  has_engine=true
  [[ $3 == build ]] || { has_image "$1" "$2" && starts_container "$1" "$2"; }
}

_pick_automatically() { # <platform> <run|tools|build>
  local engine refused='' candidates=(docker podman)
  # apptainer converts an image that docker or podman built
  if [[ $2 != build ]]; then candidates+=(apptainer); fi
  for engine in "${candidates[@]}"; do
    if is_fit "$engine" "$1" "$2"; then
      RUNTIME=$engine
      say "runtime: $engine, the first that works${refused:+ ($refused)}"
      return
    fi
    refused+="${refused:+; }$engine: $why"
  done
  RUNTIME=native
  if [[ $2 == build ]]; then
    refuse "RUNTIME=auto: no engine that builds images ($refused); install docker or podman, or use RUNTIME=native"
  elif [[ $1 == cpu || $2 == tools ]]; then
    say "runtime: native ($refused)"
  elif [[ $has_engine == true && ${is_dry_run:-false} == false ]]; then
    refuse "RUNTIME=auto: no container can be started ($refused); run ./shell/build.sh, or use RUNTIME=native"
  else
    say "warning: runtime: native, with the software of this machine instead of the image ($refused)"
  fi
}

# shellcheck disable=SC2034 # for the scripts that source this
pick_runtime() { # <wanted> <platform> <run|tools|build>
  local why='' has_engine=false
  RUNTIME=$1
  if [[ -n ${TPRIMAT_IN_CONTAINER:-} ]]; then RUNTIME=native; fi
  case $RUNTIME in
    native) ;;
    auto) _pick_automatically "$2" "$3" ;;
    docker | podman | apptainer)
      if is_fit "$1" "$2" "$3"; then return; fi
      if [[ ${is_dry_run:-false} == false ]]; then
        refuse "RUNTIME=$1: $1: $why; use RUNTIME=native, or auto for the first that works"
      fi
      say "note: cannot be started here: RUNTIME=$1: $why"
      can_start=false
      ;;
    *) refuse "RUNTIME=$1: wanted auto, docker, podman, apptainer or native" ;;
  esac
}

# The id of the image, recorded in the results: it identifies the image even after its tag has moved. build.sh writes the
# digest of a file beside it. If it is missing or older than the file, 20 GB have to be read.
image_digest() { # <engine> <platform>
  local image digest
  image=$(image_of "$1" "$2")
  if [[ $1 != apptainer ]]; then
    digest=$("$1" image inspect --format '{{.Id}}' "$image") || return
  elif [[ -f $image.sha256 && ! $image -nt $image.sha256 ]]; then
    digest=$(<"$image.sha256")
  else
    digest=$(sha256sum -- "$image") || return
  fi
  digest=${digest%% *}
  printf 'sha256:%s\n' "${digest#sha256:}"
}
