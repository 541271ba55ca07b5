#!/usr/bin/env bash
# Divide the time of a training step by kind, from one trace of torch.profiler or from two side by side.
#
# Needs no torch: where .venv is missing, it makes a small environment of its own (.venv-evaluate).
#
# Usage:   ./shell/trace.sh TRACE.json[.gz] [TRACE] [OPTION ...]   options: python -m evaluate.trace --help
# Reads:   the traces; probes named by --probe
# Writes:  trace.{html,json} into the folder of --output, if it is given
# Exits:   0; 1 an output cannot be written; 2 bad input, such as a file that is no trace
# Example: ./shell/trace.sh nvidia.json.gz amd.json.gz --output report
if [ -z "${BASH_VERSION:-}" ]; then echo "error: trace: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
  show_help_if_asked "$@"
  # shellcheck source=shell/lib/reading.sh
  source "$ROOT/shell/lib/reading.sh"
  start_reading evaluate.trace "$@"
}

main "$@"
