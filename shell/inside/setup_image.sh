#!/usr/bin/env bash
# Make the environment of one of our images. Only the Dockerfiles run it.
#
# What the base image brings stays as it is: setup.sh constrains all other packages to its PyTorch and numpy. It adds only
# the environment and the tools that our scripts need and the base image lacks.
#
# Usage:  PLATFORM=amd|nvd|cpu TPRIMAT_VENV=FOLDER shell/inside/setup_image.sh
# Reads:  <platform>-requirements.txt, titan-requirements.txt; /run/tprimat/settings (exports of pip's variables and
#         proxies), mounted by the build
# Writes: TPRIMAT_VENV, TPRIMAT_VENV-titan; packages of Debian or Ubuntu
# Exits:  0 made, 1 something could not be installed, 2 bad argument or platform
set -Eeuo pipefail

# shellcheck source=shell/lib/environment.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../lib/environment.sh"
# shellcheck source=shell/lib/install.sh
source "$ROOT/shell/lib/install.sh"

SETTINGS_FILE=/run/tprimat/settings

# If a package cannot be installed, apt's own last lines give the reason.
apt_install() { # <package...>
  type -P apt-get >/dev/null || return
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Debian and Ubuntu keep Python's venv module in a separate package.
add_venv_module() {
  if python3 -c 'import ensurepip, venv' 2>/dev/null; then return; fi
  say "python3-venv: missing in the base image; installing it from the distribution"
  apt_install python3-venv || say "warning: python3-venv could not be installed"
}

# Most ROCm images contain AMD's profiler. Without it a profile lacks the GPU's counters; everything else works.
add_rocm_profiler() {
  if [[ -x /opt/rocm/bin/rocprofv3 ]]; then return; fi
  say "rocprofiler-sdk: missing in the base image; installing it from the image's package sources"
  apt_install rocprofiler-sdk || say "warning: rocprofiler-sdk could not be installed: this image has no rocprofv3"
}

# It sees the PyTorch of the base image, which may be too old for it; everything else works then.
add_torchtitan() {
  "$ROOT/shell/inside/setup_titan.sh" >/dev/null || say "warning: this image cannot run FRAMEWORK=titan"
}

main() {
  local platform
  show_help_if_asked "$@"
  umask 022 # any user may read the environment
  # NVIDIA's PyTorch images pin the packages of their own Python for every pip (docs/get-started/install.md of
  # Megatron-LM). The environment has other versions; PyTorch and numpy are constrained by setup.sh.
  unset PIP_CONSTRAINT
  if [[ -f $SETTINGS_FILE ]]; then
    # shellcheck source=/dev/null
    source "$SETTINGS_FILE"
  fi
  platform=$("$ROOT/shell/platform.sh")
  add_venv_module
  if [[ $platform == amd ]]; then add_rocm_profiler; fi
  mkdir -p -- "${TPRIMAT_VENV:?wanted the folder of the environment}"
  "$ROOT/shell/setup.sh"
  if [[ $platform != cpu ]]; then add_torchtitan; fi
  rm -rf -- "$VENV.lock" "$VENV-titan.lock" /var/lib/apt/lists/*
}

main "$@"
