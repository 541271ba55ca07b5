#!/usr/bin/env bash
# The whole road: set up, prepare the data, train every job of the matrix, validate the results, compare them.
#
# On a GPU machine it runs in the image that ./shell/build.sh has made; RUNTIME says with which engine (docs/containers.md).
# What is there already is kept: the environment, the data, and jobs that have an ok result of the same settings, data,
# code and machine (FORCE=1 trains them again). After an interrupt the same command goes on where it was.
#
# Usage:  ./shell/run_train.sh [--dry-run] [KEY=VALUE ...]          e.g. ./shell/run_train.sh MODEL=mistral RUNS=5
#         --dry-run starts no job: it prints the command of the container, if there is one, and the plan of the matrix
# Reads:  config.env and its overlays, the environment, secrets.env; CONTAINER_ARGS, CONTAINER_SHM_SIZE
# Writes: .venv, DATA_DIR, OUTPUT_DIR/[label/]train_*.json, logs/, status.json, compare.{html,md,png,json}
# Exits:  0 every job ended well and the results are valid, 2 bad input, 128 + signal interrupted, 1 otherwise
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
  show_help_if_asked "$@"
  # shellcheck source=shell/lib/run.sh
  source "$ROOT/shell/lib/run.sh"
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
