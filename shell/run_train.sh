#!/usr/bin/env bash
# The whole road: set up, prepare the data, train every job of the matrix, validate the results, compare them.
#
# What is there already is kept: the environment, the data, and jobs that have an ok result of the same settings, data,
# code and machine (FORCE=1 trains them again). After an interrupt the same command goes on where it was.
#
# Usage:  ./shell/run_train.sh [--dry-run] [KEY=VALUE ...]          e.g. ./shell/run_train.sh MODEL=mistral RUNS=5
# Reads:  config.env and its overlays, the environment
# Writes: .venv, DATA_DIR, OUTPUT_DIR/[label/]train_*.json, logs/, status.json, compare.{html,md,png,json}
# Exits:  0 every job ended well and the results are valid, 2 bad input, 128 + signal interrupted, 1 otherwise
set -Eeuo pipefail

main() {
  # shellcheck source=shell/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
  show_help_if_asked "$@"
  exec "$ROOT/shell/train.sh" --compare "$@"
}

main "$@"
