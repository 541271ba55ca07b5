#!/usr/bin/env bash
# Pack the results of every job and label into one file: shell/wrap.sh in the image, or directly where there is no image.
#
# Usage:   ./shell/run_wrap.sh [--dry-run] [KEY=VALUE ...]
#          --dry-run prints the command that it would start
# Reads:   config.env and its overlays, the environment, secrets.env (no packed file may contain HF_TOKEN), OUTPUT_DIR
# Writes:  OUTPUT_DIR/output.zip
# Exits:   as shell/wrap.sh; also 2 if the RUNTIME that is named does not work
# Example: ./shell/run_wrap.sh OUTPUT_DIR=results
if [ -z "${BASH_VERSION:-}" ]; then echo "error: run_wrap: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/run.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/run.sh"
  show_help_if_asked "$@"
  take_run_arguments "$@"
  load_secrets
  choose_runtime tools
  if [[ $RUNTIME == native ]]; then run_here "$ROOT/shell/wrap.sh" "${ARGUMENTS[@]}"; fi
  mount_for_wrap
  run_in_container tools wrap shell/wrap.sh "${INNER[@]}"
}

main "$@"
