#!/usr/bin/env bash
# What the run_*.sh and entry.sh share: their arguments, the choice of the runtime, and what their containers see.
#
# Usage:  source shell/lib/environment.sh; source shell/lib/run.sh; take_run_arguments "$@"; choose_runtime run
# Reads:  settings; --dry-run, CONTAINER_ARGS=, CONTAINER_SHM_SIZE= and PLATFORM= among the arguments
# Writes: ARGUMENTS (all others), INNER (these, without what a container gets in its environment), is_dry_run, RUNTIME,
#         can_start; PLATFORM, CONTAINER_ARGS and CONTAINER_SHM_SIZE (exported)
# Exits:  not itself; bad input ends the script with 2 and one error line
set -Eeuo pipefail

# shellcheck source=shell/lib/setting.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/setting.sh"
# shellcheck source=shell/lib/runtime.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/runtime.sh"
# shellcheck source=shell/lib/secrets.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/secrets.sh"
# shellcheck source=shell/lib/supervise.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/supervise.sh"

ARGUMENTS=() INNER=()
can_start=true

take_run_arguments() { # <arguments of the script...>
  local argument
  for argument in "$@"; do
    case $argument in
      --dry-run) is_dry_run=true ;;
      PLATFORM=* | CONTAINER_ARGS=* | CONTAINER_SHM_SIZE=*) export "${argument?}" ;;
      *) ARGUMENTS+=("$argument") ;;
    esac
  done
  PLATFORM=$("$ROOT/shell/platform.sh")
  export PLATFORM
}

# A dry run with an engine by name prints its command on any machine; can_start says whether it would work here.
# shellcheck disable=SC2034 # for the scripts that source this
choose_runtime() { # <run|tools>
  local wanted why has_engine
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
  local argument setting is_inside
  for argument in "${ARGUMENTS[@]}"; do
    is_inside=true
    for setting in RUNTIME= LAUNCHER= "${PATH_SETTINGS[@]}"; do
      if [[ $argument == "${setting%%=*}="* ]]; then is_inside=false; fi
    done
    if [[ $is_inside == true ]]; then INNER+=("$argument"); fi
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

# Started and not sourced, there is nothing else that it could do.
if [[ ${BASH_SOURCE[0]} == "$0" ]]; then sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; fi
