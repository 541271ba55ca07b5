#!/usr/bin/env bash
# Make the environment of one of our images, and name the frameworks of the vendor that it can run. Only the Dockerfiles
# run it.
#
# What the base image brings stays as it is: setup.sh constrains all other packages to its PyTorch and numpy. It adds only
# the environment and the tools that our scripts need and the base image lacks.
#
# Usage:  PLATFORM=amd|nvd|cpu TPRIMAT_VENV=FOLDER shell/inside/setup_image.sh [probe]
#         probe comes last, after the checkout was copied, with TPRIMAT_IN_CONTAINER set. Each framework must import what
#         its trainer imports; one that is incomplete gets one line and is no failure, because the others work
# Reads:  <platform>-requirements.txt, titan-requirements.txt; /run/tprimat/settings (exports of pip's variables and
#         proxies), mounted by the build
# Writes: TPRIMAT_VENV, TPRIMAT_VENV-titan; packages of Debian or Ubuntu; what AMD's Primus compiles in /workspace/Primus
# Exits:  0 made, 1 something could not be installed, 2 bad argument or platform
. "$(dirname -- "$(readlink -f -- "$0")")/../lib/environment.sh" || exit
. "$ROOT/shell/lib/install.sh"

SETTINGS_FILE=/run/tprimat/settings
PRIMUS=${PRIMUS_PATH:-/workspace/Primus}

# If a package cannot be installed, apt's own last lines give the reason.
add_package() { # <package> <where it comes from> <what the image lacks without it>
  say "$1: missing in the base image; installing it from $2"
  export DEBIAN_FRONTEND=noninteractive
  if ! { type -P apt-get && apt-get update -qq && apt-get install -y -qq --no-install-recommends "$1"; } >/dev/null; then
    say "warning: $1 could not be installed$3"
  fi
}

# Primus's launchers run make in Megatron-LM at every start, and jobs run as users who may not write there: what is made
# here is up to date for all of them. Two more steps of AMD's image write into root's folders while a job runs, with no
# variable that names another place: the hook runner/helpers/hooks/06_fix_aiter_asm_dir.sh links kernels in aiter_meta/hsa
# and edits aiter/jit/core.py, and TransformerEngine's CK kernels are compiled into ck_jit/cache (later releases: HOME).
prepare_primus() {
  local packages folder
  if [[ ! -d $PRIMUS ]]; then
    say "warning: the base image has no $PRIMUS; FRAMEWORK=prim then needs PRIMUS_PATH"
    return
  fi
  say "Primus: compiling Megatron-LM's data set helper for all users"
  make --silent --directory "$PRIMUS/third_party/Megatron-LM/megatron/core/datasets" >&2 ||
    say "warning: no helper could be made, so this image runs FRAMEWORK=prim as root only"
  packages=$(packages_of python3)
  if [[ -d $packages/transformer_engine/lib/ck_jit ]]; then mkdir -p -- "$packages/transformer_engine/lib/ck_jit/cache"; fi
  for folder in "$packages/transformer_engine/lib/ck_jit/cache" "$packages/aiter_meta/hsa"; do
    if [[ -d $folder ]]; then chmod 1777 -- "$folder"; fi
  done
  if [[ -f $packages/aiter/jit/core.py ]]; then chmod a+w -- "$packages/aiter/jit/core.py"; fi
}

probe() {
  local framework output frameworks=(prim titan)
  if [[ $PLATFORM == nvd ]]; then frameworks=(bridge nemo titan); fi
  HOME=$(mktemp -d) # what an import writes there as root would be in the way of the image's users
  export HOME PYTHONDONTWRITEBYTECODE=1
  for framework in "${frameworks[@]}"; do
    if output=$("$ROOT/shell/inside/setup_framework.sh" "$framework" 2>&1); then
      say "FRAMEWORK=$framework runs with ${output##*$'\n'}"
    else
      say "note: FRAMEWORK=$framework cannot run in this image: ${output##*error: }"
    fi
  done
  rm -rf -- "$HOME"
}

main() {
  find_platform
  if [[ ${1:-} == probe ]]; then
    probe
    return
  fi
  umask 022 # any user may read the environment
  # NVIDIA's PyTorch images pin the packages of their own Python for every pip (docs/get-started/install.md of
  # Megatron-LM). The environment has other versions; PyTorch and numpy are constrained by setup.sh.
  unset PIP_CONSTRAINT
  if [[ -f $SETTINGS_FILE ]]; then
    # shellcheck source=/dev/null
    source "$SETTINGS_FILE"
  fi
  # Debian and Ubuntu keep Python's venv module in a separate package.
  python3 -c 'import ensurepip, venv' 2>/dev/null || add_package python3-venv "the distribution" ''
  if [[ $PLATFORM == amd ]]; then
    # Most ROCm images contain AMD's profiler. Without it a profile lacks the GPU's counters; everything else works.
    type -P rocprofv3 >/dev/null ||
      add_package rocprofiler-sdk "the image's package sources" ": this image has no rocprofv3"
    prepare_primus
  fi
  mkdir -p -- "${TPRIMAT_VENV:?wanted the folder of the environment}"
  "$ROOT/shell/setup.sh"
  # torchtitan sees the PyTorch of the base image, which may be too old for it; everything else works then.
  if [[ $PLATFORM != cpu ]] && ! "$ROOT/shell/inside/setup_framework.sh" titan >/dev/null; then
    say "warning: this image cannot run FRAMEWORK=titan"
  fi
  rm -rf -- "$VENV.lock" "$VENV-titan.lock" /var/lib/apt/lists/*
}

main "$@"
