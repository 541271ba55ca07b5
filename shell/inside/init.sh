#!/usr/bin/env bash
# Process 1 of a container whose engine has no init: start a command, forward signals, return its exit code.
#
# The kernel drops a signal to process 1 that has no handler for it: a TERM while our scripts start would be lost.
#
# Usage:  shell/inside/init.sh COMMAND [ARGUMENT ...]
# Reads:  nothing
# Writes: what the command writes
# Exits:  with the exit code of the command, 128 + signal if a signal ended it; 2 without a command
set -Eeuo pipefail

child='' received=''

forward() { # <signal>
  received=$1
  if [[ -n $child ]]; then kill -s "$1" "$child" 2>/dev/null || true; fi # it may have ended already
}

if (($# == 0)); then
  echo "error: init: got no command; see shell/inside/init.sh" >&2
  exit 2
fi
trap 'forward INT' INT
trap 'forward TERM' TERM
trap 'forward HUP' HUP
# without job control, a shell starts its background jobs with Ctrl-C ignored
set -m
"$@" <&0 &
child=$!
set +m
if [[ -n $received ]]; then forward "$received"; fi
while true; do
  received='' code=0
  wait "$child" || code=$?
  if [[ -z $received ]]; then exit "$code"; fi # else the signal only ended the wait
done
