#!/usr/bin/env bash
# Run one job of the matrix in the suite's own environment. The scripts train/train_*.sh start it with their names.
#
# Usage:  train/train_PLATFORM_FRAMEWORK_MODEL.sh [--run N] [KEY=VALUE ...]
#         shell/inside/job.sh [--on-node] PLATFORM FRAMEWORK MODEL [--run N] [KEY=VALUE ...]
#         --on-node: one node's part of a Slurm job, in the container that RUNTIME selects; only Slurm starts it
# Reads:  the settings, the environment, the prepared data; with --on-node the engine
# Writes: OUTPUT_DIR/[label/]train_*.json, OUTPUT_DIR/logs/
# Exits:  0 ok, 2 bad input, or if the RUNTIME does not work on this node; otherwise the trainer's exit code
. "$(dirname -- "$(readlink -f -- "$0")")/../lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

is_node=false
if [[ ${1:-} == --on-node ]]; then is_node=true && shift; fi
if (($# < 3)); then
  refuse "job: got $# arguments, wanted at least PLATFORM FRAMEWORK MODEL; see shell/inside/job.sh --help"
fi
job=("$1" "$2" "$3")
export PLATFORM=$1
shift 3
if [[ $is_node == true ]]; then
  take_run_arguments "$@"
  choose_runtime run
  if [[ $RUNTIME != native ]]; then
    mount_for_jobs
    run_in_container jobs job shell/inside/job.sh "${job[@]}"
    exit
  fi
  set -- "${ARGUMENTS[@]}"
fi
use_environment
cd "$ROOT"
exec "$PYTHON" -m train.launch --platform "$PLATFORM" --framework "${job[1]}" --model "${job[2]}" "$@"
