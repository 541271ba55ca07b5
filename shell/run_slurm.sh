#!/usr/bin/env bash
# Train every job of the matrix on a Slurm cluster: one job of Slurm each, followed to its end, the results in OUTPUT_DIR.
#
# For a login node. OUTPUT_DIR, DATA_DIR and this checkout must be the same folders on the nodes. The data are prepared
# here first, because nodes often have no way out. Jobs that have an ok result are skipped and those in the queue are
# followed, so the same command goes on wherever it was left. Ctrl-C cancels what has not ended. More: docs/hpc.md.
#
# Usage:  ./shell/run_slurm.sh [--dry-run] [--no-wait] [--requeue] [KEY=VALUE ...]
#         --dry-run prints the script of each job and submits nothing; --no-wait submits and leaves, the same command
#         follows later; --requeue lets Slurm start a job again whose node has failed.
#         e.g. ./shell/run_slurm.sh PLATFORM=nvd NNODES=4 GPUS_PER_NODE=8 SLURM_PARTITION=gpu SLURM_ACCOUNT=mine
# Reads:  config.env and its overlays, the environment, secrets.env; SLURM_*, RUNTIME
# Writes: DATA_DIR, OUTPUT_DIR/[label/]train_*.json, OUTPUT_DIR/logs/, OUTPUT_DIR/status.json
# Exits:  0 every job has a valid ok result, 2 bad input, 128 + signal interrupted, 1 otherwise
set -Eeuo pipefail

# Only this step may know the token of the hub.
prepare_data() { # <platform> <settings...>
  # shellcheck source=shell/lib/secrets.sh
  source "$ROOT/shell/lib/secrets.sh"
  load_secrets
  "$PYTHON" -m data.prepare --platform "$1" --workers "$(nproc)" "${@:2}" >/dev/null
}

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
  show_help_if_asked "$@"
  # shellcheck source=shell/lib/setting.sh
  source "$ROOT/shell/lib/setting.sh"
  take_settings "$@"
  local platform argument is_dry_run=false settings=()
  platform=$("$ROOT/shell/platform.sh")
  export PLATFORM=$platform
  for argument in "${SETTINGS[@]}"; do
    case $argument in
      --dry-run) is_dry_run=true ;;
      -*) ;;
      *) settings+=("$argument") ;;
    esac
  done
  if [[ $(setting RUNTIME "${settings[@]}") == native ]]; then
    use_environment
  else # to prepare data, to submit and to follow takes no more than the smallest set
    PLATFORM=cpu use_environment
  fi
  cd "$ROOT"
  if [[ $is_dry_run == false ]]; then (prepare_data "$platform" "${settings[@]}" LAUNCHER=slurm); fi
  exec "$PYTHON" -m train.slurm --platform "$platform" "${SETTINGS[@]}"
}

main "$@"
