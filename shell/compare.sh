#!/usr/bin/env bash
# Compare the results in one or more folders or archives: verdicts, tables and metrics.
#
# The same as evaluate/compare.sh. Needs no torch: where .venv is missing, it makes a small environment of its own
# (.venv-evaluate).
#
# Usage:   ./shell/compare.sh [FOLDER|ZIP ...] [OPTION ...]   options: python -m evaluate.compare --help
# Reads:   as evaluate/compare.sh
# Writes:  as evaluate/compare.sh
# Exits:   as evaluate/compare.sh
# Example: ./shell/compare.sh amd.zip nvd.zip --output report
if [ -z "${BASH_VERSION:-}" ]; then echo "error: compare: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
  show_help_if_asked "$@"
  exec "$ROOT/evaluate/compare.sh" "$@"
}

main "$@"
