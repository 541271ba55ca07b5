#!/usr/bin/env bash
# One node's part of a Slurm job: the launcher of the job, in the container that RUNTIME says. Slurm starts it, not people.
#
# Usage:  shell/inside/slurm_task.sh PLATFORM FRAMEWORK MODEL --run N KEY=VALUE ...
# Reads:  the settings among the arguments, the environment; the engine, if RUNTIME names or finds one on this node
# Writes: as shell/inside/job.sh
# Exits:  with the exit code of the job; 2 bad input, or a RUNTIME that does not work on this node
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/../lib/environment.sh"
  show_help_if_asked "$@"
  if (($# < 3)); then
    echo "error: slurm_task: got $# arguments, wanted PLATFORM FRAMEWORK MODEL at least; see --help" >&2
    exit 2
  fi
  local job=("$1" "$2" "$3") platform=$1
  shift 3
  # shellcheck source=shell/lib/run.sh
  source "$ROOT/shell/lib/run.sh"
  take_run_arguments "PLATFORM=$platform" "$@"
  choose_runtime run
  if [[ $RUNTIME == native ]]; then exec "$ROOT/shell/inside/job.sh" "${job[@]}" "${ARGUMENTS[@]}"; fi
  mount_for_jobs
  run_in_container jobs job shell/inside/job.sh "${job[@]}" "${INNER[@]}"
}

main "$@"
