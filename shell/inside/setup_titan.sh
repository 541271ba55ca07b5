#!/usr/bin/env bash
# Print the Python that runs torchtitan; make or repair its environment for it first.
#
# torchtitan trains with the PyTorch of the suite: that of .venv, which on a GPU is the PyTorch of the image. The environment
# holds torchtitan and the packages that it imports, about 60 MB, and sees all others.
#
# Usage:  shell/inside/setup_titan.sh
# Reads:  titan-requirements.txt, .venv (in our images TPRIMAT_VENV), TPRIMAT_IN_CONTAINER; pip's own settings, proxies
# Writes: .venv-titan and .venv-titan.lock (in our images beside TPRIMAT_VENV); one path on stdout
# Exits:  0; 1 something is missing or could not be installed; 2 bad argument
set -Eeuo pipefail

# shellcheck source=shell/lib/environment.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../lib/environment.sh"
# shellcheck source=shell/lib/install.sh
source "$ROOT/shell/lib/install.sh"

TITAN_VENV=$VENV-titan
REQUIREMENTS=$ROOT/titan-requirements.txt

# The other PyTorch of a renewed .venv is seen at once; what is installed here does not depend on it.
is_fresh() { is_stamped "$TITAN_VENV" "$(stamp_of "$TITAN_VENV" "$REQUIREMENTS")"; }

require_titan() {
  require_imports titan "$TITAN_VENV/bin/python" torch "one that torchtitan 0.2.2 can be imported with: a newer image"
}

# PyTorch may be among the packages of .venv, of the system or of an environment that .venv names in a .pth file: whatever
# .venv sees is seen here.
make_environment() {
  local options=()
  if grep -q '^include-system-site-packages = true' "$VENV/pyvenv.cfg"; then options=(--system-site-packages); fi
  say "making ${TITAN_VENV##*/} for torchtitan (about 60 MB, once)"
  "$PYTHON" -m venv --clear "${options[@]}" "$TITAN_VENV" >&2 ||
    die titan "venv: could not make $TITAN_VENV; the reason is above"
  printf 'import site; site.addsitedir("%s")\n' "$(packages_of "$PYTHON")" \
    >"$(packages_of "$TITAN_VENV/bin/python")/suite.pth"
  run_pip titan "$TITAN_VENV/bin/python" "$REQUIREMENTS" --ignore-installed --no-deps -r "$REQUIREMENTS" || exit
  require_titan
  stamp_of "$TITAN_VENV" "$REQUIREMENTS" >"$TITAN_VENV/.stamp"
}

main() {
  show_help_if_asked "$@"
  if (($#)); then say "error: titan: got argument '$1', wanted --help or none" && exit 2; fi
  if ! is_fresh; then
    if [[ -n ${TPRIMAT_IN_CONTAINER:-} ]]; then
      die titan "the image has no torchtitan as titan-requirements.txt names it; run ./shell/build.sh, or use RUNTIME=native"
    fi
    if [[ ! -x $PYTHON ]]; then die titan "got no $PYTHON, wanted the suite's environment; run ./shell/setup.sh"; fi
    take_lock "$TITAN_VENV" "setup of torchtitan"
    is_fresh || make_environment
  elif [[ -n ${TPRIMAT_IN_CONTAINER:-} ]]; then
    require_titan # made before the image had a trainer
  fi
  printf '%s\n' "$TITAN_VENV/bin/python"
}

main "$@"
