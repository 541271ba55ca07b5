#!/usr/bin/env bash
# Compare the results in one or more folders.
#
# Usage:  evaluate/compare.sh [FOLDER ... [--by WHAT] [--format md,html,json,png] [--prices FILE] [--target-loss NATS] ...]
#         evaluate/compare.sh [KEY=VALUE ...]       all options: python -m evaluate.compare --help
#         without a folder: the one that the settings name (OUTPUT_DIR, LABEL); a folder and settings exclude each other
# Reads:  train_*.json (and benchmark_*.json of earlier suites) below the folders
# Writes: compare.html, compare.md, compare.json, compare.png into the folder of --output (default: the first folder)
# Exits:  0 a verdict was made; 3 nothing could be compared; 1 no result is ok and valid, or writing failed; 2 bad input
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/../shell/lib/environment.sh"
  show_help_if_asked "$@"
  local argument settings=() rest=() platform folder
  [[ -x $PYTHON ]] || PYTHON=python3
  # The folders on the command line are relative to the caller, so the working folder stays as it is.
  # Safe path: a `utils` folder that happens to be there is not ours (Python 3.11 and later).
  export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH} PYTHONSAFEPATH=1
  for argument in "$@"; do
    if [[ $argument == [A-Z]*=* ]]; then settings+=("$argument"); else rest+=("$argument"); fi
  done
  if ((${#rest[@]} == 0)); then
    take_settings "${settings[@]}"
    platform=$("$ROOT/shell/platform.sh")
    folder=$("$PYTHON" -m utils.configure --platform "$platform" --get results_dir "${SETTINGS[@]}")
    rest=("$folder")
  elif ((${#settings[@]})); then
    echo "error: compare: got ${rest[*]} and ${settings[*]}, wanted folders or settings; leave out one of them" >&2
    exit 2
  fi
  exec "$PYTHON" -m evaluate.compare "${rest[@]}"
}

main "$@"
