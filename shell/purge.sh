#!/usr/bin/env bash
# Remove what the suite wrote, and nothing else; list what was removed, what was kept, and why.
#
# It removes results of every job and label, logs, comparisons and the archive; prepared data only with --with-data; .venv
# never. It keeps what the suite did not write, what has changed since, links, and folders that are not empty afterwards.
# The suite keeps a list of the files that it writes, .tprimat_files. A folder from before there was a list is refused.
#
# Usage:   ./shell/purge.sh [--with-data] [--dry-run | --adopt] [OUTPUT_DIR=...] [DATA_DIR=...] [PLATFORM=amd|nvd|cpu]
#          --dry-run lists what would be removed, and removes nothing; other settings only through the environment
#          --adopt adds files of an earlier version, and copies of files, to the list, and removes nothing
# Reads:   config.env and its overlays, the environment, OUTPUT_DIR, DATA_DIR
# Writes:  nothing; removes files and folders in OUTPUT_DIR and, with --with-data, DATA_DIR
# Exits:   0 done; 1 something could not be removed; 2 bad input, or a folder that nothing may be removed from
# Example: ./shell/purge.sh --dry-run
if [ -z "${BASH_VERSION:-}" ]; then echo "error: purge: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
  show_help_if_asked "$@"
  take_settings "$@"
  use_any_python
  start_module utils.housekeeping.purge
}

main "$@"
