#!/usr/bin/env bash
# The secrets of secrets.env, and the environment variables that a container gets: settings, what changes speed. Sourced.
#
# load_secrets is for scripts that access the hub or keep a secret out of a file. A variable of the environment takes
# precedence, even if it is empty. Without secrets.env nothing changes. Links are followed.
#
# A variable that names a path of this machine (..._PATH, ..._HOME, ..._DIR, LD_PRELOAD) is not passed: the image has
# something else at that path, or nothing. TPRIMAT_ENV_NAMES=NAME,NAME passes other variables, also to the ranks.
# `docker inspect` shows the value of each variable that is passed by name. A value that may be a secret goes through a
# file that only the caller can read; shell/inside/start.sh takes it from there. In apptainer nothing shows values.
#
# Usage:  . shell/lib/environment.sh; . shell/lib/passed.sh; load_secrets
#         pass_environment; lend_private
# Reads:  secrets.env beside config.env: KEY=VALUE as there, of the keys in SECRET_KEYS; the environment, keys of config.env,
#         PATH_SETTINGS of shell/lib/mounts.sh, git, the engine (id of the image)
# Writes: the exported variables of SECRET_KEYS and TPRIMAT_SECRETS_TAKEN; PASSED_NAMES, PRIVATE_NAMES (names of variables),
#         PASSED_VALUES (NAME=VALUE, no secrets); the private file, which is removed when this process, or the engine that
#         replaces it, ends
# Exits:  2 with one error line, without the value, for a bad secrets.env

SECRET_KEYS=(HF_TOKEN)
PASSED_NAMES=() PRIVATE_NAMES=() PASSED_VALUES=()

# A wide net, because a value in it still reaches the container: addresses with a user, and words as long as a token.
PRIVATE_VALUE='@|%40|[A-Za-z0-9_-]{20}'
# The same names as SPEED_VARIABLES in utils/provenance/origin.py, which are recorded (a test compares the two).
SPEED_NAMES='^(PYTORCH|TORCH|TORCHINDUCTOR|TORCHDYNAMO|TRITON|GLOO|LD_PRELOAD|OMP|GOMP|MKL|KMP|OPENBLAS|ONEDNN|DNNL|MALLOC'
SPEED_NAMES+='|ATEN_CPU|CUDA|FLASH_ATTENTION|CUDNN|CUBLAS|CUBLASLT|NVIDIA_TF32|HSA|HIP|ROCR|ROC|GPU|AMD|ROCBLAS|HIPBLASLT'
SPEED_NAMES+='|AITER|CK|NVTE|TE|UB|NCCL|RCCL|UCX|PRIMUS|TOKENIZERS|MIOPEN|XLA)(_|$)'

# The script that started this one has loaded them, and has warned. In our containers /dev/null hides the file: the script
# outside has loaded it. No message repeats a line of the file, nor a key: it may be the end of a secret that was split over
# two lines.
load_secrets() {
  local - file=$ROOT/secrets.env number=0 line key value keys=' '
  set +x # a trace (bash -x) would print the values
  if [[ -n ${TPRIMAT_SECRETS_TAKEN:-} ]]; then return 0; fi
  export TPRIMAT_SECRETS_TAKEN=1
  if [[ -c $file || (! -e $file && ! -L $file) ]]; then return 0; fi
  if [[ ! -f $file || ! -r $file ]]; then
    refuse "secrets.env: cannot be read as a file; see secrets.env.example, or remove it"
  fi
  _warn_of_readers "$file"
  while IFS= read -r line || [[ -n $line ]]; do
    number=$((number + 1))
    if [[ -z ${line//[[:space:]]/} || $line == '#'* ]]; then continue; fi
    if [[ ! $line =~ ^([A-Z][A-Z0-9_]*)=([^[:space:]]*)$ || $line == *[\$\'\"\`\\]* ]]; then
      refuse "secrets.env:$number: wanted KEY=VALUE without quotes, spaces, \$ or export, comments on their own line"
    fi
    key=${BASH_REMATCH[1]} value=${BASH_REMATCH[2]}
    if [[ " ${SECRET_KEYS[*]} " != *" $key "* ]]; then
      refuse "secrets.env:$number: unknown key; known: ${SECRET_KEYS[*]}; settings belong in config.env"
    elif [[ $keys == *" $key "* ]]; then
      refuse "secrets.env:$number: $key is there twice; keep one of the two"
    fi
    keys+="$key "
    if [[ -n $value && -z ${!key+set} ]]; then export "$key=$value"; fi
  done <"$file"
}

_warn_of_readers() { # <file>
  local mode owner
  read -r mode owner < <(stat -L -c '%a %u' -- "$1") || return 0
  if (((8#$mode & 077) != 0)); then
    printf 'warning: secrets.env: mode %s lets others read it: chmod 600 %q\n' "$mode" "$1" >&2
  elif ((owner != EUID && EUID != 0)); then
    say "warning: secrets.env: belongs to user $owner, who can read it: keep a copy of your own"
  fi
}

is_setting() { # <name>
  [[ $'\n'$(<"$ROOT/config.env") == *$'\n'"$1="* ]]
}

is_path_setting() { # <name>
  [[ " ${PATH_SETTINGS[*]%%=*} " == *" $1 "* ]]
}

_may_be_secret() { # <name>
  local -
  set +x # a trace (bash -x) would print the value
  [[ ${1^^} =~ $SECRET_NAME || ${!1} =~ $PRIVATE_VALUE ]]
}

is_passed() { # <name>
  if [[ ,${TPRIMAT_ENV_NAMES:-}, == *",$1,"* ]]; then return 0; fi
  case $1 in
    PLATFORM | RUNTIME | LAUNCHER | OUTPUT_DIR | DATA_DIR) return 1 ;; # passed by value, or used only here
    *_HOME | *_PATH | *_ROOT | *_DIR | *_CACHE | *_FOLDER | *_LIBRARY | *_PRELOAD) return 1 ;;
    NO_COLOR | COLUMNS | LINES | TZ | STRICT | TPRIMAT_MACHINE | TPRIMAT_ENV_NAMES | HF_*) return 0 ;;
    http_proxy | https_proxy | all_proxy | no_proxy | HTTP_PROXY | HTTPS_PROXY | ALL_PROXY | NO_PROXY) return 0 ;;
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

pass_environment() {
  local name digest
  PASSED_NAMES=() PRIVATE_NAMES=()
  while read -r name; do
    if ! is_passed "$name" || is_path_setting "$name"; then continue; fi
    if [[ $RUNTIME != apptainer ]] && _may_be_secret "$name"; then PRIVATE_NAMES+=("$name"); else PASSED_NAMES+=("$name"); fi
  done < <(compgen -e)
  PASSED_VALUES=("PLATFORM=$PLATFORM" RUNTIME=native LAUNCHER=torchrun "${PATH_SETTINGS[@]}" TPRIMAT_IN_CONTAINER=1)
  PASSED_VALUES+=("TPRIMAT_IMAGE=$(image_of "$RUNTIME" "$PLATFORM")")
  if digest=$(image_digest "$RUNTIME" "$PLATFORM" 2>/dev/null); then PASSED_VALUES+=("TPRIMAT_IMAGE_DIGEST=$digest"); fi
  if [[ $RUNTIME != apptainer ]]; then PASSED_VALUES+=(HOME=/workspace/home); fi
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
  bash -c 'trap "" INT TERM HUP; tail --pid="$1" -f /dev/null; rm -rf -- "$2"' tprimat-private \
    "$$" "${PRIVATE_FILE%/*}" </dev/null &>/dev/null &
}
