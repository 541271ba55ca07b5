#!/usr/bin/env bash
# Train every job of the matrix directly on this machine: the training step of run_train.sh.
#
# FRAMEWORK, MODEL and RUNS select the jobs. Missing data are prepared first. A failed job does not stop the others. Jobs
# with an ok result of the same settings, data, code and machine are skipped (FORCE=1 trains them again), so after an
# interrupt the same command continues where it stopped. ORDER=interleaved runs run 1 of every job before run 2 of any, so
# that a slow drift of the machine affects all jobs alike.
#
# Usage:   ./shell/train.sh [--dry-run] [--compare] [KEY=VALUE ...]
#          --dry-run prints jobs, commands and settings and starts nothing; --compare compares the results at the end
# Reads:   config.env and its overlays, the environment; DATASET's files
# Writes:  DATA_DIR, OUTPUT_DIR/[label/]train_*.json, OUTPUT_DIR/logs/, OUTPUT_DIR/status.{json,html}
# Exits:   0 every job has a valid ok result, 2 bad input, 128 + signal interrupted, 1 at least one job has none
# Example: ./shell/train.sh --dry-run FRAMEWORK=mega
if [ -z "${BASH_VERSION:-}" ]; then echo "error: train: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

# Any Python but that of .venv, which is made or changed now.
set_up() {
  local argument settings=() python platform
  for argument in "${SETTINGS[@]}"; do
    if [[ $argument != -* ]]; then settings+=("$argument"); fi
  done
  python=$(find_python)
  platform=$("$ROOT/shell/platform.sh")
  PLATFORM=$platform PYTHONPATH=$ROOT "$python" -m train.set_up --platform "$platform" "${settings[@]}"
}

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
  show_help_if_asked "$@"
  take_settings "$@"
  if [[ " $* " == *" --dry-run "* ]]; then
    use_environment_to_plan
  elif environment_is_fresh runtime || [[ -n ${TPRIMAT_IN_CONTAINER:-} ]]; then
    use_environment
  else
    set_up
  fi
  start_module train.matrix
}

main "$@"
