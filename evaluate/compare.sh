#!/usr/bin/env bash
# Compare the results in one or more folders or archives: verdicts, tables and metrics.
#
# Usage:   evaluate/compare.sh [FOLDER|ZIP ...] [OPTION ...]   options: python -m evaluate.compare --help
#          evaluate/compare.sh [KEY=VALUE ...]             the folder of these settings (OUTPUT_DIR, LABEL)
# Reads:   train_*.json (and benchmark_*.json of earlier formats) below the folders; output.zip of shell/wrap.sh
# Writes:  compare.{html,md,json,png} into the folder of --output (default: the first folder if it holds all inputs, else
#          comparison/)
# Exits:   0 at least one pair has a verdict; 3 no pair could be compared; 1 no result is ok and valid, or an output
#          cannot be written; 2 bad input, or no result found. With --against: 0 every job passes; 1 at least one fails;
#          3 none fails, and at least one is unknown
# Example: evaluate/compare.sh amd.zip nvd.zip --output report --by platform
if [ -z "${BASH_VERSION:-}" ]; then echo "error: compare: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../shell/lib/environment.sh"
  show_help_if_asked "$@"
  # shellcheck source=shell/lib/reading.sh
  source "$ROOT/shell/lib/reading.sh"
  local argument settings=() rest=() platform folder
  for argument in "$@"; do
    if [[ $argument == [A-Z]*=* ]]; then settings+=("$argument"); else rest+=("$argument"); fi
  done
  if ((${#rest[@]} == 0)); then
    take_settings "${settings[@]}"
    platform=$("$ROOT/shell/platform.sh")
    use_any_python
    folder=$(PYTHONPATH=$ROOT "$PYTHON" -m utils.configure --platform "$platform" --get results_dir "${SETTINGS[@]}")
    rest=("$folder")
  elif ((${#settings[@]})); then
    echo "error: compare: got ${rest[*]} and ${settings[*]}, wanted folders or settings; leave out one of them" >&2
    exit 2
  fi
  start_reading evaluate.compare "${rest[@]}"
}

main "$@"
