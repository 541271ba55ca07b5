#!/usr/bin/env bash
# Set up, prepare the data, train every job of the matrix, validate the results and compare them: the main command.
#
# On a GPU machine it runs in the image that ./shell/build.sh makes; RUNTIME selects the engine (docs/containers.md).
# FRAMEWORK, MODEL and RUNS select the jobs. A failed job does not stop the others. It keeps what exists: the environment,
# the data, and jobs with an ok result of the same settings, data, code and machine (FORCE=1 trains them again). After an
# interrupt, the same command continues where it stopped. ORDER=interleaved runs run 1 of every job before run 2 of any,
# so that a slow drift of the machine affects all jobs alike.
#
# Usage:   ./shell/run_train.sh [--dry-run] [--here] [--no-compare] [KEY=VALUE ...]
#          --dry-run starts no job: it prints the command of the container, if there is one, and the plan of the matrix
#          --here trains on this machine without a container; --no-compare leaves out the comparison at the end. Both
#          together are ./shell/train.sh, which --compare makes compare again
# Reads:   config.env and its overlays, the environment, secrets.env; CONTAINER_ARGS, CONTAINER_SHM_SIZE
# Writes:  .venv, DATA_DIR, OUTPUT_DIR/[label/]train_*.json, logs/, status.{json,html}, compare.{html,md,png,json}
# Exits:   0 every job succeeded and the results are valid, 2 bad input, 128 + signal interrupted, 1 otherwise
# Example: ./shell/run_train.sh MODEL=mistral RUNS=5
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

# Any Python but that of .venv, which is made or changed now.
set_up() {
  local argument settings=() python
  for argument in "${ARGUMENTS[@]}"; do
    if [[ $argument != -* ]]; then settings+=("$argument"); fi
  done
  python=$(find_python)
  PYTHONPATH=$ROOT "$python" -m train.matrix --set-up --platform "$PLATFORM" "${settings[@]}"
}

main() {
  local launcher='' compare=(--compare)
  take_run_arguments "$@"
  if take_option --no-compare; then compare=(); fi
  if take_option --compare; then compare=(--compare); fi
  if [[ $is_here == false ]]; then launcher=$(setting LAUNCHER "${ARGUMENTS[@]}"); fi
  if [[ $launcher == slurm ]]; then exec "$ROOT/shell/run_slurm.sh" "${DRY_RUN[@]}" "${ARGUMENTS[@]}"; fi
  load_secrets
  choose_runtime run
  if [[ $RUNTIME == native ]]; then
    if [[ $is_dry_run == false && -z ${TPRIMAT_IN_CONTAINER:-} ]] && ! environment_is_fresh runtime; then set_up; fi
    ARGUMENTS=("${compare[@]}" "${ARGUMENTS[@]}")
  fi
  run_jobs train train.matrix shell/run_train.sh --here
}

main "$@"
