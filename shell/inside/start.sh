#!/usr/bin/env bash
# Start a command in a container, with the variables of the private file where the run scripts have lent one.
#
# A variable that is passed on the command line of an engine is shown by `docker inspect`; one from this file is not.
# --init is for an engine without an init, where this is process 1: the kernel drops a signal to process 1 that has no
# handler for it, so a TERM while our scripts start would be lost. The command gets each signal then.
#
# Usage:  shell/inside/start.sh [--init] COMMAND [ARGUMENT ...]
# Reads:  /run/tprimat/environment: NAME=VALUE, each ended by a NUL; TPRIMAT_SYSROOT (tests: prefix of /run)
# Writes: what the command writes
# Exits:  with the exit code of the command; with --init, 128 + signal if a signal ended it
set -Eeuo pipefail

child='' received='' private=${TPRIMAT_SYSROOT:-}/run/tprimat/environment

forward() { # <signal>
  received=$1
  if [[ -n $child ]]; then kill -s "$1" "$child" 2>/dev/null || true; fi # it may have ended already
}

if [[ -f $private ]]; then
  while IFS= read -r -d '' assignment; do export "${assignment?}"; done <"$private"
fi
if [[ $1 != --init ]]; then exec "$@"; fi
trap 'forward INT' INT
trap 'forward TERM' TERM
trap 'forward HUP' HUP
# without job control, a shell starts its background jobs with Ctrl-C ignored
set -m
"${@:2}" <&0 &
child=$!
set +m
if [[ -n $received ]]; then forward "$received"; fi
while true; do
  received='' code=0
  wait "$child" || code=$?
  if [[ -z $received ]]; then exit "$code"; fi # else the signal only ended the wait
done
