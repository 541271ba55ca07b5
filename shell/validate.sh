#!/usr/bin/env bash
# Check results and archives against their own raw samples and logs.
#
# Needs no torch: where .venv is missing, it makes a small environment of its own (.venv-evaluate).
#
# Usage:   ./shell/validate.sh [FOLDER|FILE ...] [--bundle ZIP ...]   options: python -m evaluate.validate --help
# Reads:   train_*.json below the folders, archives of shell/wrap.sh
# Writes:  nothing
# Exits:   as python -m evaluate.validate: 0 all results are valid, 1 one is not, 2 bad input
# Example: ./shell/validate.sh --bundle output.zip
if [ -z "${BASH_VERSION:-}" ]; then echo "error: validate: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
  show_help_if_asked "$@"
  # shellcheck source=shell/lib/reading.sh
  source "$ROOT/shell/lib/reading.sh"
  start_reading evaluate.validate "$@"
}

main "$@"
