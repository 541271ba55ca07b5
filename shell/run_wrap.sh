#!/usr/bin/env bash
# Pack the results of every job and label into one file, to send or to keep.
#
# The archive contains results (superseded ones too), logs, comparisons, status.json, manifest.json and SHA256SUMS of these
# files. It contains no data, profiles, links or files that the suite did not write. If a file contains a secret, nothing
# is packed. The same files give the same bytes. To check an archive: ./shell/validate.sh --bundle output.zip
#
# Usage:   ./shell/run_wrap.sh [--dry-run] [--here] [KEY=VALUE ...]
#          --dry-run prints the command that it would start; --here uses no container (also ./shell/wrap.sh)
# Reads:   config.env and its overlays, the environment, secrets.env (no packed file may contain HF_TOKEN), OUTPUT_DIR
# Writes:  OUTPUT_DIR/output.zip
# Exits:   0 packed; 1 a file contains a token, or the archive could not be written; 2 bad input, nothing to pack, or the
#          RUNTIME that is named does not work
# Example: ./shell/run_wrap.sh OUTPUT_DIR=results
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

take_run_arguments "$@"
load_secrets
choose_runtime tools
if [[ $RUNTIME == native ]]; then
  use_any_python
  if [[ $is_dry_run == false ]]; then start_module utils.housekeeping.archive; fi
  run_here "$PYTHON" -m utils.housekeeping.archive --platform "$PLATFORM" "${ARGUMENTS[@]}"
fi
mount_checkout
mount_folder OUTPUT_DIR "${ARGUMENTS[@]}"
run_in_container tools wrap shell/run_wrap.sh --here
