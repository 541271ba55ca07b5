#!/usr/bin/env bash
# Start evaluate.compare with folders, or with the folder of some settings. Help: evaluate/compare.py
HELP_OF_MODULE=evaluate.compare
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
