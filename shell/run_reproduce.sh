#!/usr/bin/env bash
# Train what evaluate.reproduce plans, then let it judge. Help: evaluate/reproduce.py
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

archive='' least=() settings=()
while (($#)); do
  case $1 in
    --at-least) least=("$1" "${2:-}") && shift ;;
    --at-least=*) least=("$1") ;;
    *=* | --dry-run) settings+=("$1") ;;
    *) archive=${archive:+$archive }$1 ;;
  esac
  shift || true # --at-least was the last word
done
if [[ ! -f $archive ]]; then
  refuse "reproduce: got '${archive}', wanted one archive of run_wrap.sh; see shell/run_reproduce.sh --help"
fi
archive=$(readlink -f -- "$archive")
take_run_arguments "${settings[@]}"
use_reading_environment evaluate.reproduce

reproduce() { # <plan|judge> [more options...]
  PYTHONPATH=$ROOT PYTHONSAFEPATH=1 "$PYTHON" -m evaluate.reproduce "$1" "$archive" --platform "$PLATFORM" "${least[@]}" "${@:2}"
}

# The judge comes last, but a bad option must not be found after hours of training.
plan=$(reproduce plan) || {
  code=$?
  printf '%s' "${plan:+$plan$'\n'}"
  exit "$code"
}
label=$(basename -- "$archive" .zip)
label=LABEL=reproduced-${label//[^A-Za-z0-9._-]/-}
while IFS=$'\t' read -r -a arguments; do
  code=0
  "$ROOT/shell/run_train.sh" "${DRY_RUN[@]}" "${arguments[@]}" "${ARGUMENTS[@]}" "$label" </dev/null || code=$?
  if ((code == 2 || code > 128)); then exit "$code"; fi
done <<<"$plan"
if [[ $is_dry_run == true ]]; then exit 0; fi
folder=$(PYTHONPATH=$ROOT "$PYTHON" -m utils.configure --platform "$PLATFORM" --get results_dir "${ARGUMENTS[@]}" "$label")
reproduce judge --results "$folder"
