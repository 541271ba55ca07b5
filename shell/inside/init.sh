#!/usr/bin/env bash
# Process 1 of a container whose engine brings none: starts a command, hands on signals, returns its exit code.
#
# The kernel drops a signal to process 1 that it has no handler for: a TERM while our scripts start would be lost.
#
# Usage:  shell/inside/init.sh COMMAND [ARGUMENT ...]
# Reads:  nothing
# Writes: what the command writes
# Exits:  with the exit code of the command, 128 + signal where one ended it; 2 without a command
set -Eeuo pipefail

child='' told=''

hand_on() { # <signal>
  told=$1
  if [[ -n $child ]]; then kill -s "$1" "$child" 2>/dev/null || true; fi # it may have ended by itself
}

main() {
  local code
  case ${1:-} in
    -h | --help)
      sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit
      ;;
  esac
  trap 'hand_on INT' INT
  trap 'hand_on TERM' TERM
  trap 'hand_on HUP' HUP
  if (($# == 0)); then
    echo "error: init: got no command; see shell/inside/init.sh" >&2
    exit 2
  fi
  # job control gives Ctrl-C its meaning there: a shell's background has it ignored
  set -m
  "$@" <&0 &
  child=$!
  set +m
  if [[ -n $told ]]; then hand_on "$told"; fi
  while true; do
    told='' code=0
    wait "$child" || code=$?
    if [[ -z $told ]]; then exit "$code"; fi # else it was the signal that ended the waiting
  done
}

main "$@"
