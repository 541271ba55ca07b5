#!/usr/bin/env bash
# The environment variables that a container gets: settings, variables that change speed, the hub's, proxies. Sourced.
#
# A variable that names a path of this machine (..._PATH, ..._HOME, ..._DIR, LD_PRELOAD) is not passed: the image has
# something else at that path, or nothing. CONTAINER_ARGS='--env NAME' passes any other variable.
#
# Usage:  source shell/lib/passed.sh; pass_environment <docker|podman|apptainer> <platform>
# Reads:  the environment, keys of config.env, PATH_SETTINGS of shell/lib/mounts.sh, git, the engine (id of the image)
# Writes: PASSED_NAMES (names of variables), PASSED_VALUES (NAME=VALUE, no secrets)
# Exits:  never
set -Eeuo pipefail

PASSED_NAMES=() PASSED_VALUES=()

# The same names as SPEED_VARIABLES in utils/provenance/origin.py, which records them (a test compares the two).
SPEED_NAMES='^((NCCL|RCCL|NVTE|HSA|HIP|ROCR|PYTORCH|TORCH|TORCHINDUCTOR|TRITON|CUDA|CUDNN|CUBLAS|CUBLASLT|ROCBLAS|HIPBLASLT'
SPEED_NAMES+='|MIOPEN|AMD|OMP|GOMP|MKL|KMP|OPENBLAS|ONEDNN|DNNL|MALLOC|TE|PRIMUS|UB|UCX|GLOO)_|NVIDIA_TF32_OVERRIDE$'
SPEED_NAMES+='|ATEN_CPU_CAPABILITY$|GPU_MAX_HW_QUEUES$|TOKENIZERS_PARALLELISM$|XLA_FLAGS$)'
readonly SPEED_NAMES

is_setting() { # <name>
  local line
  while IFS= read -r line; do
    if [[ $line == "$1="* ]]; then return 0; fi
  done <"$ROOT/config.env"
  return 1
}

is_path_setting() { # <name>
  local setting
  for setting in "${PATH_SETTINGS[@]}"; do
    if [[ $setting == "$1="* ]]; then return 0; fi
  done
  return 1
}

is_passed() { # <name>
  case $1 in
    PLATFORM | RUNTIME | LAUNCHER | OUTPUT_DIR | DATA_DIR) return 1 ;; # passed by value, or used only here
    *_HOME | *_PATH | *_ROOT | *_DIR | *_CACHE | *_FOLDER | *_LIBRARY | *_PRELOAD) return 1 ;;
    NO_COLOR | COLUMNS | LINES | TZ | STRICT | TPRIMAT_MACHINE) return 0 ;;
    HF_* | http_proxy | https_proxy | all_proxy | no_proxy | HTTP_PROXY | HTTPS_PROXY | ALL_PROXY | NO_PROXY) return 0 ;;
  esac
  [[ $1 =~ $SPEED_NAMES ]] || is_setting "$1"
}

# git runs outside the container: the image has no git, and a linked work tree is not a complete repository.
_pass_commit() {
  local prefix commit changes is_dirty=false
  prefix=$(git -C "$ROOT" rev-parse --show-prefix 2>/dev/null) || return 0
  if [[ -n $prefix ]]; then return 0; fi # a copy inside another repository has no commit of its own
  commit=$(git -C "$ROOT" rev-parse HEAD 2>/dev/null) || return 0
  changes=$(git -C "$ROOT" status --porcelain --untracked-files=no 2>/dev/null) || return 0
  if [[ -n $changes ]]; then is_dirty=true; fi
  PASSED_VALUES+=("TPRIMAT_GIT_COMMIT=$commit" "TPRIMAT_GIT_DIRTY=$is_dirty")
}

pass_environment() { # <engine> <platform>
  local name digest
  PASSED_NAMES=()
  while read -r name; do
    if is_passed "$name" && ! is_path_setting "$name"; then PASSED_NAMES+=("$name"); fi
  done < <(compgen -e)
  PASSED_VALUES=("PLATFORM=$2" RUNTIME=native LAUNCHER=torchrun "${PATH_SETTINGS[@]}" TPRIMAT_IN_CONTAINER=1)
  PASSED_VALUES+=("TPRIMAT_IMAGE=$(image_of "$1" "$2")")
  if digest=$(image_digest "$1" "$2" 2>/dev/null); then PASSED_VALUES+=("TPRIMAT_IMAGE_DIGEST=$digest"); fi
  if [[ $1 != apptainer ]]; then PASSED_VALUES+=(HOME=/workspace/home); fi
  _pass_commit
}
