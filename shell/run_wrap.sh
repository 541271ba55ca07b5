#!/usr/bin/env bash
# Pack the results of every job and label into one file with shell/wrap.sh, in the image where there is one.
#
# Usage:  ./shell/run_wrap.sh [--dry-run] [KEY=VALUE ...]          e.g. ./shell/run_wrap.sh OUTPUT_DIR=results
#         --dry-run prints the command that it would start
# Reads:  config.env and its overlays, the environment, secrets.env (no packed file may hold HF_TOKEN), OUTPUT_DIR
# Writes: OUTPUT_DIR/output.zip
# Exits:  as shell/wrap.sh; 2 also where the RUNTIME that is named does not work
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
  show_help_if_asked "$@"
  # shellcheck source=shell/lib/run.sh
  source "$ROOT/shell/lib/run.sh"
  take_run_arguments "$@"
  load_secrets
  choose_runtime tools
  if [[ $RUNTIME == native ]]; then run_here "$ROOT/shell/wrap.sh" "${ARGUMENTS[@]}"; fi
  mount_for_wrap
  run_in_container tools wrap shell/wrap.sh "${INNER[@]}"
}

main "$@"
