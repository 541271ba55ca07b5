#!/usr/bin/env bash
# The environment variables that a container gets: settings, variables that change speed, the hub's, proxies. Sourced.
#
# A variable that names a path of this machine (..._PATH, ..._HOME, ..._DIR, LD_PRELOAD) is not passed: the image has
# something else at that path, or nothing. TPRIMAT_ENV_NAMES=NAME,NAME passes other variables, also to the ranks.
#
# `docker inspect` shows the value of each variable that is passed by name. A value that may be a secret goes through a
# file that only the caller can read; shell/inside/private.sh takes it from there. In apptainer nothing shows values.
#
# Usage:  source shell/lib/passed.sh; pass_environment <docker|podman|apptainer> <platform>; lend_private <file>
#         refuse_secret <name> <text>
# Reads:  the environment, keys of config.env, PATH_SETTINGS of shell/lib/mounts.sh, SECRET_TEXT of shell/lib/environment.sh,
#         git, the engine (id of the image)
# Writes: PASSED_NAMES, PRIVATE_NAMES (names of variables), PASSED_VALUES (NAME=VALUE, no secrets); the private file, which
#         is removed when this process, or the engine that replaces it, ends
# Exits:  refuse_secret exits with 2 and one error line
set -Eeuo pipefail

PASSED_NAMES=() PRIVATE_NAMES=() PASSED_VALUES=()

# A wide net, because a value in it still reaches the container: names that mean a secret; an address with user
# information; and any word as long as the shortest token.
PRIVATE_NAME='TOKEN|SECRET|PASSW|PASSPHRASE|_PASS$|CREDENTIAL|KEY|AUTH|COOKIE|JWT|(^|_)PW(_|$)'
PRIVATE_VALUE='@|%40|[A-Za-z0-9_-]{20}'
readonly PRIVATE_NAME PRIVATE_VALUE
# The same names as SPEED_VARIABLES in utils/provenance/variables.py, which are recorded (a test compares the two).
SPEED_NAMES='^(PYTORCH|TORCH|TORCHINDUCTOR|TORCHDYNAMO|TRITON|GLOO|LD_PRELOAD|OMP|GOMP|MKL|KMP|OPENBLAS|ONEDNN|DNNL|MALLOC'
SPEED_NAMES+='|ATEN_CPU|CUDA|FLASH_ATTENTION|CUDNN|CUBLAS|CUBLASLT|NVIDIA_TF32|HSA|HIP|ROCR|ROC|GPU|AMD|ROCBLAS|HIPBLASLT'
SPEED_NAMES+='|AITER|CK|NVTE|TE|UB|NCCL|RCCL|UCX|PRIMUS|TOKENIZERS|MIOPEN|XLA)(_|$)'
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

# Command lines and what the engine records of them are visible to others.
refuse_secret() { # <name> <text>
  if [[ $2 =~ $SECRET_TEXT ]]; then
    refuse "$1: looks like a secret, which a command line would show; see docs/secrets.md"
  fi
}

_may_be_secret() { # <name>
  local -
  set +x # a trace (bash -x) would print the value
  [[ ${1^^} =~ $PRIVATE_NAME && ${1^^} != *TOKENIZER* || ${!1} =~ $PRIVATE_VALUE ]]
}

is_passed() { # <name>
  if [[ ,${TPRIMAT_ENV_NAMES:-}, == *",$1,"* ]]; then return 0; fi
  case $1 in
    TPRIMAT_ENV_NAMES) return 0 ;;
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
  PASSED_NAMES=() PRIVATE_NAMES=()
  while read -r name; do
    if ! is_passed "$name" || is_path_setting "$name"; then continue; fi
    if [[ $1 != apptainer ]] && _may_be_secret "$name"; then PRIVATE_NAMES+=("$name"); else PASSED_NAMES+=("$name"); fi
  done < <(compgen -e)
  PASSED_VALUES=("PLATFORM=$2" RUNTIME=native LAUNCHER=torchrun "${PATH_SETTINGS[@]}" TPRIMAT_IN_CONTAINER=1)
  PASSED_VALUES+=("TPRIMAT_IMAGE=$(image_of "$1" "$2")")
  if digest=$(image_digest "$1" "$2" 2>/dev/null); then PASSED_VALUES+=("TPRIMAT_IMAGE_DIGEST=$digest"); fi
  if [[ $1 != apptainer ]]; then PASSED_VALUES+=(HOME=/workspace/home); fi
  _pass_commit
}

# The file is in memory if possible. Its folder keeps others out, so that any user of the container may read the file.
# A watcher removes it, because a script may be killed or replaced by its engine.
lend_private() { # sets PRIVATE_FILE
  local - place name
  set +x # a trace (bash -x) would print the values
  for place in "${XDG_RUNTIME_DIR:-/nonexistent}" /dev/shm "${TMPDIR:-/tmp}"; do
    if [[ -d $place && -w $place ]]; then break; fi
  done
  PRIVATE_FILE=$(mktemp -d "$place/tprimat-XXXXXXXX")/environment ||
    refuse "$place: cannot be written; set TMPDIR to a folder of yours"
  for name in "${PRIVATE_NAMES[@]}"; do printf '%s\0' "$name=${!name}"; done >"$PRIVATE_FILE"
  chmod 644 "$PRIVATE_FILE"
  # shellcheck disable=SC2016 # expanded by the watcher
  bash -c 'trap "" INT TERM HUP; tail --pid="$1" -f /dev/null; rm -rf -- "$2"' tprimat-private \
    "$$" "${PRIVATE_FILE%/*}" </dev/null &>/dev/null &
}
