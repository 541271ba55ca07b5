#!/usr/bin/env bash
# Set up, then start train.matrix, here or in a container. Help: train/matrix.py
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

launcher='' compare=(--compare)
take_run_arguments "$@"
if take_option --no-compare; then compare=(); fi
if take_option --compare; then compare=(--compare); fi
if [[ $is_here == false ]]; then launcher=$(setting LAUNCHER "${ARGUMENTS[@]}"); fi
if [[ $launcher == slurm ]]; then exec "$ROOT/shell/run_slurm.sh" "${DRY_RUN[@]}" "${ARGUMENTS[@]}"; fi
load_secrets
choose_runtime run
if [[ $RUNTIME == native ]]; then
  if [[ $is_dry_run == false && -z ${TPRIMAT_IN_CONTAINER:-} ]] && ! environment_is_fresh runtime; then
    python=$(find_python) # any but that of .venv, which is made or changed now
    PYTHONPATH=$ROOT "$python" -m train.matrix --set-up --platform "$PLATFORM" "${SETTINGS[@]}"
  fi
  ARGUMENTS=("${compare[@]}" "${ARGUMENTS[@]}")
fi
run_jobs train train.matrix shell/run_train.sh --here
