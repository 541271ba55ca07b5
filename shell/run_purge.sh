#!/usr/bin/env bash
# Start utils.housekeeping.purge, here or in a container. Help: utils/housekeeping/purge.py
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

take_run_arguments "$@"
choose_runtime tools
if [[ $RUNTIME == native ]]; then
  use_any_python
  start_module utils.housekeeping.purge "${DRY_RUN[@]}"
fi
mount_parent OUTPUT_DIR "${ARGUMENTS[@]}"
if [[ " ${ARGUMENTS[*]} " == *" --with-data "* ]]; then mount_parent DATA_DIR "${ARGUMENTS[@]}"; fi
mount_checkout
if [[ $is_dry_run == true ]]; then run_in_container tools purge shell/run_purge.sh --here; fi
if [[ $can_start == true ]]; then
  is_dry_run=false
  run_in_container tools purge shell/run_purge.sh --here "${DRY_RUN[@]}"
fi
