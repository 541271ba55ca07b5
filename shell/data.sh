#!/usr/bin/env bash
# Prepare the data that the settings name, if it is missing: the inner step of run_train.sh.
#
# Usage:  ./shell/data.sh [KEY=VALUE ...]
# Reads:  config.env and its overlays, secrets.env, the environment; DATASET's files, or the hub
# Writes: DATA_DIR/<data set>/text.{bin,idx,json}, tokenizer/; the cache of huggingface_hub
# Exits:  0 prepared, 2 bad input or data that do not fit the training, 1 failed
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
  # shellcheck source=shell/lib/secrets.sh
  source "$(dirname "${BASH_SOURCE[0]}")/lib/secrets.sh"
  show_help_if_asked "$@"
  take_settings "$@"
  use_environment
  load_secrets
  cd "$ROOT"
  local platform
  platform=$("$ROOT/shell/platform.sh")
  exec "$PYTHON" -m data.prepare --platform "$platform" --workers "$(nproc)" "${SETTINGS[@]}" >/dev/null
}

main "$@"
