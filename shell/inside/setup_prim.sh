#!/usr/bin/env bash
# Print the Python that runs Primus on a machine without a GPU; make or repair .venv-prim for it first.
#
# Primus needs the torch of .venv and some packages more. .venv-prim has those packages and sees the ones of .venv. On AMD
# GPUs, and in any container, Primus runs with the Python of AMD's container, to which nothing is added. Either must import
# what Primus imports.
#
# Usage:  shell/inside/setup_prim.sh
# Reads:  prim-requirements.txt, .venv, PATH, PRIMUS_PATH, TPRIMAT_IN_CONTAINER; pip's own settings, proxies
# Writes: .venv-prim, .venv-prim.lock; one path on stdout
# Exits:  0; 1 something is missing or could not be installed; 2 bad argument
set -Eeuo pipefail

# shellcheck source=shell/lib/environment.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../lib/environment.sh"
# shellcheck source=shell/lib/install.sh
source "$ROOT/shell/lib/install.sh"

PRIM_VENV=$ROOT/.venv-prim
REQUIREMENTS=$ROOT/prim-requirements.txt
PRIMUS=${PRIMUS_PATH:-/workspace/Primus}

prim_stamp() {
  { "$PRIM_VENV/bin/python" -V && "$PRIM_VENV/bin/python" -c 'import torch; print(torch.__version__)' && cat -- "$REQUIREMENTS"; } \
    2>/dev/null | sha256sum
}

is_fresh() { is_stamped "$PRIM_VENV" "$(prim_stamp)"; }

# As a rank of its launcher, on the CPU. Primus imports loguru, first of its requirements.txt, only when it begins to log
# (primus/core/utils/logger.py).
require_primus() { # <python>
  local folders=$PRIMUS:${BACKEND_PATH:-$PRIMUS/third_party/Megatron-LM}
  LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 require_imports prim "$1" torch "all that Primus in $PRIMUS imports: rocm/primus" \
    'import loguru, pretrain_gpt, primus.cli.main, primus.backends.megatron' "$ROOT/train/prim/on_cpu:$folders"
}

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
  require_primus "$PRIM_VENV/bin/python"
  prim_stamp >"$PRIM_VENV/.stamp"
}

# The container's Python may have either name.
container_python() {
  first_python 'import torch' < <(type -aP python3 python) ||
    die prim "got no Python with torch on PATH, wanted that of AMD's container; run inside rocm/primus, or use RUNTIME=native"
}

main() {
  local python=$PRIM_VENV/bin/python
  show_help_if_asked "$@"
  if (($#)); then say "error: prim: got argument '$1', wanted --help or none" && exit 2; fi
  if [[ -n ${TPRIMAT_IN_CONTAINER:-} ]]; then
    python=$(container_python) || exit
    require_primus "$python"
  elif ! is_fresh; then
    if [[ ! -x $PYTHON ]]; then die prim "got no $PYTHON, wanted the suite's environment; run ./shell/setup.sh"; fi
    if ! type -P g++ >/dev/null || ! type -P make >/dev/null; then
      die prim "Megatron-LM of Primus compiles its data set helper; wanted g++ and make on PATH; install them"
    fi
    take_lock "$PRIM_VENV" "setup of Primus"
    is_fresh || make_environment
  fi
  printf '%s\n' "$python"
}

main "$@"
