#!/usr/bin/env bash
# Run one job of the matrix in the suite's own environment. The scripts train/train_*.sh start it with their names.
#
# Usage:  train/train_PLATFORM_FRAMEWORK_MODEL.sh [--run N] [KEY=VALUE ...]
#         shell/inside/job.sh PLATFORM FRAMEWORK MODEL [--run N] [KEY=VALUE ...]
# Reads:  config.env and its overlays, the environment, the prepared data
# Writes: OUTPUT_DIR/[label/]train_*.json, OUTPUT_DIR/logs/
# Exits:  0 ok, 2 bad input, otherwise the trainer's exit code
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../lib/environment.sh"
  show_help_if_asked "$@"
  if (($# < 3)); then
    echo "error: job: got $# arguments, wanted at least PLATFORM FRAMEWORK MODEL; see shell/inside/job.sh --help" >&2
    exit 2
  fi
  local platform=$1 framework=$2 model=$3
  shift 3
  export PLATFORM=$platform
  use_environment
  cd "$ROOT"
  exec "$PYTHON" -m train.launch --platform "$platform" --framework "$framework" --model "$model" "$@"
}

main "$@"
