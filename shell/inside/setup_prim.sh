#!/usr/bin/env bash
# Print the Python that runs Primus on a machine without a GPU; make or repair .venv-prim for it first.
#
# Primus needs the torch of .venv and some packages more. .venv-prim has those packages and sees the ones of .venv. On AMD
# GPUs Primus runs with the Python of AMD's container, to which nothing is added.
#
# Usage:  shell/inside/setup_prim.sh
# Reads:  prim-requirements.txt, .venv, PATH; pip's own settings, proxies
# Writes: .venv-prim, .venv-prim.lock; one path on stdout
# Exits:  0; 1 something is missing or could not be installed; 2 bad argument
set -Eeuo pipefail

# shellcheck source=shell/lib/environment.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../lib/environment.sh"
# shellcheck source=shell/lib/install.sh
source "$ROOT/shell/lib/install.sh"

PRIM_VENV=$ROOT/.venv-prim
REQUIREMENTS=$ROOT/prim-requirements.txt

prim_stamp() {
  { "$PRIM_VENV/bin/python" -V && "$PRIM_VENV/bin/python" -c 'import torch; print(torch.__version__)' && cat -- "$REQUIREMENTS"; } \
    2>/dev/null | sha256sum
}

is_fresh() { is_stamped "$PRIM_VENV" "$(prim_stamp)"; }

# torchrun of .venv would start the ranks with the Python of .venv. The stamp is written last, so that an environment whose
# setup was interrupted is made anew.
make_environment() {
  local packages
  say "making .venv-prim for Primus (about 1 GB, once)"
  "$PYTHON" -m venv --clear "$PRIM_VENV" >&2 || die prim "venv: could not make $PRIM_VENV; the reason is above"
  packages=$(packages_of "$PYTHON")
  printf '%s\n' "$packages" >"$(packages_of "$PRIM_VENV/bin/python")/suite.pth"
  run_pip prim "$PRIM_VENV/bin/python" "$REQUIREMENTS" -r "$REQUIREMENTS" || exit
  printf '#!/bin/sh\nexec "%s" -m torch.distributed.run "$@"\n' "$PRIM_VENV/bin/python" >"$PRIM_VENV/bin/torchrun"
  chmod +x "$PRIM_VENV/bin/torchrun"
  prim_stamp >"$PRIM_VENV/.stamp"
}

main() {
  show_help_if_asked "$@"
  if (($#)); then say "error: prim: got argument '$1', wanted --help or none" && exit 2; fi
  if ! is_fresh; then
    if [[ ! -x $PYTHON ]]; then die prim "got no $PYTHON, wanted the suite's environment; run ./shell/setup.sh"; fi
    if ! type -P g++ >/dev/null || ! type -P make >/dev/null; then
      die prim "Megatron-LM of Primus compiles its data set helper; wanted g++ and make on PATH; install them"
    fi
    take_lock "$PRIM_VENV" "setup of Primus"
    is_fresh || make_environment
  fi
  printf '%s\n' "$PRIM_VENV/bin/python"
}

main "$@"
