#!/usr/bin/env bash
# Prepare the data, then start train.slurm. Help: train/slurm.py
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/passed.sh"

take_arguments "$@"
if [[ $(setting RUNTIME "${SETTINGS[@]}") == native ]]; then
  use_environment
else # preparing data, submitting and following need only the smallest set of packages
  PLATFORM=cpu use_environment
fi
cd "$ROOT"
if [[ $is_dry_run == false ]]; then
  ( # only this step gets the hub's token
    load_secrets
    "$PYTHON" -m data.prepare --platform "$PLATFORM" --workers "$(nproc)" "${SETTINGS[@]}" LAUNCHER=slurm >/dev/null
  )
fi
start_module train.slurm "${DRY_RUN[@]}"
