#!/usr/bin/env bash
# Run a sweep directly on this machine: the training step of run_sweep.sh.
#
# Usage:   ./shell/sweep.sh [--dry-run] KEY=VALUE,VALUE[,...] [KEY=VALUE ...]
# Reads:   config.env and all that shell/train.sh reads
# Writes:  as run_sweep.sh
# Exits:   as run_sweep.sh
# Example: ./shell/sweep.sh --dry-run FRAMEWORK=mega,hf MBS=4,8
if [ -z "${BASH_VERSION:-}" ]; then echo "error: sweep: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
  show_help_if_asked "$@"
  take_settings "$@"
  if [[ " $* " == *" --dry-run "* ]]; then use_environment_to_plan; else use_environment; fi
  start_module train.sweep
}

main "$@"
