#!/usr/bin/env bash
# What the run_*.sh and entry.sh share: their arguments, the choice of the runtime, and the mounts of each kind. Sourced.
#
# Usage:  source shell/lib/run.sh; take_run_arguments "$@"; choose_runtime run
# Reads:  settings; --dry-run, --here, CONTAINER_ARGS=, CONTAINER_SHM_SIZE= and PLATFORM= among the arguments
# Writes: ARGUMENTS (all others), INNER (ARGUMENTS without what a container gets in its environment), is_dry_run and DRY_RUN
#         (--dry-run or nothing), is_here, RUNTIME, can_start; PLATFORM, CONTAINER_ARGS and CONTAINER_SHM_SIZE (exported)
# Exits:  2 with one error line for bad input
set -Eeuo pipefail

# shellcheck source=shell/lib/environment.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"
# shellcheck source=shell/lib/setting.sh
source "$ROOT/shell/lib/setting.sh"
# shellcheck source=shell/lib/runtime.sh
source "$ROOT/shell/lib/runtime.sh"
# shellcheck source=shell/lib/secrets.sh
source "$ROOT/shell/lib/secrets.sh"
# shellcheck source=shell/lib/supervise.sh
source "$ROOT/shell/lib/supervise.sh"

ARGUMENTS=() INNER=() DRY_RUN=()
can_start=true
is_here=false

# shellcheck disable=SC2034 # for the scripts that source this
take_run_arguments() { # <arguments of the script...>
  local argument
  for argument in "$@"; do
    refuse_secret "${argument%%=*}" "$argument"
    case $argument in
      --dry-run) is_dry_run=true DRY_RUN=(--dry-run) ;;
      --here) is_here=true ;;
      PLATFORM=* | CONTAINER_ARGS=* | CONTAINER_SHM_SIZE=*) export "${argument?}" ;;
      *) ARGUMENTS+=("$argument") ;;
    esac
  done
  PLATFORM=$("$ROOT/shell/platform.sh")
  export PLATFORM
  check_arguments "${ARGUMENTS[@]}"
}

# A dry run with a named engine prints its command on any machine. can_start records whether the command would work here.
# shellcheck disable=SC2034 # for the scripts that source this
choose_runtime() { # <run|tools>
  local wanted why has_engine
  if [[ $is_here == true ]]; then
    RUNTIME=native
    return
  fi
  wanted=$(setting RUNTIME "${ARGUMENTS[@]}")
  if [[ $is_dry_run == true && $wanted == @(docker|podman|apptainer) && -z ${TPRIMAT_IN_CONTAINER:-} ]]; then
    RUNTIME=$wanted
    if ! is_fit "$wanted" "$PLATFORM" "$1"; then
      printf 'note: cannot be started here: RUNTIME=%s: %s\n' "$wanted" "$why" >&2
      can_start=false
    fi
    return
  fi
  pick_runtime "$wanted" "$PLATFORM" "$1"
}

_take_inner() {
  local argument
  for argument in "${ARGUMENTS[@]}"; do
    case $argument in
      RUNTIME=* | LAUNCHER=*) ;;
      *) if ! is_path_setting "${argument%%=*}"; then INNER+=("$argument"); fi ;;
    esac
  done
}

# Without a container.
run_here() { # <command...>
  if [[ $is_dry_run == true ]]; then
    print_command "$@"
    exit
  fi
  if [[ $1 == "$PYTHON" ]]; then use_environment; fi
  cd -- "$ROOT"
  exec "$@"
}

# Without a container: a module of ours with the arguments of the script.
start_here() { # <module> <arguments...>
  SETTINGS=("${ARGUMENTS[@]}")
  start_module "$@"
}

# A dry run prints the command of the container, and the plan of the jobs where it can be started.
run_jobs() { # <title> <command...>
  mount_for_jobs
  run_in_container jobs "$1" "${@:2}" "${INNER[@]}"
  if [[ $is_dry_run == true && $can_start == true ]]; then
    is_dry_run=false is_only_looking=true
    run_in_container jobs plan "${@:2}" --dry-run "${INNER[@]}"
  fi
}

# What training and its data need.
mount_for_jobs() {
  mount_checkout
  mount_folder OUTPUT_DIR "${ARGUMENTS[@]}"
  mount_folder DATA_DIR "${ARGUMENTS[@]}"
  mount_hub_cache
  mount_dataset "${ARGUMENTS[@]}"
  mount_tokenizer "${ARGUMENTS[@]}"
  mount_primus
  NNODES_ASKED=$(setting NNODES "${ARGUMENTS[@]}")
  _take_inner
}

mount_for_wrap() {
  mount_checkout
  mount_folder OUTPUT_DIR "${ARGUMENTS[@]}"
  _take_inner
}

mount_for_purge() {
  local argument
  mount_parent OUTPUT_DIR "${ARGUMENTS[@]}"
  for argument in "${ARGUMENTS[@]}"; do
    if [[ $argument == --with-data ]]; then mount_parent DATA_DIR "${ARGUMENTS[@]}"; fi
  done
  mount_checkout
  _take_inner
}
