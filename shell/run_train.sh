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
if [ -z "${BASH_VERSION:-}" ]; then echo "error: run_train: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

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
  # shellcheck source=shell/lib/run.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/run.sh"
  show_help_if_asked "$@"
  take_run_arguments "$@"
  local launcher argument compare=(--compare) others=()
  for argument in "${ARGUMENTS[@]}"; do
    case $argument in
      --compare) compare=(--compare) ;;
      --no-compare) compare=() ;;
      *) others+=("$argument") ;;
    esac
  done
  ARGUMENTS=("${others[@]}")
  if [[ $is_here == false ]]; then
    launcher=$(setting LAUNCHER "${ARGUMENTS[@]}")
    if [[ $launcher == slurm ]]; then exec "$ROOT/shell/run_slurm.sh" "${DRY_RUN[@]}" "${ARGUMENTS[@]}"; fi
  fi
  load_secrets
  choose_runtime run
  if [[ $RUNTIME != native ]]; then
    run_jobs train shell/run_train.sh --here
    return
  fi
  if [[ $is_dry_run == true ]]; then
    use_environment_to_plan
  elif environment_is_fresh runtime || [[ -n ${TPRIMAT_IN_CONTAINER:-} ]]; then
    use_environment
  else
    set_up
  fi
  start_here train.matrix "${compare[@]}" "${DRY_RUN[@]}"
}

main "$@"
