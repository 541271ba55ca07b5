#!/usr/bin/env bash
# Train what evaluate.reproduce plans, then let it judge. Help: evaluate/reproduce.py
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

main() {
  local archive='' least=() settings=() plan line arguments label folder code
  while (($#)); do
    case $1 in
      --at-least) least=("$1" "${2:-}") && shift ;;
      --at-least=*) least=("$1") ;;
      *=* | --dry-run) settings+=("$1") ;;
      *) archive=${archive:+$archive }$1 ;;
    esac
    shift
  done
  if [[ ! -f $archive ]]; then
    refuse "reproduce: got '${archive}', wanted one archive of run_wrap.sh; see shell/run_reproduce.sh --help"
  fi
  archive=$(readlink -f -- "$archive")
  take_run_arguments "${settings[@]}"
  use_reading_environment evaluate.reproduce
  # The judge comes last, but a bad option must not be found after hours of training.
  plan=$(reproduce plan) || {
    code=$?
    if [[ $plan ]]; then printf '%s\n' "$plan"; fi
    exit "$code"
  }
  label=$(basename -- "$archive" .zip)
  label=reproduced-${label//[^A-Za-z0-9._-]/-}
  while IFS= read -r line; do
    IFS=$'\t' read -r -a arguments <<<"$line"
    code=0
    "$ROOT/shell/run_train.sh" "${DRY_RUN[@]}" "${arguments[@]}" "${ARGUMENTS[@]}" "LABEL=$label" </dev/null || code=$?
    if ((code == 2 || code > 128)); then exit "$code"; fi
  done <<<"$plan"
  if [[ $is_dry_run == true ]]; then exit 0; fi
  folder=$(PYTHONPATH=$ROOT "$PYTHON" -m utils.configure --platform "$PLATFORM" --get results_dir "${ARGUMENTS[@]}" "LABEL=$label")
  reproduce judge --results "$folder"
}

reproduce() { # <plan|judge> [more options...]
  PYTHONPATH=$ROOT PYTHONSAFEPATH=1 "$PYTHON" -m evaluate.reproduce "$1" "$archive" --platform "$PLATFORM" "${least[@]}" "${@:2}"
}

main "$@"
