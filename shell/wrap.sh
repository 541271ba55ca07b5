#!/usr/bin/env bash
# Pack the results of every job and label into one file, to be sent or kept.
#
# In it are results (superseded ones too), logs, comparisons, status.json, manifest.json and SHA256SUMS over them; no data,
# profiles, links or files that the suite did not write. A file that holds a secret ends it: nothing is packed. The same
# files give the same bytes. Whoever gets it can check it: python -m evaluate.validate --bundle output.zip
#
# Usage:  ./shell/wrap.sh [KEY=VALUE ...]          e.g. ./shell/wrap.sh OUTPUT_DIR=results
# Reads:  config.env and its overlays, secrets.env and the environment (HF_TOKEN: no packed file may hold it), OUTPUT_DIR
# Writes: OUTPUT_DIR/output.zip
# Exits:  0 packed; 1 a file holds a token, or the archive could not be written; 2 bad input or nothing to pack
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
  # shellcheck source=shell/lib/secrets.sh
  source "$(dirname "${BASH_SOURCE[0]}")/lib/secrets.sh"
  show_help_if_asked "$@"
  take_settings "$@"
  use_any_python
  load_secrets
  cd "$ROOT"
  local platform
  platform=$("$ROOT/shell/platform.sh")
  exec "$PYTHON" -m utils.housekeeping.archive --platform "$platform" "${SETTINGS[@]}"
}

main "$@"
