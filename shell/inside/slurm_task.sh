#!/usr/bin/env bash
# One node's part of a Slurm job: the launcher of the job, in the container that RUNTIME selects. Only Slurm starts it.
#
# Usage:  shell/inside/slurm_task.sh PLATFORM FRAMEWORK MODEL --run N KEY=VALUE ...
# Reads:  the settings among the arguments, the environment; the engine, if RUNTIME selects one on this node
# Writes: as shell/inside/job.sh
# Exits:  with the exit code of the job; 2 for bad input, or if the RUNTIME does not work on this node
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/run.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../lib/run.sh"
  show_help_if_asked "$@"
  if (($# < 3)); then
    echo "error: slurm_task: got $# arguments, wanted at least PLATFORM FRAMEWORK MODEL; see --help" >&2
    exit 2
  fi
  local job=("$1" "$2" "$3") platform=$1
  shift 3
  take_run_arguments "PLATFORM=$platform" "$@"
  choose_runtime run
  if [[ $RUNTIME == native ]]; then exec "$ROOT/shell/inside/job.sh" "${job[@]}" "${ARGUMENTS[@]}"; fi
  mount_for_jobs
  run_in_container jobs job shell/inside/job.sh "${job[@]}" "${INNER[@]}"
}

main "$@"
