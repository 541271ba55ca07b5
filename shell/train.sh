#!/usr/bin/env bash
# Train every job of the matrix that FRAMEWORK, MODEL and RUNS select, on data that is prepared if it is missing.
#
# A failed job does not stop the others. Jobs with an ok result of the same settings, data, code and machine are skipped
# (FORCE=1 trains them again), so the same command goes on where an interrupt ended it. ORDER=interleaved runs run 1 of
# every job before run 2 of any, so that a machine that drifts drifts for all alike.
#
# Usage:  ./shell/train.sh [--dry-run] [--compare] [KEY=VALUE ...]
#         --dry-run prints jobs, commands and settings and starts nothing; --compare compares the results at the end
# Reads:  config.env and its overlays, the environment; DATASET's files
# Writes: DATA_DIR, OUTPUT_DIR/[label/]train_*.json, OUTPUT_DIR/logs/, OUTPUT_DIR/status.json
# Exits:  0 every job has a valid ok result, 2 bad input, 128 + signal interrupted, 1 at least one has not
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
  show_help_if_asked "$@"
  take_settings "$@"
  use_environment
  cd "$ROOT"
  local platform
  platform=$("$ROOT/shell/platform.sh")
  export PLATFORM=$platform
  # In place of this shell, so that a signal to it reaches what it must stop.
  exec "$PYTHON" -m train.matrix --platform "$platform" "${SETTINGS[@]}"
}

main "$@"
