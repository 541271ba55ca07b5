#!/usr/bin/env bash
# Remove what the suite wrote, and nothing else: shell/purge.sh in the image, or directly where there is no image.
#
# The container may write to the parent folders of OUTPUT_DIR and, with --with-data, DATA_DIR, because these two folders
# are removed as well.
#
# Usage:   ./shell/run_purge.sh [--with-data] [--dry-run | --adopt] [KEY=VALUE ...]
#          --with-data also removes prepared data; --adopt: see shell/purge.sh; --dry-run prints the command of the container, if there is one, and
#          what would be removed
# Reads:   config.env and its overlays, the environment, OUTPUT_DIR, DATA_DIR
# Writes:  nothing; removes files and folders in OUTPUT_DIR and, with --with-data, DATA_DIR
# Exits:   as shell/purge.sh; also 2 if the RUNTIME that is named does not work
# Example: ./shell/run_purge.sh --dry-run
if [ -z "${BASH_VERSION:-}" ]; then echo "error: run_purge: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/run.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/run.sh"
  show_help_if_asked "$@"
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
