#!/usr/bin/env bash
# Run the checks: linters first, then the tests. A failure does not stop the others; the last line lists what failed.
#
# Usage:   ./shell/test.sh [--all] [KEY=VALUE ...] [pytest arguments]
#          Without --all: the quick part, at most 8 minutes on two cores after installation. With --all: every test, also
#          real containers and environments made from nothing (they need Podman and debootstrap, and are skipped
#          without): about an hour
#          KEY=VALUE, e.g. PLATFORM=cpu, goes into the environment
# Reads:   the checkout; settings of ruff, mypy and pytest in pyproject.toml
# Writes:  .venv through shell/setup.sh --dev; caches of the tools
# Exits:   0 all passed, 1 a check failed or could not be set up
# Example: ./shell/test.sh tests/utils -k schema
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit

failed=''

check() { # <name> <command...>
  printf '== %s\n' "$1" >&2
  "${@:2}" || failed+=${failed:+, }$1
}

main() {
  local scripts=() arguments=() argument is_all="" pytest
  ARGUMENTS=("$@")
  if take_option --all; then is_all=1; fi
  for argument in "${ARGUMENTS[@]}"; do
    if [[ $argument == [A-Z]*=* ]]; then export "${argument?}"; else arguments+=("$argument"); fi
  done
  "$ROOT/shell/setup.sh" --dev || exit 1
  cd -- "$ROOT"
  export OMP_NUM_THREADS=1      # more would compete for the cores of a small machine
  unset PYTHONDONTWRITEBYTECODE # thousands of processes would compile our modules, each for itself
  mapfile -t -d '' scripts < <(find . -path './.venv*' -prune -o -path ./output -prune -o -name '*.sh' -print0)
  scripts+=(.ci/run tprimat)

  check "ruff check" "$PYTHON" -m ruff check
  check "ruff format" "$PYTHON" -m ruff format --check
  check "mypy" "$PYTHON" -m mypy
  # A path in `source` that begins with a variable or a command starts at the folder of the script.
  check "shellcheck" .venv/bin/shellcheck --external-sources --source-path=SCRIPTDIR:SCRIPTDIR/..:SCRIPTDIR/../.. "${scripts[@]}"
  check "shfmt" .venv/bin/shfmt -i 2 -ci -d "${scripts[@]}"
  # A file stays with one worker: its module fixtures (trained curves) are expensive.
  pytest=("$PYTHON" -m pytest --no-loadscope-reorder --dist loadfile)
  if [[ ! $is_all ]]; then
    check "tests (quick part)" "${pytest[@]}" -n 2 -m "not full" "${arguments[@]}"
    printf 'this was the quick part; --all adds:\n'
    grep -rzhoP --include='*.py' 'mark\.full\(\s*"\K[^"]+' tests | tr '\0' '\n' | sort | sed 's/^/  /'
  else
    check "tests" "${pytest[@]}" -n 3 "${arguments[@]}" # making images and environments mostly waits for the disk
  fi

  if [[ $failed ]]; then
    printf 'failed: %s\n' "$failed"
    exit 1
  fi
  printf 'all checks passed\n'
}

main "$@"
