#!/usr/bin/env bash
# Print a Python for the commands that read results; make or repair .venv-evaluate for it if no other has the packages.
#
# A python3 on PATH that can import all packages is taken as it is, so nothing is installed on a machine without a network
# that has them. .venv-evaluate has no torch.
#
# Usage:  shell/inside/setup_evaluate.sh [pandas] [pyarrow]   a Python that also has these: for tables, for Parquet
# Reads:  evaluate-requirements.txt, cpu-requirements.txt (version of pyarrow), PATH; pip's own settings, proxies
# Writes: .venv-evaluate, .venv-evaluate.lock; one path on stdout
# Exits:  0; 1 no Python fits, or something could not be installed; 2 bad argument
set -Eeuo pipefail

# shellcheck source=shell/lib/environment.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../lib/environment.sh"
# shellcheck source=shell/lib/install.sh
source "$ROOT/shell/lib/install.sh"

EVALUATE_VENV=$ROOT/.venv-evaluate
REQUIREMENTS=$ROOT/evaluate-requirements.txt

evaluate_stamp() {
  { "$EVALUATE_VENV/bin/python" -V && cat -- "$REQUIREMENTS"; } 2>/dev/null | sha256sum
}

is_fresh() { [[ -f $EVALUATE_VENV/.stamp && $(<"$EVALUATE_VENV/.stamp") == "$(evaluate_stamp)" ]]; }

PACKAGES=(jinja2 matplotlib numpy scipy tqdm)

has_packages() { # <python> <package...>
  "$1" -c 'import importlib.util as u, sys
sys.exit(sys.version_info < (3, 10) or not all(map(u.find_spec, sys.argv[1:])))' "${@:2}" 2>/dev/null
}

# The stamp is written last, so that an environment whose setup was interrupted is made anew.
make_environment() {
  local python
  python=$(find_python) || exit
  say "making .venv-evaluate with $("$python" -V) of $python (about 300 MB, once)"
  "$python" -m venv --clear "$EVALUATE_VENV" >&2 || die evaluate "venv: could not make $EVALUATE_VENV; the reason is above"
  # Python compiles what it imports; compiling all would add 100 MB.
  run_pip evaluate "$EVALUATE_VENV/bin/python" "$REQUIREMENTS" --no-compile -r "$REQUIREMENTS" || exit
  evaluate_stamp >"$EVALUATE_VENV/.stamp"
}

# Not part of the stamp: an environment with it serves every command.
add_pyarrow() {
  take_lock "$EVALUATE_VENV" "setup of the environment for reading results"
  say "adding pyarrow to .venv-evaluate (about 150 MB, once)"
  run_pip evaluate "$EVALUATE_VENV/bin/python" "$ROOT/cpu-requirements.txt" --no-compile pyarrow || exit
}

main() {
  local python argument
  show_help_if_asked "$@"
  for argument in "$@"; do
    if [[ $argument != pandas && $argument != pyarrow ]]; then
      say "error: evaluate: got argument '$argument', wanted pandas, pyarrow, --help or none" && exit 2
    fi
    PACKAGES+=("$argument")
  done
  if ! is_fresh; then
    python=$(type -P python3) || python=''
    if [[ $python ]] && has_packages "$python" "${PACKAGES[@]}"; then printf '%s\n' "$python" && exit; fi
    take_lock "$EVALUATE_VENV" "setup of the environment for reading results"
    is_fresh || make_environment
  fi
  has_packages "$EVALUATE_VENV/bin/python" "${PACKAGES[@]}" || add_pyarrow
  printf '%s\n' "$EVALUATE_VENV/bin/python"
}

main "$@"
