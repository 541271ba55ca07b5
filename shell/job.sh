#!/usr/bin/env bash
# Run one job of the matrix in the suite's own environment.
#
# Usage:  shell/job.sh PLATFORM FRAMEWORK MODEL [--run N] [KEY=VALUE ...]
# Reads:  config.env and its overlays, the environment, the prepared data
# Writes: OUTPUT_DIR/[label/]train_*.json, OUTPUT_DIR/logs/
# Exits:  0 ok, 2 bad input, otherwise the trainer's exit code
set -Eeuo pipefail

main() {
  : "${3:?usage: shell/job.sh PLATFORM FRAMEWORK MODEL [--run N] [KEY=VALUE ...]}"
  local platform=$1 framework=$2 model=$3
  shift 3
  export PLATFORM=$platform
  # shellcheck source=shell/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
  use_environment
  cd "$ROOT"
  exec "$PYTHON" -m train.launch --platform "$platform" --framework "$framework" --model "$model" "$@"
}

main "$@"
