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
if [ -z "${BASH_VERSION:-}" ]; then echo "error: run_slurm: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

# Only this step gets the hub's token.
prepare_data() { # <platform> <settings...>
  # shellcheck source=shell/lib/secrets.sh
  source "$ROOT/shell/lib/secrets.sh"
  load_secrets
  "$PYTHON" -m data.prepare --platform "$1" --workers "$(nproc)" "${@:2}" >/dev/null
}

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
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
  if [[ $is_dry_run == true ]]; then
    use_environment_to_plan
  elif [[ $(setting RUNTIME "${settings[@]}") == native ]]; then
    use_environment
  else # preparing data, submitting and following need only the smallest set of packages
    PLATFORM=cpu use_environment
  fi
  cd "$ROOT"
  if [[ $is_dry_run == false ]]; then (prepare_data "$platform" "${settings[@]}" LAUNCHER=slurm); fi
  start_module train.slurm
}

main "$@"
