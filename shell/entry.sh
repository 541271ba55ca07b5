#!/usr/bin/env bash
# Open a shell in the container that jobs run in, or run one command there, e.g. a single job.
#
# Usage:   ./shell/entry.sh [--dry-run] [KEY=VALUE ...] [-- COMMAND ...]
#          KEY=VALUE applies to everything that is run inside; --dry-run prints the command of the container
# Reads:   as shell/run_train.sh; standard input
# Writes:  what is run inside can write to OUTPUT_DIR, DATA_DIR and the hub's cache, and nowhere else on this machine
# Exits:   with the exit code of the shell or the command; 2 for bad input, or if the RUNTIME that is named does not work
# Example: ./shell/entry.sh -- bash train/train_amd_prim_llama.sh RUNS=1
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

settings=()
while (($#)) && [[ $1 != -- ]]; do
  settings+=("$1")
  shift
done
shift || true # nothing is left if there was no --
if ((! $#)); then set -- bash; fi
take_run_arguments "${settings[@]}"
for argument in "${ARGUMENTS[@]}"; do
  if [[ $argument != [A-Z]*=* ]]; then refuse "entry: got '$argument', wanted KEY=VALUE, or -- before a command"; fi
  if ! is_setting "${argument%%=*}" && ! is_passed "${argument%%=*}"; then
    refuse "entry: $argument: neither a setting nor a variable that affects speed; name it in TPRIMAT_ENV_NAMES too"
  fi
  export "${argument?}"
done
load_secrets
choose_runtime run
if [[ $RUNTIME == native ]]; then run_here "$@"; fi
mount_for_jobs
open_in_container entry "$@"
