#!/usr/bin/env bash
# Run a command in a container with the variables of the private file that the run scripts have lent to it.
#
# A variable that is passed on the command line of an engine is shown by `docker inspect`; one from this file is not.
#
# Usage:  shell/inside/private.sh COMMAND [ARGUMENT ...]
# Reads:  /run/tprimat/environment: NAME=VALUE, each ended by a NUL; TPRIMAT_SYSROOT (tests: prefix of /run)
# Writes: what the command writes
# Exits:  with the exit code of the command
set -Eeuo pipefail

while IFS= read -r -d '' assignment; do export "${assignment?}"; done <"${TPRIMAT_SYSROOT:-}/run/tprimat/environment"
exec "$@"
