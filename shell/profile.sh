#!/usr/bin/env bash
# Profile some steps of one job: with torch.profiler, with NVIDIA's nsys, or with AMD's rocprofv3.
#
# torch writes a trace of each rank for ./shell/trace.sh. nsys wraps the launcher and writes a report of the profiled
# steps. rocprofv3 is attached to the Python process of each profiled rank. The job is trained anew each time; its results
# have the label `profiled` and are never compared with others. It needs prepared data, as every single job. More:
# docs/profiles.md
#
# Usage:   ./shell/profile.sh nsys|rocprofv3|torch JOB [KEY=VALUE ...]
#          JOB is a script train/train_*.sh, or its name without train_ and .sh, such as nvd_mega_llama
# Reads:   config.env and its overlays, the environment: PROFILE_STEP_START, PROFILE_STEP_END, PROFILE_RANKS,
#          PROFILE_MEMORY (torch); the prepared data
# Writes:  OUTPUT_DIR/profiles/<job>/, OUTPUT_DIR/profiled/train_*.json, OUTPUT_DIR/logs/
# Exits:   0 ok, 2 bad input or the tool is missing, otherwise the job's exit code
# Example: ./shell/profile.sh torch cpu_mega_llama PROFILE_STEP_START=11 PROFILE_STEP_END=13
if [ -z "${BASH_VERSION:-}" ]; then echo "error: profile: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

refuse() { # <message>
  printf 'error: profile: %s\n' "$1" >&2
  exit 2
}

# The profiled steps alone: the ranks open and close the capture range.
NSYS=(profile "--trace=cuda,nvtx,osrt" --sample=none --cpuctxsw=none --capture-range=cudaProfilerApi --capture-range-end=stop
  --kill=none)

run_nsys() { # <job script> <settings...>
  local output folder
  # shellcheck source=shell/lib/setting.sh
  source "$ROOT/shell/lib/setting.sh"
  output=$(setting OUTPUT_DIR "${@:2}")
  folder=$(cd -- "$ROOT" && realpath -m -- "$output")/profiles/$(basename -- "$1" .sh)_run1
  mkdir -p -- "$folder" || refuse "OUTPUT_DIR=$output: $folder cannot be made; name another OUTPUT_DIR"
  exec nsys "${NSYS[@]}" --output="$folder/nsys_$(date -u +%Y%m%dT%H%M%SZ)" "$@"
}

# Sets PLATFORM and `script`.
take_job() { # <name or script>
  local name=${1##*/}
  name=${name#train_}
  name=${name%.sh}
  script=$ROOT/train/train_$name.sh
  if [[ $name != *_* || ! -x $script ]]; then
    refuse "got job '$1', wanted one of train/train_*.sh, such as cpu_mega_llama"
  fi
  export PLATFORM=${name%%_*}
}

require_tool() { # <tool> <platform of the tool>
  if [[ $PLATFORM != "$2" ]]; then refuse "$1 is a tool of platform $2, and the job is of $PLATFORM; use torch"; fi
  if ! type -P "$1" >/dev/null; then refuse "$1 is not on PATH; install it, or use torch, which needs no other tool"; fi
}

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
  show_help_if_asked "$@"
  if (($# < 2)); then refuse "got $# arguments, wanted a tool (nsys, rocprofv3, torch) and a job; see --help"; fi
  local tool=$1 script
  take_job "$2"
  shift 2
  check_arguments "$@"
  case $tool in
    torch) exec "$script" FORCE=1 "$@" PROFILING=true ;;
    nsys)
      require_tool nsys nvd
      run_nsys "$script" FORCE=1 "$@" PROFILING=nsys
      ;;
    rocprofv3)
      require_tool rocprofv3 amd
      exec "$script" FORCE=1 "$@" PROFILING=rocprofv3
      ;;
    *) refuse "got tool '$tool', wanted nsys, rocprofv3 or torch" ;;
  esac
}

main "$@"
