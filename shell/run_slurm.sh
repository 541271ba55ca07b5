#!/usr/bin/env bash
# Train every job of the matrix on a Slurm cluster: submit one Slurm job each, follow them, collect the results.
#
# Run it on a login node. OUTPUT_DIR, DATA_DIR and this checkout must be the same folders on the nodes. The data are
# prepared here first, because nodes often have no internet access. Jobs with an ok result are skipped and jobs in the
# queue are followed, so the same command continues where it stopped. Ctrl-C cancels what has not ended.
# More: docs/clusters.md
#
# Usage:   ./shell/run_slurm.sh [--dry-run] [--no-wait] [--requeue] [KEY=VALUE ...]
#          --dry-run prints the script of each job and submits nothing; --no-wait submits and exits, and the same command
#          follows the jobs later; --requeue lets Slurm start a job again after its node has failed
# Reads:   config.env and its overlays, the environment, secrets.env; SLURM_*, RUNTIME
# Writes:  DATA_DIR, OUTPUT_DIR/[label/]train_*.json, OUTPUT_DIR/logs/, OUTPUT_DIR/status.{json,html}
# Exits:   0 every job has a valid ok result, 2 bad input, 128 + signal interrupted, 1 otherwise
# Example: ./shell/run_slurm.sh PLATFORM=nvd NNODES=4 GPUS_PER_NODE=8 SLURM_PARTITION=gpu SLURM_ACCOUNT=mine
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/passed.sh"

main() {
  local argument settings=()
  take_arguments "$@"
  for argument in "${ARGUMENTS[@]}"; do
    if [[ $argument != -* ]]; then settings+=("$argument"); fi
  done
  if [[ $(setting RUNTIME "${settings[@]}") == native ]]; then
    use_environment
  else # preparing data, submitting and following need only the smallest set of packages
    PLATFORM=cpu use_environment
  fi
  cd "$ROOT"
  if [[ $is_dry_run == false ]]; then
    ( # only this step gets the hub's token
      load_secrets
      "$PYTHON" -m data.prepare --platform "$PLATFORM" --workers "$(nproc)" "${settings[@]}" LAUNCHER=slurm >/dev/null
    )
  fi
  start_module train.slurm "${DRY_RUN[@]}"
}

main "$@"
