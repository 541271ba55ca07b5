#!/usr/bin/env bash
# Prepare missing data for the current settings directly on this machine: the data step of run_train.sh.
#
# Usage:   ./shell/data.sh [KEY=VALUE ...]
# Reads:   config.env and its overlays, secrets.env, the environment; DATASET's files, or the hub
# Writes:  DATA_DIR/<data set>/text.{bin,idx,json}, tokenizer/; the cache of huggingface_hub
# Exits:   0 prepared, 2 bad input or data that do not fit the training, 1 failed
# Example: ./shell/data.sh DATASET=synth
if [ -z "${BASH_VERSION:-}" ]; then echo "error: data: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
  show_help_if_asked "$@"
  # shellcheck source=shell/lib/secrets.sh
  source "$ROOT/shell/lib/secrets.sh"
  take_settings "$@"
  use_environment
  load_secrets
  start_module data.prepare --workers "$(nproc)" >/dev/null
}

main "$@"
