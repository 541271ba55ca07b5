#!/usr/bin/env bash
# A container from start to end: signals are forwarded, no container is left behind, the exit code is the job's. Sourced.
#
# The engine's client runs in its own process group and forwards no signals, so that each signal reaches the container
# once: from here. If only the client ends (kill -9), the container is stopped too.
#
# Usage:  source shell/lib/supervise.sh
#         run_in_container <tools|jobs> <title> <command...>; open_in_container <title> <command...>
# Reads:  RUNTIME, PLATFORM; mounts of shell/lib/mounts.sh; is_dry_run
# Writes: nothing; with a dry run the command on stdout
# Exits:  run_in_container returns the exit code of the job, 128 + signal if a signal ended it; open_in_container replaces
#         this shell
set -Eeuo pipefail

# shellcheck source=shell/lib/container.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/container.sh"

GRACE_SECONDS=${GRACE_SECONDS:-90}

_container='' _client='' _signal=''

# If the container does not exist yet, or no longer, its client gets the signal. apptainer, which is here outside the
# terminal's process group, forwards each signal to what it runs (starter, SetSignalPropagation).
_forward() { # <signal>
  _signal=$1
  if [[ -z $_client ]]; then return; fi
  if [[ $RUNTIME == apptainer ]] || ! "$RUNTIME" kill --signal "$1" "$_container" &>/dev/null; then
    kill -s "$1" "$_client" 2>/dev/null || true # it may have ended already
  fi
}

_group_lives() { kill -0 -- "-$_client" 2>/dev/null; }

# Does nothing after a normal end: --rm has removed the container, and apptainer's processes are gone.
_leave_nothing() {
  local waited=0
  if [[ $RUNTIME == apptainer ]]; then
    if [[ -z $_client ]] || ! _group_lives; then return; fi
    kill -s TERM -- "-$_client" 2>/dev/null || true # it may have ended already
    while _group_lives && ((waited < GRACE_SECONDS)); do
      sleep 1
      waited=$((waited + 1))
    done
    kill -s KILL -- "-$_client" 2>/dev/null || true # normally it is gone
  elif "$RUNTIME" container inspect "$_container" &>/dev/null; then
    "$RUNTIME" stop -t "$GRACE_SECONDS" "$_container" &>/dev/null || true # it may have ended, and --rm removed it
    "$RUNTIME" rm --force "$_container" &>/dev/null || true               # --rm may have removed it
  fi
}

_supervise() { # <command...>
  local code=0 name
  trap _leave_nothing EXIT
  for name in INT TERM HUP; do
    # shellcheck disable=SC2064 # expand `name` now
    trap "_forward $name" "$name" # an ignored signal (nohup) stays ignored
  done
  # job control gives the client its own process group; without it, background jobs start with Ctrl-C ignored
  set -m
  "$@" </dev/null &
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

# The size of the terminal, which an engine without standard input cannot determine.
_measure_terminal() {
  local size
  if size=$(stty size 2>/dev/null </dev/tty) && [[ $size =~ ^([1-9][0-9]*)\ ([1-9][0-9]*)$ ]]; then
    export LINES=${BASH_REMATCH[1]} COLUMNS=${BASH_REMATCH[2]}
  fi
}

_is_engine() { [[ $RUNTIME == docker || $RUNTIME == podman ]]; }

_compose() { # <tools|jobs> <title> <engine's terminal options, space separated> <command...>
  local options
  read -ra options <<<"$3"
  _container=tprimat-$2-$$-$RANDOM
  pass_environment "$RUNTIME" "$PLATFORM"
  container_command "$RUNTIME" "$PLATFORM" "$1" "$_container" "${@:4}"
  if _is_engine && ((${#options[@]})); then COMMAND=("${COMMAND[@]:0:2}" "${options[@]}" "${COMMAND[@]:2}"); fi
}

_quoted() { # <word>
  if [[ $1 =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]]; then printf '%s' "$1"; else printf '%s' "${1@Q}"; fi
}

# The printed command can be copied into a shell whose environment has the values of the names.
print_command() { # <command...>
  local word
  if [[ $RUNTIME == apptainer ]]; then
    for word in "${PASSED_NAMES[@]}"; do printf 'APPTAINERENV_%s="$%s" ' "$word" "$word"; done
    for word in "${PASSED_VALUES[@]}"; do printf 'APPTAINERENV_%s=%s ' "${word%%=*}" "$(_quoted "${word#*=}")"; done
  fi
  _quoted "$1"
  for word in "${@:2}"; do printf ' %s' "$(_quoted "$word")"; done
  printf '\n'
}

# A job of ours. It reads no input.
run_in_container() { # <tools|jobs> <title> <command...>
  local terminal=--sig-proxy=false
  if [[ -t 1 && -t 2 ]]; then
    terminal+=' --tty'
    _measure_terminal
  fi
  local init=()
  if [[ $RUNTIME == podman ]] && ! has_init podman; then init=(shell/inside/init.sh); fi
  _compose "$1" "$2" "$terminal" "${init[@]}" "${@:3}"
  if [[ $is_dry_run == true ]]; then print_command "${COMMAND[@]}"; else _supervise "${COMMAND[@]}"; fi
}

# A person's shell, or a command with piped input. The terminal is attached to the container, and signals come from it.
open_in_container() { # <title> <command...>
  local terminal='--interactive'
  if [[ -t 0 && -t 1 ]]; then terminal+=' --tty'; fi
  _compose jobs "$1" "$terminal" "${@:2}"
  if [[ $is_dry_run == true ]]; then print_command "${COMMAND[@]}"; else exec "${COMMAND[@]}"; fi
}
