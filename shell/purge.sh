#!/usr/bin/env bash
# Remove what the suite has written, and nothing else; say what was removed, what was left, and why.
#
# Results of every job and label, logs, comparisons and the archive go; prepared data only with --with-data; .venv never.
# What the suite did not write stays, and so do links, damaged results and folders that are not empty afterwards.
#
# Usage:  ./shell/purge.sh [--with-data] [--dry-run] [OUTPUT_DIR=...] [DATA_DIR=...] [PLATFORM=amd|nvd|cpu]
#         --dry-run says what would be removed, and removes nothing; other KEY=VALUE only through the environment
# Reads:  config.env and its overlays, the environment, OUTPUT_DIR, DATA_DIR
# Writes: nothing; removes files and folders in OUTPUT_DIR and, with --with-data, DATA_DIR
# Exits:  0 done; 1 something could not be removed; 2 bad input, or a folder that nothing may be removed from
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
  show_help_if_asked "$@"
  take_settings "$@"
  use_any_python
  cd "$ROOT"
  local platform
  platform=$("$ROOT/shell/platform.sh")
  exec "$PYTHON" -m utils.housekeeping.purge --platform "$platform" "${SETTINGS[@]}"
}

main "$@"
