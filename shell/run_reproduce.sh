#!/usr/bin/env bash
# Run the jobs of an archive of run_wrap.sh again on this machine, and test its claim: the answer to a doubted result.
#
# The settings, the seed and the data are those of the results of this platform in the archive; what differs here (device,
# image, code) is printed first. Each job ends in PASS, FAIL or UNKNOWN. After an interrupt, the same command continues
# where it stopped.
#
# Usage:   ./shell/run_reproduce.sh ARCHIVE.zip [--at-least PERCENT] [--dry-run] [KEY=VALUE ...]
#          --at-least is the least share of the archive's tokens/s/GPU that passes (default 95); --dry-run starts no job
# Reads:   as run_train.sh; the archive
# Writes:  as run_train.sh, with LABEL=reproduced-ARCHIVE
# Exits:   0 every job passes; 1 one fails; 3 none fails and one is unknown; 2 bad input; 128 + signal interrupted
# Example: ./shell/run_reproduce.sh nvd.zip --at-least 97 DATA_DIR=/data
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

main() {
  local argument archive="" least=() settings=() plan line arguments label folder code
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
