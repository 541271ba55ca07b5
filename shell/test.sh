#!/usr/bin/env bash
# Run every check: linters first, then the tests. A failure does not stop the others; the last line lists what failed.
#
# Usage:   ./shell/test.sh [KEY=VALUE ...] [pytest arguments]
#          KEY=VALUE, e.g. PLATFORM=cpu, goes into the environment; SYSTEM_TESTS=1 also runs the tests that install
#          packages of Debian and start real containers (tests/system), about 15 minutes; FRESH_TESTS=1 those that make
#          every environment from nothing and train with each framework (tests/fresh), about 15 minutes
# Reads:   the checkout; settings of ruff, mypy and pytest in pyproject.toml
# Writes:  .venv through shell/setup.sh --dev; caches of the tools
# Exits:   0 all passed, 1 a check failed or could not be set up
# Example: ./shell/test.sh tests/utils -k schema
set -Eeuo pipefail

# shellcheck source=shell/lib/environment.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"

failed=()

check() { # <name> <command...>
  local name=$1
  shift
  printf '== %s\n' "$name" >&2
  "$@" || failed+=("$name")
}

main() {
  local scripts=() arguments=() argument names
  show_help_if_asked "$@"
  for argument in "$@"; do
    if [[ $argument == [A-Z]*=* ]]; then export "${argument?}"; else arguments+=("$argument"); fi
  done
  "$ROOT/shell/setup.sh" --dev || exit 1
  cd -- "$ROOT"
  # Two workers with one thread each: more would compete for the cores of a small machine. A file stays with one worker,
  # because its module fixtures (trained curves) are expensive. tests/conftest.py puts the long files first.
  export OMP_NUM_THREADS=1
  mapfile -t -d '' scripts < <(find . -path './.venv*' -prune -o -path ./output -prune -o -name '*.sh' -print0)
  scripts+=(.ci/run tprimat)

  check "ruff check" "$PYTHON" -m ruff check
  check "ruff format" "$PYTHON" -m ruff format --check
  check "mypy" "$PYTHON" -m mypy
  check "shellcheck" .venv/bin/shellcheck --external-sources "${scripts[@]}"
  check "shfmt" .venv/bin/shfmt -i 2 -ci -d "${scripts[@]}"
  check "pytest" "$PYTHON" -m pytest -n 2 --no-loadscope-reorder --dist loadfile "${arguments[@]}"

  if ((${#failed[@]})); then
    printf -v names ', %s' "${failed[@]}"
    printf 'failed: %s\n' "${names#, }"
    exit 1
  fi
  printf 'all checks passed\n'
}

main "$@"
