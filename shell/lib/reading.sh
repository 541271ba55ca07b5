#!/usr/bin/env bash
# Start the commands that read results: in .venv if it is there, else in a small environment without torch. Sourced.
#
# Usage:  source shell/lib/environment.sh; source shell/lib/reading.sh; start_reading evaluate.validate "$@"
# Reads:  ROOT, VENV, PYTHON, PYTHONPATH
# Writes: PYTHON; PYTHONPATH and PYTHONSAFEPATH (exported)
# Exits:  start_reading with the code of the command; 1 if the environment could not be made
set -Eeuo pipefail

use_reading_environment() { # <arguments of the command...>; sets PYTHON
  local more=()
  if "$PYTHON" -c 'import jinja2, scipy' &>/dev/null; then return; fi
  case "$*" in
    *parquet*) more=(pandas pyarrow) ;;
    evaluate.frame* | *csv*) more=(pandas) ;;
  esac
  PYTHON=$("$ROOT/shell/inside/setup_evaluate.sh" "${more[@]}") || exit
}

# The paths on the command line are relative to the caller, so the working directory does not change. A `utils` folder in
# it must not shadow ours (safe path: Python 3.11 and later).
start_reading() { # <module> <arguments...>
  use_reading_environment "$@"
  export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH} PYTHONSAFEPATH=1
  exec "$PYTHON" -m "$@"
}
