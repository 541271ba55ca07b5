#!/usr/bin/env bash
# Remove what the suite wrote, and nothing else; list what was removed, what was kept, and why.
#
# It removes results of every job and label, logs, comparisons and the archive; prepared data only with --with-data; .venv
# never. It keeps what the suite did not write, what has changed since, links, and folders that are not empty afterwards.
# The suite keeps a list of the files that it writes, .tprimat_files; a folder from before there was a list is refused. A
# container may write to the parents of these folders, because they are removed as well.
#
# Usage:   ./shell/run_purge.sh [--with-data] [--dry-run | --adopt] [--here] [OUTPUT_DIR=...] [DATA_DIR=...] [KEY=VALUE]
#          --dry-run lists what would be removed, after the command of the container, if there is one
#          --adopt adds files of an earlier version, and copies of files, to the list, and removes nothing
#          --here uses no container (also ./shell/purge.sh)
# Reads:   config.env and its overlays, the environment, OUTPUT_DIR, DATA_DIR
# Writes:  nothing; removes files and folders in OUTPUT_DIR and, with --with-data, DATA_DIR
# Exits:   0 done; 1 something could not be removed; 2 bad input, a folder that nothing may be removed from, or a RUNTIME
#          that does not work
# Example: ./shell/run_purge.sh --dry-run
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
