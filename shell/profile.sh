#!/usr/bin/env bash
# Profile some steps of one job: with torch.profiler, with NVIDIA's nsys, or with AMD's rocprofv3.
#
# torch writes a trace of each rank for ./shell/trace.sh. nsys wraps the launcher and writes a report of the profiled
# steps. rocprofv3 is attached to the Python process of each profiled rank. The job is trained anew each time; its results
# have the label `profiled` and are never compared with others. It needs prepared data, as every single job. More:
# docs/why.md
#
# Usage:   ./shell/profile.sh nsys|rocprofv3|torch JOB [KEY=VALUE ...]
#          JOB is a script train/train_*.sh, or its name without train_ and .sh, such as nvd_mega_llama
# Reads:   config.env and its overlays, the environment: PROFILE_STEP_START, PROFILE_STEP_END, PROFILE_RANKS,
#          PROFILE_MEMORY (torch); the prepared data
# Writes:  OUTPUT_DIR/profiles/<job>/, OUTPUT_DIR/profiled/train_*.json, OUTPUT_DIR/logs/
# Exits:   0 ok, 2 bad input or the tool is missing, otherwise the job's exit code
# Example: ./shell/profile.sh torch cpu_mega_llama PROFILE_STEP_START=11 PROFILE_STEP_END=13
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit

if (($# < 2)); then refuse "profile: got $# arguments, wanted a tool (nsys, rocprofv3, torch) and a job; see --help"; fi
tool=$1 name=${2##*/}
name=${name#train_} name=${name%.sh}
script=$ROOT/train/train_$name.sh
if [[ $name != *_* || ! -x $script ]]; then
  refuse "profile: got job '$2', wanted one of train/train_*.sh, such as cpu_mega_llama"
fi
export PLATFORM=${name%%_*}
shift 2
check_arguments "$@"
case $tool in
  torch) exec "$script" FORCE=1 "$@" PROFILING=true ;;
  nsys) vendor=nvd ;;
  rocprofv3) vendor=amd ;;
  *) refuse "profile: got tool '$tool', wanted nsys, rocprofv3 or torch" ;;
esac
if [[ $PLATFORM != "$vendor" ]]; then
  refuse "profile: $tool is a tool of platform $vendor, and the job is of $PLATFORM; use torch"
elif ! type -P "$tool" >/dev/null; then
  refuse "profile: $tool is not on PATH; install it, or use torch, which needs no other tool"
fi
start=()
if [[ $tool == nsys ]]; then
  output=$(setting OUTPUT_DIR "$@")
  folder=$(cd -- "$ROOT" && realpath -m -- "$output")/profiles/train_${name}_run1
  mkdir -p -- "$folder" || refuse "profile: OUTPUT_DIR=$output: $folder cannot be made; name another OUTPUT_DIR"
  # the profiled steps alone: the ranks open and close the capture range
  start=(nsys profile "--trace=cuda,nvtx,osrt" --sample=none --cpuctxsw=none --capture-range=cudaProfilerApi
    --capture-range-end=stop --kill=none --output="$folder/nsys_$(date -u +%Y%m%dT%H%M%SZ)")
fi
exec "${start[@]}" "$script" FORCE=1 "$@" "PROFILING=$tool"
