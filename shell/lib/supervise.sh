#!/usr/bin/env bash
# Start a container, hand on signals, leave no container behind, return the exit code of the job. Sourced.
#
# The engine's client runs in a process group of its own and forwards nothing by itself, so that each signal arrives in
# the container once: from here. What ends the client alone (a kill -9) ends the container too.
#
# Usage:  source shell/lib/supervise.sh; run_in_container <tools|jobs> <title> <command...>; open_in_container <title> <command...>
# Reads:  RUNTIME, PLATFORM; mounts of shell/lib/mounts.sh; is_dry_run
# Writes: nothing of its own; with a dry run the command on stdout
# Exits:  not itself; its functions return the exit code of the job, 128 + signal where one ended it
set -Eeuo pipefail

# shellcheck source=shell/lib/container.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/container.sh"

GRACE_SECONDS=${GRACE_SECONDS:-90}

_container='' _client='' _signal=''

# A container that is not there yet, or no more, cannot be told; then its client can. apptainer, outside of the
# terminal's group as it is here, hands on each signal to what it runs (starter, SetSignalPropagation).
_hand_on() { # <signal>
  _signal=$1
  if [[ -z $_client ]]; then return; fi
  if [[ $RUNTIME == apptainer ]] || ! "$RUNTIME" kill --signal "$1" "$_container" &>/dev/null; then
    kill -s "$1" "$_client" 2>/dev/null || true # it may have ended by itself
  fi
}

_group_lives() { kill -0 -- "-$_client" 2>/dev/null; }

# Does nothing after a good end: --rm has removed the container, and apptainer's processes are gone.
_leave_nothing() {
  local waited=0
  if [[ $RUNTIME == apptainer ]]; then
    if [[ -z $_client ]] || ! _group_lives; then return; fi
    kill -s TERM -- "-$_client" 2>/dev/null || true # it may end by itself meanwhile
    while _group_lives && ((waited < GRACE_SECONDS)); do
      sleep 1
      waited=$((waited + 1))
    done
    kill -s KILL -- "-$_client" 2>/dev/null || true # gone, as it should be
  elif "$RUNTIME" container inspect "$_container" &>/dev/null; then
    "$RUNTIME" stop -t "$GRACE_SECONDS" "$_container" &>/dev/null || true # it may end, and be removed, by itself
    "$RUNTIME" rm --force "$_container" &>/dev/null || true               # --rm may have been quicker
  fi
}

_supervise() { # <command...>
  local code=0 name
  trap _leave_nothing EXIT
  for name in INT TERM HUP; do
    # shellcheck disable=SC2064 # now, while `name` is this one
    trap "_hand_on $name" "$name" # stays ignored where it is (nohup)
  done
  # job control gives the client its own group, and Ctrl-C its meaning there: a shell's background has it ignored
  set -m
  "$@" </dev/null &
  _client=$!
  set +m
  if [[ -n $_signal ]]; then _hand_on "$_signal"; fi
  while true; do
    _signal='' code=0
    wait "$_client" || code=$?
    if [[ -z $_signal ]]; then break; fi # else it was the signal that ended the waiting
  done
  trap '' INT TERM HUP
  _leave_nothing
  trap - EXIT INT TERM HUP
  return "$code"
}

# Lines of the terminal, which an engine without its own input does not know.
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

# To be copied into a shell: the values that the names stand for must be in its environment.
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

# A job of ours, which reads nothing.
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

# A person's shell, or his command with what is piped into it: his terminal is the container's, and signals come from it.
open_in_container() { # <title> <command...>
  local terminal='--interactive'
  if [[ -t 0 && -t 1 ]]; then terminal+=' --tty'; fi
  _compose jobs "$1" "$terminal" "${@:2}"
  if [[ $is_dry_run == true ]]; then print_command "${COMMAND[@]}"; else exec "${COMMAND[@]}"; fi
}

# Started and not sourced, there is nothing else that it could do.
if [[ ${BASH_SOURCE[0]} == "$0" ]]; then sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; fi
