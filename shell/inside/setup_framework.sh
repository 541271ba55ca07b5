#!/usr/bin/env bash
# Print the Python that has packages of its own for one framework; first make or repair its environment where it has one.
#
# bridge and nemo need another Python, numpy, transformers and megatron-core than the suite may have: each has an
# environment of 2 GB or more, and on NVIDIA GPUs, or in any container, the Python of the NeMo Framework container. prim
# and titan use the PyTorch of .venv, which on a GPU is that of the image, and some packages more; in a container Primus
# runs with AMD's Python. Nothing is added to a container's Python. Every Python must import what the trainer imports.
#
# evaluate is for the commands that read results, without torch. A python3 on PATH that can import all packages is taken as
# it is, so nothing is installed on a machine without a network that has them.
#
# Usage:  shell/inside/setup_framework.sh bridge|nemo|prim|titan [PLATFORM=amd|nvd|cpu] [KEY=VALUE ...]
#         shell/inside/setup_framework.sh evaluate [pandas] [pyarrow]   a Python that also has these: for tables, for Parquet
# Reads:  <framework>-requirements.txt, .venv (in our images TPRIMAT_VENV), PLATFORM, PATH, PYENV_ROOT, PRIMUS_PATH,
#         TPRIMAT_IN_CONTAINER; cpu-requirements.txt (version of pyarrow); pip's own settings, proxies
# Writes: .venv-<framework> and its .lock (of titan in our images beside TPRIMAT_VENV); one path on stdout
# Exits:  0; 1 no Python fits, or something is missing or could not be installed; 2 bad argument, or not for the platform
. "$(dirname -- "$(readlink -f -- "$0")")/../lib/environment.sh" || exit
. "$ROOT/shell/lib/install.sh"

declare -A TITLES=([bridge]=Megatron-Bridge [evaluate]="reading results" [nemo]=NeMo [prim]=Primus [titan]=torchtitan)
declare -A SIZES=([bridge]="2 GB with the CPU build of PyTorch, 5.5 GB with that for CUDA; once" [nemo]="about 2.5 GB, once"
  [prim]="about 1 GB, once" [titan]="about 60 MB, once" [evaluate]="about 300 MB, once")
declare -A VERSIONS=([bridge]=3.12 [nemo]=3.11)
declare -A REASONS=([bridge]="megatron-bridge 0.6.2 takes no other" [nemo]="megatron-core 0.12.3 has no wheel for 3.12 and later")
declare -A IMAGES=([bridge]=nvcr.io/nvidia/nemo:26.08 [nemo]="nvcr.io/nvidia/nemo:26.02, the last with NeMo 2")
declare -A MODULES=([bridge]=megatron.bridge [nemo]=nemo) # of the container's Python
PRIMUS=${PRIMUS_PATH:-/workspace/Primus}

is_container() { [[ -n ${TPRIMAT_IN_CONTAINER:-} ]]; }

# The Python and the requirements of the environment; of prim also the PyTorch of .venv. titan's environment sees a renewed
# .venv at once. The stamp is written last, so that an environment whose setup was interrupted is made anew.
stamp() {
  if [[ $framework == prim ]]; then "$OWN/bin/python" -c 'import torch; print(torch.__version__)' 2>/dev/null || return 0; fi
  { "$OWN/bin/python" -V && cat -- "$REQUIREMENTS"; } 2>/dev/null | sha256sum
}

is_fresh() { [[ -f $OWN/.stamp && -x $OWN/bin/python && $(<"$OWN/.stamp") == "$(stamp)" ]]; }

# End with one line where the Python of a framework cannot import what its trainer imports; without a GPU the module of
# the trainer redirects CUDA to the CPU first. While an image is made it has no trainers yet; its probe comes later. 0.6.0
# is the first Megatron-Bridge with megatron.bridge.data.base (docs/releases/software-versions.md there). Primus is
# imported as a rank of its launcher, on the CPU; it imports loguru, first of its requirements.txt, only when it begins to
# log (primus/core/utils/logger.py).
require() { # <python>
  local output reason package=torch wanted folders=$ROOT code="import train.train_$framework"
  if [[ ! -d $ROOT/train ]]; then return; fi
  case $framework in
    evaluate) return ;;
    bridge) package=megatron-bridge wanted="0.6.0 or later with all that it imports: nvcr.io/nvidia/nemo:26.08" ;;
    nemo) package=nemo_toolkit wanted="2.3 to 2.7 with all that it imports: nvcr.io/nvidia/nemo:26.02" ;;
    titan) wanted="one that torchtitan 0.3.0 can be imported with: a newer image" ;;
    prim)
      local -x LOCAL_RANK=0 LOCAL_WORLD_SIZE=1
      wanted="all that Primus in $PRIMUS imports: rocm/primus"
      code='import loguru, pretrain_gpt, primus.cli.main, primus.backends.megatron'
      folders=$ROOT/train/prim/on_cpu:$PRIMUS:${BACKEND_PATH:-$PRIMUS/third_party/Megatron-LM}
      ;;
  esac
  output=$(cd / && PYTHONPATH=$folders${PYTHONPATH:+:$PYTHONPATH} "$1" -c "$code" 2>&1) && return
  reason="whose import ends with ${output##*$'\n'}"
  if [[ $reason =~ "No module named '"([^\']+) ]]; then reason="which lacks ${BASH_REMATCH[1]}"; fi
  output=$("$1" -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$package" 2>/dev/null) ||
    output='of no known version'
  die "$framework" "got $package $output of $1, $reason; wanted $wanted, or leave $framework out of FRAMEWORK"
}

has_modules() { # <python> <module...>, a package before what is in it
  "$1" -c 'import importlib.util as u, sys
sys.exit(sys.version_info < (3, 10) or not all(map(u.find_spec, sys.argv[1:])))' "${@:2}" 2>/dev/null
}

# Print the first Python of those on stdin that is none of the suite's and has the modules.
first_python() { # <module...>
  local path
  while read -r path; do
    if [[ $path != "$ROOT"/.venv* ]] && has_modules "$path" "$@"; then printf '%s\n' "$path" && return; fi
  done
  return 1
}

# The container's Python may have either name. .venv sees its packages (--system-site-packages) but is not that Python.
container_python() {
  local module=${MODULES[$framework]:-torch}
  first_python "${module%%.*}" "$module" < <(type -aP python3 python) && return
  if [[ $framework == prim ]]; then
    die prim "got no Python with torch on PATH, wanted that of AMD's container; run inside rocm/primus, or use RUNTIME=native"
  fi
  die "$framework" "got no Python with $module on PATH, wanted that of NVIDIA's container; run inside" \
    "${IMAGES[$framework]}, without a GPU use RUNTIME=native, or leave $framework out: FRAMEWORK=mega,hf"
}

# Print the first Python of the framework's version that can make environments. A shim of pyenv fails where its version is
# not chosen; the folder of its versions has the program itself.
own_python() {
  local wanted=${VERSIONS[$framework]} path found='no python3'
  while read -r path; do
    if [[ $path == "$ROOT"/.venv* ]]; then continue; fi
    found=$("$path" -V 2>/dev/null || printf '%s\n' "$found")
    if [[ $found == "Python $wanted."* ]] && first_python ensurepip venv <<<"$path"; then return; fi
  done < <(
    type -aP "python$wanted" python3
    compgen -G "${PYENV_ROOT:-${HOME:-/}/.pyenv}/versions/$wanted.*/bin/python$wanted"
  )
  die "$framework" "got $found on PATH, wanted Python $wanted with its venv module" \
    "(${REASONS[$framework]}); install python$wanted, or leave $framework out: FRAMEWORK=mega,hf"
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

# PyTorch may be among the packages of .venv, of the system or of an environment that .venv names in a .pth file: prim and
# titan see whatever .venv sees. torchrun of .venv would start the ranks of Primus with the Python of .venv. The environment for
# reading has no compiled files: Python compiles what it imports; compiling all would add 100 MB.
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
    evaluate)
      python=$(find_python) || exit
      new_venv "$python"
      options=(--no-compile)
      ;;
    prim | titan)
      if grep -q '^include-system-site-packages = true' "$VENV/pyvenv.cfg"; then options=(--system-site-packages); fi
      new_venv "$PYTHON" "${options[@]}"
      packages=$(packages_of "$PYTHON")
      printf 'import site; site.addsitedir("%s")\n' "$packages" >"$(packages_of "$OWN/bin/python")/suite.pth"
      options=()
      ;;&
    titan) options=(--ignore-installed --no-deps) ;;
    prim)
      printf '#!/bin/sh\nexec "%s" -m torch.distributed.run "$@"\n' "$OWN/bin/python" >"$OWN/bin/torchrun"
      chmod +x "$OWN/bin/torchrun"
      ;;
  esac
  install "packages of ${REQUIREMENTS##*/}" "${options[@]}" -r "$REQUIREMENTS"
  require "$OWN/bin/python"
  stamp >"$OWN/.stamp"
}

# pyarrow is not part of the stamp: an environment with it serves every command.
for_reading() { # [pandas] [pyarrow]; prints a Python
  local python packages=(jinja2 matplotlib numpy scipy tqdm "$@")
  if is_fresh || ! python=$(type -P python3) || ! has_modules "$python" "${packages[@]}"; then
    python=$OWN/bin/python
    if ! is_fresh || ! has_modules "$python" "${packages[@]}"; then take_lock "$OWN" "setup for ${TITLES[evaluate]}"; fi
    is_fresh || make_environment
    if ! has_modules "$python" "${packages[@]}"; then
      say "adding pyarrow to .venv-evaluate (about 150 MB, once)"
      run_pip evaluate "$python" "$ROOT/cpu-requirements.txt" --no-compile pyarrow || exit
    fi
  fi
  printf '%s\n' "$python"
}

main() {
  local python
  framework=${1:-}
  if [[ ! ${TITLES[$framework]+known} ]]; then
    refuse "framework: got '$framework', wanted one of bridge, evaluate, nemo, prim, titan; see --help"
  fi
  shift
  OWN=$ROOT/.venv-$framework REQUIREMENTS=$ROOT/$framework-requirements.txt
  if [[ $framework == evaluate ]]; then
    for_reading "$@"
    return
  fi
  export_settings "$framework" 'KEY=VALUE or --help' "$@"
  if [[ $framework == titan ]]; then OWN=$VENV-titan; fi
  python=$OWN/bin/python
  find_platform
  if [[ $framework == @(bridge|nemo) && $PLATFORM == amd ]]; then
    refuse "$framework: got PLATFORM=amd, wanted nvd or cpu; FRAMEWORK=prim is AMD's"
  elif [[ $framework == titan ]] && is_container && ! is_fresh; then
    die titan "the image has no torchtitan as titan-requirements.txt names it; run ./shell/build.sh, or use RUNTIME=native"
  elif [[ $framework != titan ]] && is_container || [[ $framework == @(bridge|nemo) && $PLATFORM == nvd ]]; then
    python=$(container_python) || exit
  fi
  if is_container || [[ $python != "$OWN/bin/python" ]]; then
    require "$python" # of titan's: made before the image had a trainer
  elif ! is_fresh; then
    if [[ $framework == @(prim|titan) ]]; then require_suite; fi
    take_lock "$OWN" "setup of ${TITLES[$framework]}"
    is_fresh || make_environment
  fi
  printf '%s\n' "$python"
}

main "$@"
