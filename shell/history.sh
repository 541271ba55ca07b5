#!/usr/bin/env bash
# Show the results of many days side by side, and what got slower with which change.
#
# Needs no torch: where .venv is missing, it makes a small environment of its own (.venv-evaluate).
#
# Usage:   ./shell/history.sh FOLDER|ZIP ... [OPTION ...]   options: python -m evaluate.history --help
# Reads:   train_*.json (and benchmark_*.json of earlier formats) below the folders; output.zip of shell/wrap.sh
# Writes:  history.{html,json} into the folder of --output (default: the input if it is one folder, else history/)
# Exits:   0 no series got slower beyond the band; 3 one did; 1 no result can be used, or an output cannot be written;
#          2 bad input, or no result found
# Example: ./shell/history.sh nightly/* --output nightly-history
if [ -z "${BASH_VERSION:-}" ]; then echo "error: history: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
  show_help_if_asked "$@"
  # shellcheck source=shell/lib/reading.sh
  source "$ROOT/shell/lib/reading.sh"
  start_reading evaluate.history "$@"
}

main "$@"
