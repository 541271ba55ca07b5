#!/usr/bin/env bash
# Train every job of the matrix that FRAMEWORK, MODEL and RUNS select, on data that is prepared if it is missing.
#
# A failed job does not stop the others. Jobs run in rounds, run 1 of every job before run 2 of any, so that a machine
# that drifts drifts for all alike.
#
# Usage:  ./shell/train.sh [KEY=VALUE ...]
# Reads:  config.env and its overlays, the environment; DATASET's files
# Writes: DATA_DIR, OUTPUT_DIR/[label/]train_*.json, OUTPUT_DIR/logs/
# Exits:  0 every job has a valid ok result, 2 bad input, 1 at least one has not
set -Eeuo pipefail

main() {
  # shellcheck source=shell/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
  show_help_if_asked "$@"
  take_settings "$@"
  use_environment
  cd "$ROOT"
  local platform jobs cooldown
  platform=$("$ROOT/shell/platform.sh")
  jobs=$("$PYTHON" -m utils.configure --platform "$platform" --jobs "${SETTINGS[@]}")
  cooldown=$("$PYTHON" -m utils.configure --platform "$platform" --get cooldown_seconds "${SETTINGS[@]}")

  echo "=== data"
  "$ROOT/shell/data.sh" "$@"
  echo "=== training"
  local count number=0 failed=0 framework model run result
  local results=()
  count=$(wc -l <<<"$jobs")
  while read -r framework model run result; do
    number=$((number + 1))
    echo "--- job $number of $count: $framework $model run $run"
    sleep "$cooldown"
    "train/train_${platform}_${framework}_${model}.sh" --run "$run" "${SETTINGS[@]}" </dev/null || {
      echo "--- job $number of $count failed with exit code $?" >&2
      failed=$((failed + 1))
    }
    results+=("$result")
  done <<<"$jobs"

  echo "=== validation: $count jobs, $failed failed"
  "$PYTHON" -m evaluate.validate "${results[@]}" || failed=$((failed + 1))
  ((failed == 0)) || exit 1
}

main "$@"
