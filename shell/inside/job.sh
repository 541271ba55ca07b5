#!/usr/bin/env bash
# Start train.launch; the scripts train/train_*.sh name the job. Help: train/launch.py
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
