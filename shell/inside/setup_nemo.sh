#!/usr/bin/env bash
# Print the Python that runs NeMo's ranks. On a machine without a GPU, make or repair .venv-nemo for it first.
#
# NeMo 2.3 needs other versions of numpy, transformers and megatron-core than the suite, so it has a separate
# environment. On NVIDIA GPUs, and in any container, its Python is that of the NeMo container, to which nothing is added.
# Either must import what train/train_nemo.py imports.
#
# Usage:  shell/inside/setup_nemo.sh [PLATFORM=nvd|cpu] [KEY=VALUE ...]
# Reads:  nemo-requirements.txt, PLATFORM, PATH, PYENV_ROOT, TPRIMAT_IN_CONTAINER; pip's own settings, proxies
# Writes: .venv-nemo, .venv-nemo.lock; one path on stdout
# Exits:  0; 1 no Python fits, or something could not be installed; 2 bad argument, or a platform without NeMo
set -Eeuo pipefail

# shellcheck source=shell/lib/environment.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../lib/environment.sh"
# shellcheck source=shell/lib/install.sh
source "$ROOT/shell/lib/install.sh"

VENV=$ROOT/.venv-nemo
REQUIREMENTS=$ROOT/nemo-requirements.txt

is_fresh() { is_stamped "$VENV" "$(stamp_of "$VENV" "$REQUIREMENTS")"; }

python_311() {
  local python
  python=$(python_of_version 3.11) ||
    die nemo "got ${python:-no python3} on PATH, wanted Python 3.11 with its venv module (megatron-core 0.12.3 has no wheel" \
      "for 3.12 and later); install python3.11, or leave nemo out: FRAMEWORK=mega,hf"
  printf '%s\n' "$python"
}

require_nemo() { # <python>
  require_imports nemo "$1" nemo_toolkit "2.3 to 2.7 with all that it imports: nvcr.io/nvidia/nemo:26.02"
}

make_environment() {
  local python extra=()
  python=$(python_311) || exit
  say "[1/3] making .venv-nemo with $("$python" -V) of $python (about 2.5 GB, once)"
  "$python" -m venv --clear "$VENV" >&2 || die nemo "venv: could not make $VENV; the reason is above"
  if has_cpu_wheels "$python"; then extra=(--extra-index-url "$CPU_WHEELS"); fi
  say "[2/3] torch and numpy"
  run_pip nemo "$VENV/bin/python" "$REQUIREMENTS" "${extra[@]}" torch numpy || exit
  say "[3/3] packages of nemo-requirements.txt"
  run_pip nemo "$VENV/bin/python" "$REQUIREMENTS" -r "$REQUIREMENTS" || exit
  require_nemo "$VENV/bin/python"
  stamp_of "$VENV" "$REQUIREMENTS" >"$VENV/.stamp"
}

# The container's Python may have either name. .venv sees its packages (--system-site-packages) but is not that Python.
container_python() {
  first_python 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ("nemo", "nemo_run"))))' \
    < <(type -aP python3 python) ||
    die nemo "got no Python with NeMo on PATH, wanted that of NVIDIA's container; run inside nvcr.io/nvidia/nemo:26.02," \
      "the last with NeMo 2, without a GPU use RUNTIME=native, or leave nemo out: FRAMEWORK=mega,hf"
}

main() {
  local python=$VENV/bin/python
  show_help_if_asked "$@"
  export_settings nemo "$@"
  PLATFORM=$("$ROOT/shell/platform.sh")
  if [[ $PLATFORM == amd ]]; then
    say "error: nemo: got PLATFORM=amd, wanted nvd or cpu; FRAMEWORK=prim is AMD's" && exit 2
  elif [[ $PLATFORM == nvd || -n ${TPRIMAT_IN_CONTAINER:-} ]]; then
    python=$(container_python) || exit
    require_nemo "$python"
  elif ! is_fresh; then
    take_lock "$VENV" "setup of NeMo"
    is_fresh || make_environment
  fi
  printf '%s\n' "$python"
}

main "$@"
