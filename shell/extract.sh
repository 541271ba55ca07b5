#!/usr/bin/env bash
# Make results of our schema from the logs of other trainings.
#
# Needs no torch: where .venv is missing, it makes a small environment of its own (.venv-evaluate).
#
# Usage:   ./shell/extract.sh --log-file F|--discover DIR [OPTION ...]   options: python -m evaluate.extract --help
# Reads:   logs of Primus, Megatron-LM, Megatron Bridge, NeMo, torchtitan, the Hugging Face Trainer
# Writes:  the file or folder of --output
# Exits:   as python -m evaluate.extract: 0 every result is ok, 1 one is not, 2 bad input
# Example: ./shell/extract.sh --discover logs --output results
if [ -z "${BASH_VERSION:-}" ]; then echo "error: extract: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
  show_help_if_asked "$@"
  # shellcheck source=shell/lib/reading.sh
  source "$ROOT/shell/lib/reading.sh"
  start_reading evaluate.extract "$@"
}

main "$@"
