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
. "$(dirname -- "$(readlink -f -- "$0")")/../shell/lib/environment.sh" || exit

main() {
  local argument settings=() rest=() folder
  for argument in "$@"; do
    if [[ $argument == [A-Z]*=* ]]; then settings+=("$argument"); else rest+=("$argument"); fi
  done
  if ((${#rest[@]} == 0)); then
    take_arguments "${settings[@]}"
    use_any_python
    folder=$(PYTHONPATH=$ROOT "$PYTHON" -m utils.configure --platform "$PLATFORM" --get results_dir "${ARGUMENTS[@]}")
    rest=("$folder")
  elif ((${#settings[@]})); then
    refuse "compare: got ${rest[*]} and ${settings[*]}, wanted folders or settings; leave out one of them"
  fi
  use_reading_environment evaluate.compare "${rest[@]}"
  start_in_folder_of_caller evaluate.compare "${rest[@]}"
}

main "$@"
