#!/usr/bin/env bash
# Set up, prepare the data, train every job of the matrix, validate the results and compare them: the main command.
#
# On a GPU machine it runs in the image that ./shell/build.sh makes; RUNTIME selects the engine (docs/containers.md).
# It keeps what exists: the environment, the data, and jobs with an ok result of the same settings, data, code and
# machine (FORCE=1 trains them again). After an interrupt, the same command continues where it stopped.
#
# Usage:   ./shell/run_train.sh [--dry-run] [KEY=VALUE ...]
#          --dry-run starts no job: it prints the command of the container, if there is one, and the plan of the matrix
# Reads:   config.env and its overlays, the environment, secrets.env; CONTAINER_ARGS, CONTAINER_SHM_SIZE
# Writes:  .venv, DATA_DIR, OUTPUT_DIR/[label/]train_*.json, logs/, status.{json,html}, compare.{html,md,png,json}
# Exits:   0 every job succeeded and the results are valid, 2 bad input, 128 + signal interrupted, 1 otherwise
# Example: ./shell/run_train.sh MODEL=mistral RUNS=5
if [ -z "${BASH_VERSION:-}" ]; then echo "error: run_train: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/run.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/run.sh"
  show_help_if_asked "$@"
  take_run_arguments "$@"
  local launcher dry_run=()
  if [[ $is_dry_run == true ]]; then dry_run=(--dry-run); fi
  launcher=$(setting LAUNCHER "${ARGUMENTS[@]}")
  if [[ $launcher == slurm ]]; then exec "$ROOT/shell/run_slurm.sh" "${dry_run[@]}" "${ARGUMENTS[@]}"; fi
  load_secrets
  choose_runtime run
  if [[ $RUNTIME == native ]]; then exec "$ROOT/shell/train.sh" --compare "${dry_run[@]}" "${ARGUMENTS[@]}"; fi
  mount_for_jobs
  run_in_container jobs train shell/train.sh --compare "${INNER[@]}"
  if [[ $is_dry_run == true && $can_start == true ]]; then
    is_dry_run=false is_only_looking=true
    run_in_container jobs plan shell/train.sh --compare --dry-run "${INNER[@]}"
  fi
}

main "$@"
