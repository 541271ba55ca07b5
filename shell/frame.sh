#!/usr/bin/env bash
# Write results as a table for pandas, R or a spreadsheet: a row for each run, or with --steps for each step.
#
# Needs no torch: where .venv is missing, it makes a small environment of its own (.venv-evaluate).
#
# Usage:   ./shell/frame.sh FOLDER|ZIP|RESULT ... [--output FILE.csv|FILE.parquet] [--steps]
# Reads:   results, and output.zip of shell/wrap.sh
# Writes:  the file of --output; without it CSV on stdout
# Exits:   as python -m evaluate.frame: 0 the table is written, 1 it cannot be written, 2 bad input
# Example: ./shell/frame.sh amd.zip nvd.zip --output runs.csv
if [ -z "${BASH_VERSION:-}" ]; then echo "error: frame: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
  show_help_if_asked "$@"
  # shellcheck source=shell/lib/reading.sh
  source "$ROOT/shell/lib/reading.sh"
  start_reading evaluate.frame "$@"
}

main "$@"
