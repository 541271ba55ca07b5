#!/usr/bin/env bash
# Print the Python that runs a framework with packages of its own; first make or repair its environment where it has one.
#
# bridge and nemo need another Python, numpy, transformers and megatron-core than the suite may have: each has an
# environment of 2 GB or more, and on NVIDIA GPUs, or in any container, the Python of the NeMo Framework container. prim
# and titan use the PyTorch of .venv, which on a GPU is that of the image, and some packages more; in a container Primus
# runs with AMD's Python. Nothing is added to a container's Python. Every Python must import what the trainer imports.
#
# Usage:  shell/inside/setup_framework.sh bridge|nemo|prim|titan [PLATFORM=amd|nvd|cpu] [KEY=VALUE ...]
# Reads:  <framework>-requirements.txt, .venv (in our images TPRIMAT_VENV), PLATFORM, PATH, PYENV_ROOT, PRIMUS_PATH,
#         TPRIMAT_IN_CONTAINER; pip's own settings, proxies
# Writes: .venv-<framework> and its .lock (of titan in our images beside TPRIMAT_VENV); one path on stdout
# Exits:  0; 1 no Python fits, or something is missing or could not be installed; 2 bad argument, or not for the platform
set -Eeuo pipefail

# shellcheck source=shell/lib/environment.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../lib/environment.sh"
# shellcheck source=shell/lib/install.sh
source "$ROOT/shell/lib/install.sh"

declare -A TITLES=([bridge]=Megatron-Bridge [nemo]=NeMo [prim]=Primus [titan]=torchtitan)
declare -A SIZES=([bridge]="2 GB with the CPU build of PyTorch, 5.5 GB with that for CUDA; once" [nemo]="about 2.5 GB, once"
  [prim]="about 1 GB, once" [titan]="about 60 MB, once")
declare -A VERSIONS=([bridge]=3.12 [nemo]=3.11)
declare -A REASONS=([bridge]="megatron-bridge 0.6.2 takes no other" [nemo]="megatron-core 0.12.3 has no wheel for 3.12 and later")
declare -A IMAGES=([bridge]=nvcr.io/nvidia/nemo:26.08 [nemo]="nvcr.io/nvidia/nemo:26.02, the last with NeMo 2")
declare -A MODULES=([bridge]=megatron.bridge [nemo]=nemo) # of the container's Python
PRIMUS=${PRIMUS_PATH:-/workspace/Primus}

is_container() { [[ -n ${TPRIMAT_IN_CONTAINER:-} ]]; }

# That of prim also depends on the PyTorch of .venv; titan's environment sees a renewed .venv at once.
stamp() {
  if [[ $framework == prim ]]; then "$OWN/bin/python" -c 'import torch; print(torch.__version__)' 2>/dev/null || return 0; fi
  stamp_of "$OWN" "$REQUIREMENTS"
}

is_fresh() { is_stamped "$OWN" "$(stamp)"; }

# 0.6.0 is the first Megatron-Bridge with megatron.bridge.data.base (docs/releases/software-versions.md there). Primus is
# imported as a rank of its launcher, on the CPU; it imports loguru, first of its requirements.txt, only when it begins to
# log (primus/core/utils/logger.py).
require() { # <python>
  local folders=$PRIMUS:${BACKEND_PATH:-$PRIMUS/third_party/Megatron-LM}
  case $framework in
    bridge) require_imports bridge "$1" megatron-bridge "0.6.0 or later with all that it imports: nvcr.io/nvidia/nemo:26.08" ;;
    nemo) require_imports nemo "$1" nemo_toolkit "2.3 to 2.7 with all that it imports: nvcr.io/nvidia/nemo:26.02" ;;
    titan) require_imports titan "$1" torch "one that torchtitan 0.2.2 can be imported with: a newer image" ;;
    prim)
      LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 require_imports prim "$1" torch "all that Primus in $PRIMUS imports: rocm/primus" \
        'import loguru, pretrain_gpt, primus.cli.main, primus.backends.megatron' "$ROOT/train/prim/on_cpu:$folders"
      ;;
  esac
}

# The container's Python may have either name. .venv sees its packages (--system-site-packages) but is not that Python.
container_python() {
  local module=${MODULES[$framework]:-torch}
  first_python "import importlib.util as u, sys; sys.exit(not (u.find_spec('${module%%.*}') and u.find_spec('$module')))" \
    < <(type -aP python3 python) && return
  if [[ $framework == prim ]]; then
    die prim "got no Python with torch on PATH, wanted that of AMD's container; run inside rocm/primus, or use RUNTIME=native"
  fi
  die "$framework" "got no Python with $module on PATH, wanted that of NVIDIA's container; run inside" \
    "${IMAGES[$framework]}, without a GPU use RUNTIME=native, or leave $framework out: FRAMEWORK=mega,hf"
}

own_python() {
  local version=${VERSIONS[$framework]} python
  python=$(python_of_version "$version") ||
    die "$framework" "got ${python:-no python3} on PATH, wanted Python $version with its venv module" \
      "(${REASONS[$framework]}); install python$version, or leave $framework out: FRAMEWORK=mega,hf"
  printf '%s\n' "$python"
}

# prim and titan need the suite's environment; Megatron-LM of Primus compiles its data set helper.
require_suite() {
  if [[ ! -x $PYTHON ]]; then die "$framework" "got no $PYTHON, wanted the suite's environment; run ./shell/setup.sh"; fi
  if [[ $framework == prim ]] && { ! type -P g++ >/dev/null || ! type -P make >/dev/null; }; then
    die prim "Megatron-LM of Primus compiles its data set helper; wanted g++ and make on PATH; install them"
  fi
}

new_venv() { # <python> <options...>
  say "making ${OWN##*/} for ${TITLES[$framework]} with $("$1" -V) of $1 (${SIZES[$framework]})"
  "$1" -m venv --clear "${@:2}" "$OWN" >&2 || die "$framework" "venv: could not make $OWN; the reason is above"
}

install() { # <what> <pip arguments...>
  say "installing $1"
  run_pip "$framework" "$OWN/bin/python" "$REQUIREMENTS" "${@:2}" || exit
}

# PyTorch may be among the packages of .venv, of the system or of an environment that .venv names in a .pth file: titan
# sees whatever .venv sees. torchrun of .venv would start the ranks of Primus with the Python of .venv.
make_environment() {
  local python extra=() options=() packages
  case $framework in
    bridge | nemo)
      python=$(own_python) || exit
      new_venv "$python"
      if has_cpu_wheels "$python"; then extra=(--extra-index-url "$CPU_WHEELS"); fi
      install "torch and numpy" "${extra[@]}" torch numpy
      if [[ $framework == bridge ]]; then options=(--no-deps); fi
      ;;
    titan)
      if grep -q '^include-system-site-packages = true' "$VENV/pyvenv.cfg"; then options=(--system-site-packages); fi
      new_venv "$PYTHON" "${options[@]}"
      packages=$(packages_of "$PYTHON")
      printf 'import site; site.addsitedir("%s")\n' "$packages" >"$(packages_of "$OWN/bin/python")/suite.pth"
      options=(--ignore-installed --no-deps)
      ;;
    prim)
      new_venv "$PYTHON"
      packages=$(packages_of "$PYTHON")
      printf '%s\n' "$packages" >"$(packages_of "$OWN/bin/python")/suite.pth"
      printf '#!/bin/sh\nexec "%s" -m torch.distributed.run "$@"\n' "$OWN/bin/python" >"$OWN/bin/torchrun"
      chmod +x "$OWN/bin/torchrun"
      ;;
  esac
  install "packages of ${REQUIREMENTS##*/}" "${options[@]}" -r "$REQUIREMENTS"
  require "$OWN/bin/python"
  stamp >"$OWN/.stamp"
}

main() {
  local platform python
  show_help_if_asked "$@"
  framework=${1:-}
  if [[ ! ${TITLES[$framework]+known} ]]; then
    say "error: framework: got '$framework', wanted one of bridge, nemo, prim, titan; see --help" && exit 2
  fi
  export_settings "$framework" "${@:2}"
  OWN=$ROOT/.venv-$framework REQUIREMENTS=$ROOT/$framework-requirements.txt
  if [[ $framework == titan ]]; then OWN=$VENV-titan; fi
  python=$OWN/bin/python
  platform=$("$ROOT/shell/platform.sh")
  case $framework in
    bridge | nemo)
      if [[ $platform == amd ]]; then
        say "error: $framework: got PLATFORM=amd, wanted nvd or cpu; FRAMEWORK=prim is AMD's" && exit 2
      fi
      if [[ $platform == nvd ]] || is_container; then python=$(container_python) || exit; fi
      ;;
    prim) if is_container; then python=$(container_python) || exit; fi ;;
    titan)
      if is_container && ! is_fresh; then
        die titan "the image has no torchtitan as titan-requirements.txt names it; run ./shell/build.sh, or use RUNTIME=native"
      fi
      ;;
  esac
  if is_container || [[ $python != "$OWN/bin/python" ]]; then
    require "$python" # of titan's: made before the image had a trainer
  elif ! is_fresh; then
    case $framework in prim | titan) require_suite ;; esac
    take_lock "$OWN" "setup of ${TITLES[$framework]}"
    is_fresh || make_environment
  fi
  printf '%s\n' "$python"
}

main "$@"
