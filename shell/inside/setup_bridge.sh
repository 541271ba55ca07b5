#!/usr/bin/env bash
# Print the Python that runs Megatron-Bridge's ranks. On a machine without a GPU, make or repair .venv-bridge for it first.
#
# Megatron-Bridge 0.6 needs Python 3.12 and other versions of transformers and megatron-core than the suite may have, so
# it has a separate environment. On NVIDIA GPUs, and in any container, its Python is that of the NeMo Framework container,
# to which nothing is added. Either must import what train/train_bridge.py imports.
#
# Usage:  shell/inside/setup_bridge.sh [PLATFORM=nvd|cpu] [KEY=VALUE ...]
# Reads:  bridge-requirements.txt, PLATFORM, PATH, PYENV_ROOT, TPRIMAT_IN_CONTAINER; pip's own settings, proxies
# Writes: .venv-bridge, .venv-bridge.lock; one path on stdout
# Exits:  0; 1 no Python fits, or something could not be installed; 2 bad argument, or a platform without Megatron-Bridge
set -Eeuo pipefail

# shellcheck source=shell/lib/environment.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../lib/environment.sh"
# shellcheck source=shell/lib/install.sh
source "$ROOT/shell/lib/install.sh"

VENV=$ROOT/.venv-bridge
REQUIREMENTS=$ROOT/bridge-requirements.txt

is_fresh() { is_stamped "$VENV" "$(stamp_of "$VENV" "$REQUIREMENTS")"; }

python_312() {
  local python
  python=$(python_of_version 3.12) ||
    die bridge "got ${python:-no python3} on PATH, wanted Python 3.12 with its venv module (megatron-bridge 0.6.2 takes no" \
      "other); install python3.12, or leave bridge out: FRAMEWORK=mega,hf"
  printf '%s\n' "$python"
}

# The first release with megatron.bridge.data.base (docs/releases/software-versions.md of Megatron-Bridge).
require_megatron_bridge() { # <python>
  require_imports bridge "$1" megatron-bridge "0.6.0 or later with all that it imports: nvcr.io/nvidia/nemo:26.08"
}

make_environment() {
  local python extra=()
  python=$(python_312) || exit
  say "[1/3] making .venv-bridge with $("$python" -V) of $python (2 GB with the CPU build of PyTorch, 5.5 GB with that for CUDA; once)"
  "$python" -m venv --clear "$VENV" >&2 || die bridge "venv: could not make $VENV; the reason is above"
  if has_cpu_wheels "$python"; then extra=(--extra-index-url "$CPU_WHEELS"); fi
  say "[2/3] torch and numpy"
  run_pip bridge "$VENV/bin/python" "$REQUIREMENTS" "${extra[@]}" torch numpy || exit
  say "[3/3] packages of bridge-requirements.txt"
  run_pip bridge "$VENV/bin/python" "$REQUIREMENTS" --no-deps -r "$REQUIREMENTS" || exit
  require_megatron_bridge "$VENV/bin/python"
  stamp_of "$VENV" "$REQUIREMENTS" >"$VENV/.stamp"
}

# The container's Python may have either name. .venv sees its packages (--system-site-packages) but is not that Python.
container_python() {
  first_python 'import importlib.util as u, sys; sys.exit(not (u.find_spec("megatron") and u.find_spec("megatron.bridge")))' \
    < <(type -aP python3 python) ||
    die bridge "got no Python with megatron.bridge on PATH, wanted that of NVIDIA's container; run inside" \
      "nvcr.io/nvidia/nemo:26.08, without a GPU use RUNTIME=native, or leave bridge out: FRAMEWORK=mega,hf"
}

main() {
  local python=$VENV/bin/python
  show_help_if_asked "$@"
  export_settings bridge "$@"
  PLATFORM=$("$ROOT/shell/platform.sh")
  if [[ $PLATFORM == amd ]]; then
    say "error: bridge: got PLATFORM=amd, wanted nvd or cpu; FRAMEWORK=prim is AMD's" && exit 2
  elif [[ $PLATFORM == nvd || -n ${TPRIMAT_IN_CONTAINER:-} ]]; then
    python=$(container_python) || exit
    require_megatron_bridge "$python"
  elif ! is_fresh; then
    take_lock "$VENV" "setup of Megatron-Bridge"
    is_fresh || make_environment
  fi
  printf '%s\n' "$python"
}

main "$@"
