#!/usr/bin/env bash
# Pack the results of every job and label into one file, to send or to keep.
#
# The archive contains results (superseded ones too), logs, comparisons, status.{json,html}, manifest.json and SHA256SUMS of
# these files. It contains no data, profiles, links or files that the suite did not write. If a file contains a secret,
# nothing is packed. The same files give the same bytes. To check an archive: python -m evaluate.validate --bundle output.zip
#
# Usage:   ./shell/wrap.sh [KEY=VALUE ...]
# Reads:   config.env and its overlays, secrets.env and the environment (no packed file may contain HF_TOKEN), OUTPUT_DIR
# Writes:  OUTPUT_DIR/output.zip
# Exits:   0 packed; 1 a file contains a token, or the archive could not be written; 2 bad input or nothing to pack
# Example: ./shell/wrap.sh OUTPUT_DIR=results
if [ -z "${BASH_VERSION:-}" ]; then echo "error: wrap: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
  show_help_if_asked "$@"
  # shellcheck source=shell/lib/secrets.sh
  source "$ROOT/shell/lib/secrets.sh"
  take_settings "$@"
  use_any_python
  load_secrets
  start_module utils.housekeeping.archive
}

main "$@"
