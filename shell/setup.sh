#!/usr/bin/env bash
# Make or repair .venv with the pinned packages of this machine's platform; do nothing if it is up to date.
#
# For a machine without a network: --download collects in DIR, on a machine that reaches a package index, the wheels of all
# its environments, for a GPU machine without PyTorch, which it has. --offline makes the environments from a copy of DIR.
#
# Usage:   ./shell/setup.sh [--dev] [PLATFORM=amd|nvd|cpu] [KEY=VALUE ...]
#          --dev adds what shell/test.sh needs
#          ./shell/setup.sh --download DIR [--platform amd|nvd|cpu] [--python 3.12] [--machine x86_64|aarch64] [FRAMEWORK=...]
#          the options are those of the machine without a network (default: of this one), Python 3.10 to 3.13; FRAMEWORK=all
#          is for all environments of the platform. After an interrupt the same command continues. What has no wheel is
#          listed, with how to get it
#          ./shell/setup.sh --offline DIR [--platform amd|nvd|cpu]
# Reads:   <platform>-requirements.txt, energy-requirements.txt, dev-requirements.txt, PLATFORM; pip's own settings,
#          proxies; with --download and --offline the requirements of all environments, and FRAMEWORK
# Writes:  .venv, .venv.lock (in our images TPRIMAT_VENV in place of .venv); with --download only DIR, with --offline
#          also .venv-<framework> and its .lock
# Exits:   0 ready, 1 something could not be installed or collected, 2 bad argument, platform or DIR
# Example: ./shell/setup.sh PLATFORM=cpu
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/install.sh"

MACHINE_TORCH=$VENV/.machine-torch.txt
steps=3 current_step=0

step() {
  current_step=$((current_step + 1))
  say "[$current_step/$steps] $*"
}

make_venv() {
  local system_python machine='' options=()
  system_python=$(find_python)
  if [[ $PLATFORM != cpu ]]; then # a PyTorch that ends its Python counts as none
    machine=$("$system_python" "$ROOT/shell/lib/torch_source.py" machine "$PLATFORM") || machine=''
  fi
  if [[ $machine ]]; then
    options=(--system-site-packages)
  elif [[ $PLATFORM == amd ]]; then
    die setup "torch: got none for ROCm from $system_python, wanted one; install PyTorch for ROCm first or use AMD's image"
  elif [[ $PLATFORM == nvd && ${TPRIMAT_WHEELS:-} ]]; then
    die setup "torch: got none for CUDA from $system_python, wanted one, which --download leaves to the machine; install" \
      "PyTorch for CUDA first or use NVIDIA's image"
  fi
  step "making .venv with $("$system_python" -V) of $system_python"
  "$system_python" -m venv --clear "${options[@]}" "$VENV" >&2 ||
    die setup "venv: could not make $VENV; the reason is above"
  if [[ $machine ]]; then
    # An image may keep PyTorch or TransformerEngine in a virtual environment, which --system-site-packages does not show.
    grep '^/' <<<"$machine" >"$(packages_of "$PYTHON")/machine.pth"
    grep -v '^/' <<<"$machine" >"$MACHINE_TORCH"
  fi
  printf '%s\n' "$PLATFORM" >"$VENV/.made-for"
}

# An install that is killed leaves .installing behind, and the next setup makes .venv anew. pip undoes its own failures.
pip_install() { # <pip arguments...>
  : >"$VENV/.installing"
  run_pip setup "$PYTHON" "$pins" "$@" || { rm -- "$VENV/.installing" && exit 1; }
  rm -- "$VENV/.installing"
}

# A plain install of torch on Linux brings several GB of CUDA packages, which a machine without a GPU does not need. If
# pip sees both indexes, it takes the CPU build: 2.13.0+cpu counts as later than 2.13.0.
install_torch() { # sets pins
  pins=$ROOT/cpu-requirements.txt
  if [[ -f $MACHINE_TORCH ]]; then
    pins=$MACHINE_TORCH
    step "torch and numpy: this machine's own ($(paste -sd ' ' -- "$pins"))"
  elif [[ ${TPRIMAT_WHEELS:-} ]]; then
    step "torch and numpy: from $TPRIMAT_WHEELS"
    pip_install torch numpy
  elif [[ $PLATFORM == nvd ]]; then
    step "torch and numpy: from pip's index (the CUDA build, several GB)"
    pip_install torch numpy
  elif has_cpu_wheels "$PYTHON"; then
    step "torch and numpy: from $CPU_WHEELS"
    pip_install --extra-index-url "$CPU_WHEELS" torch numpy
  else
    step "torch and numpy: from pip's index, because $CPU_WHEELS does not answer (may be the CUDA build, several GB)"
    pip_install torch numpy
  fi
}

install_set() { # <runtime|dev> <requirements file>
  step "packages of $2"
  pip_install -r "$ROOT/$2"
  if [[ $1 == runtime ]]; then pip_install --no-deps -r "$ROOT/energy-requirements.txt"; fi
  wanted_stamp "$1" >"$VENV/.stamp-$1"
}

keeps_venv() {
  [[ ! -e $VENV/.installing && -f $VENV/.made-for && $(<"$VENV/.made-for") == "$PLATFORM" ]] &&
    "$PYTHON" -V 2>/dev/null
}

make_suite() { # <is_dev>
  local version
  if environment_is_fresh runtime && { [[ $1 == false ]] || environment_is_fresh dev; }; then return; fi
  if version=$(keeps_venv); then
    step "keeping .venv ($version)"
  else
    make_venv
  fi
  rm -f -- "$VENV"/.stamp-*
  install_torch
  install_set runtime "$PLATFORM-requirements.txt"
  if [[ $1 == true ]]; then install_set dev dev-requirements.txt; fi
  say "ready: $PYTHON"
}

main() {
  local is_dev=false
  if [[ " $* " == *" --"@(download|offline)" "* ]]; then
    . "$ROOT/shell/lib/wheels.sh"
    setup_with_wheels "$@"
    return
  fi
  PLATFORM=cpu check_arguments "$@"
  ARGUMENTS=("$@")
  if take_option --dev; then is_dev=true steps=4; fi
  export_settings setup '--dev or KEY=VALUE' "${ARGUMENTS[@]}"
  find_platform
  take_lock "$VENV" setup
  make_suite "$is_dev"
}

main "$@"
