#!/usr/bin/env bash
# The whole road: set up, prepare the data, train every job of the matrix, validate the results, compare them.
#
# What is there already is kept: the environment, the data, and jobs that have an ok result of the same settings, data,
# code and machine (FORCE=1 trains them again).
#
# Usage:  ./shell/run_train.sh [KEY=VALUE ...]          e.g. ./shell/run_train.sh MODEL=mistral RUNS=5
# Reads:  config.env and its overlays, the environment
# Writes: .venv, DATA_DIR, OUTPUT_DIR/[label/]train_*.json, logs/, compare.{png,md,json}
# Exits:  0 every job ended well and the results are valid, 2 bad input, 1 otherwise
set -Eeuo pipefail

main() {
  # shellcheck source=shell/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
  show_help_if_asked "$@"
  take_settings "$@"
  use_environment
  cd "$ROOT"
  local platform results_dir exit_code=0
  platform=$("$ROOT/shell/platform.sh")
  results_dir=$("$PYTHON" -m utils.configure --platform "$platform" --get results_dir "${SETTINGS[@]}")

  "$ROOT/shell/train.sh" "$@" || exit_code=$?
  if ((exit_code == 2)); then exit 2; fi
  echo "=== comparison"
  "$PYTHON" -m evaluate.compare "$results_dir" || exit_code=$?
  exit "$exit_code"
}

main "$@"
