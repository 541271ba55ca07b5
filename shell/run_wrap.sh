#!/usr/bin/env bash
# Start evaluate.wrap, here or in a container. Help: evaluate/wrap.py
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

take_run_arguments "$@"
load_secrets
choose_runtime tools
if [[ $RUNTIME == native ]]; then
  use_any_python
  if [[ $is_dry_run == false ]]; then start_module evaluate.wrap; fi
  run_here "$PYTHON" -m evaluate.wrap --platform "$PLATFORM" "${ARGUMENTS[@]}"
fi
mount_checkout
mount_folder OUTPUT_DIR "${ARGUMENTS[@]}"
run_in_container tools wrap shell/run_wrap.sh --here
