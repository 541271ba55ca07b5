#!/usr/bin/env bash
# Compare the results in one or more folders.
#
# Usage:  evaluate/compare.sh output/ [more folders] [--output DIR]     (--help for more)
# Reads:  train_*.json below the folders
# Writes: compare.json, compare.md, compare.png into DIR (default: the first folder)
# Exits:  0 compared; 1 no result is ok and valid, or writing failed; 2 bad input or no result found
set -Eeuo pipefail

main() {
  local root python
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  python=$root/.venv/bin/python
  [[ -x $python ]] || python=python3
  # The folders on the command line are relative to the caller, so the working folder stays as it is.
  # Safe path: a `utils` folder that happens to be there is not ours (Python 3.11 and later).
  export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONSAFEPATH=1
  exec "$python" -m evaluate.compare "$@"
}

main "$@"
