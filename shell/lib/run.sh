#!/usr/bin/env bash
# What the run_*.sh and entry.sh share: the runtime, the mounts of each kind, and a container from start to end. Sourced.
#
# The engine's client runs in its own process group and forwards no signals, so that each signal reaches the container
# once: from here. If only the client ends (kill -9), the container is stopped too.
#
# Usage:  . shell/lib/environment.sh; . shell/lib/run.sh; take_run_arguments "$@"; choose_runtime run
#         run_in_container <tools|jobs> <title> <command...>; open_in_container <title> <command...>
# Reads:  the settings, CONTAINER_ARGS, CONTAINER_SHM_SIZE, GRACE_SECONDS
# Writes: is_here, RUNTIME; nothing else, with a dry run the command of the container on stdout
# Exits:  2 with one error line for bad input; run_in_container returns the exit code of the job, 128 + signal if a signal
#         ended it; open_in_container replaces this shell
. "$ROOT/shell/lib/runtime.sh"
. "$ROOT/shell/lib/container.sh"

GRACE_SECONDS=${GRACE_SECONDS:-90}
is_here=false
_client='' _signal=''

take_run_arguments() { # <arguments of the script...>
  take_arguments "$@"
  if take_option --here; then is_here=true; fi
}

choose_runtime() { # <run|tools>
  local wanted=native
  if [[ $is_here == false ]]; then wanted=$(setting RUNTIME "${ARGUMENTS[@]}"); fi
  pick_runtime "$wanted" "$PLATFORM" "$1"
}

# Without a container.
run_here() { # <command...>
  if [[ $is_dry_run == true ]]; then
    print_command "$@"
    exit
  fi
  if [[ $1 == "$PYTHON" ]]; then use_environment; fi
  cd -- "$ROOT" || exit
  exec "$@"
}

# The jobs of a module: here, or in a container. A dry run prints the command of the container, and the plan of the jobs
# where it can be started.
run_jobs() { # <title> <module> <command in the container...>
  if [[ $RUNTIME == native ]]; then
    use_environment
    start_module "$2" "${DRY_RUN[@]}"
  fi
  mount_for_jobs
  run_in_container jobs "$1" "${@:3}"
  if [[ $is_dry_run == true && $can_start == true ]]; then
    is_dry_run=false is_only_looking=true
    run_in_container jobs plan "${@:3}" --dry-run
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
}

# If the container does not exist yet, or no longer, its client gets the signal. apptainer, which is here outside the
# terminal's process group, forwards each signal to what it runs (starter, SetSignalPropagation).
_forward() { # <signal>
  _signal=$1
  if [[ -z $_client ]]; then return; fi
  if [[ $RUNTIME == apptainer ]] || ! "$RUNTIME" kill --signal "$1" "$CONTAINER" &>/dev/null; then
    kill -s "$1" "$_client" 2>/dev/null || true # it may have ended already
  fi
}

# Does nothing after a normal end: --rm has removed the container, and apptainer's processes are gone.
_leave_nothing() {
  local waited
  if [[ $RUNTIME == apptainer ]]; then
    kill -s TERM -- "-$_client" 2>/dev/null || true # it may have ended already
    for ((waited = 0; waited < GRACE_SECONDS; waited++)); do
      kill -0 -- "-$_client" 2>/dev/null || break
      sleep 1
    done
    kill -s KILL -- "-$_client" 2>/dev/null || true # normally it is gone
  elif "$RUNTIME" container inspect "$CONTAINER" &>/dev/null; then
    "$RUNTIME" stop -t "$GRACE_SECONDS" "$CONTAINER" &>/dev/null || true # it may have ended, and --rm removed it
    "$RUNTIME" rm --force "$CONTAINER" &>/dev/null || true               # --rm may have removed it
  fi
}

_supervise() { # runs COMMAND
  local code=0
  trap _leave_nothing EXIT
  trap '_forward INT' INT # an ignored signal (nohup) stays ignored
  trap '_forward TERM' TERM
  trap '_forward HUP' HUP
  # job control gives the client its own process group; without it, background jobs start with Ctrl-C ignored
  set -m
  "${COMMAND[@]}" </dev/null &
  _client=$!
  set +m
  if [[ -n $_signal ]]; then _forward "$_signal"; fi
  while true; do
    _signal='' code=0
    wait "$_client" || code=$?
    if [[ -z $_signal ]]; then break; fi # else the signal only ended the wait
  done
  trap '' INT TERM HUP
  _leave_nothing
  trap - EXIT INT TERM HUP
  return "$code"
}

_quoted() { # <word>
  if [[ $1 =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]]; then printf '%s' "$1"; else printf '%s' "${1@Q}"; fi
}

# The printed command can be copied into a shell whose environment has the values of the names.
print_command() { # <command...>
  local word line=''
  if [[ $RUNTIME == apptainer ]]; then
    for word in "${PASSED_NAMES[@]}"; do printf 'APPTAINERENV_%s="$%s" ' "$word" "$word"; done
    for word in "${PASSED_VALUES[@]}"; do printf 'APPTAINERENV_%s=%s ' "${word%%=*}" "$(_quoted "${word#*=}")"; done
  fi
  for word in "$@"; do line+=" $(_quoted "$word")"; done
  printf '%s\n' "${line# }"
}

# A job of ours: it gets the arguments that are no paths, and reads no input. An engine without standard input cannot
# determine the size of the terminal.
run_in_container() { # <tools|jobs> <title> <command...>
  local argument size inner=() init=()
  TERMINAL=(--sig-proxy=false)
  for argument in "${ARGUMENTS[@]}"; do
    if [[ $argument != @(RUNTIME|LAUNCHER)=* ]] && ! is_path_setting "${argument%%=*}"; then inner+=("$argument"); fi
  done
  if [[ -t 1 && -t 2 ]]; then
    TERMINAL+=(--tty)
    if size=$(stty size 2>/dev/null </dev/tty) && [[ $size =~ ^([1-9][0-9]*)\ ([1-9][0-9]*)$ ]]; then
      export LINES=${BASH_REMATCH[1]} COLUMNS=${BASH_REMATCH[2]}
    fi
  fi
  if [[ $RUNTIME == podman ]] && ! has_init; then init=("$START" --init); fi
  container_command "$1" "$2" "${init[@]}" "${@:3}" "${inner[@]}"
  if [[ $is_dry_run == true ]]; then print_command "${COMMAND[@]}"; else _supervise; fi
}

# A person's shell, or a command with piped input. The terminal is attached to the container, and signals come from it.
open_in_container() { # <title> <command...>
  TERMINAL=(--interactive)
  if [[ -t 0 && -t 1 ]]; then TERMINAL+=(--tty); fi
  container_command jobs "$@"
  if [[ $is_dry_run == true ]]; then print_command "${COMMAND[@]}"; else exec "${COMMAND[@]}"; fi
}
