#!/usr/bin/env bash
# Start data.prepare, here or in a container. Help: data/prepare.py
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

take_run_arguments "$@"
fit=(--for-any-training)
if take_option --for-this-training; then fit=() && exec >/dev/null; fi # the prefixes are of no use to the caller
load_secrets
choose_runtime run
if [[ $RUNTIME == native ]]; then
  run_here "$PYTHON" -m data.prepare "${fit[@]}" --platform "$PLATFORM" --workers "$(nproc)" "${ARGUMENTS[@]}"
fi
mount_for_jobs
run_in_container jobs data shell/run_data.sh
