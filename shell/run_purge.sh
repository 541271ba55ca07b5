#!/usr/bin/env bash
# Remove what the suite has written, and nothing else, with shell/purge.sh, in the image where there is one.
#
# The container may write in the folders that OUTPUT_DIR and, with --with-data, DATA_DIR stand in: they go themselves too.
#
# Usage:  ./shell/run_purge.sh [--with-data] [--dry-run] [KEY=VALUE ...]
#         --dry-run prints the command of the container, if there is one, and what would be removed
# Reads:  config.env and its overlays, the environment, OUTPUT_DIR, DATA_DIR
# Writes: nothing; removes files and folders in OUTPUT_DIR and, with --with-data, DATA_DIR
# Exits:  as shell/purge.sh; 2 also where the RUNTIME that is named does not work
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
  show_help_if_asked "$@"
  # shellcheck source=shell/lib/run.sh
  source "$ROOT/shell/lib/run.sh"
  take_run_arguments "$@"
  choose_runtime tools
  local dry_run=()
  if [[ $is_dry_run == true ]]; then dry_run=(--dry-run); fi
  if [[ $RUNTIME == native ]]; then exec "$ROOT/shell/purge.sh" "${dry_run[@]}" "${ARGUMENTS[@]}"; fi
  mount_for_purge
  if [[ $is_dry_run == true ]]; then run_in_container tools purge shell/purge.sh "${INNER[@]}"; fi
  if [[ $can_start == true ]]; then
    is_dry_run=false
    run_in_container tools purge shell/purge.sh "${dry_run[@]}" "${INNER[@]}"
  fi
}

main "$@"
