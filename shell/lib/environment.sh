#!/usr/bin/env bash
# The folder of the checkout, its Python environment, and the arguments and help that all scripts share. Sourced.
#
# Usage:  source shell/lib/environment.sh; use_environment; "$PYTHON" -m utils.configure
# Reads:  *-requirements.txt, .venv/.stamp-*, PLATFORM, PATH; in our images TPRIMAT_VENV (in place of .venv) and
#         TPRIMAT_IN_CONTAINER
# Writes: ROOT, VENV, PYTHON and SECRET_TEXT (not exported); TOKENIZERS_PARALLELISM (exported); PYTHONHOME, PYTHONSAFEPATH
#         and PYTHONOPTIMIZE are unset
# Exits:  2 with one error line, without the secret, if an argument of the script, PLATFORM, RUNTIME, LAUNCHER or METHOD
#         has one; show_help_if_asked with 0, check_arguments with 2 and one error line; the other functions return the
#         exit codes of the scripts that they call
set -Eeuo pipefail

# Command lines are visible to other users, and a message about a bad argument would repeat it: so scripts look before they
# say anything else.
# The published shapes of utils/secret_forms.py (a test compares the two).
SECRET_TEXT='(hf(_|%5[Ff])|api_org_|gh[pousr]_)[A-Za-z0-9]{20}|(AKIA|ASIA)[A-Z0-9]{16}'
SECRET_TEXT+='|(github_pat_|gl[a-z]+-|nvapi-|dckr_pat_|pypi-AgE|wandb_v[0-9]_)[A-Za-z0-9_-]{16}'
SECRET_TEXT+='|xox[a-z]-[A-Za-z0-9-]{10}|xapp-[0-9]-[A-Za-z0-9-]{10}'
SECRET_TEXT+='|(^|[^A-Za-z0-9])sk-([a-z]{2,8}[0-9]*-){0,2}[A-Za-z0-9_]{20}'
SECRET_TEXT+='|(^|[^A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8}'
SECRET_TEXT+='|://[^/[:space:]]*(@|%40)'

_refuse_secret_in() { # <what may be its name>
  local name=$1
  if [[ ! $name =~ ^([A-Z][A-Z0-9_]*|--[a-z][a-z-]*)$ || $name =~ $SECRET_TEXT ]]; then name=argument; fi
  printf 'error: %s: looks like a secret, which a command line would show; see docs/secrets.md\n' "$name" >&2
  exit 2
}

require_no_secrets() { # <arguments of the script...>
  local - argument name
  set +x # a trace (bash -x) would print them
  for argument in "$@"; do
    if [[ $argument == -- ]]; then break; fi # the command for a container, which entry.sh looks at
    if [[ $argument =~ $SECRET_TEXT ]]; then _refuse_secret_in "${argument%%=*}"; fi
  done
  for name in PLATFORM RUNTIME LAUNCHER METHOD; do
    if [[ ${!name:-} =~ $SECRET_TEXT ]]; then _refuse_secret_in "$name"; fi
  done
}
require_no_secrets "$@" # of the script, or of the function in it, that sources this

ROOT=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=${TPRIMAT_VENV:-$ROOT/.venv}
PYTHON=$VENV/bin/python

# A Python of this checkout with a PYTHONHOME of another one does not start.
if [[ -n ${PYTHONHOME:-} ]]; then
  printf 'note: PYTHONHOME=%s is ignored, because .venv has a Python of its own; unset PYTHONHOME\n' "$PYTHONHOME" >&2
  unset PYTHONHOME
fi

# Modules are found from the checkout, in which they are started, and their help is their docstring.
unset PYTHONSAFEPATH PYTHONOPTIMIZE

# The data loaders fork. A tokenizer's threads do not survive a fork and print a warning in every worker.
export TOKENIZERS_PARALLELISM=false

# Print the hash of everything that determines a set of installed packages. cpu-requirements.txt is always part of it,
# because its pins of torch and numpy serve every platform.
wanted_stamp() { # <runtime|dev>
  local platform version files
  platform=$("$ROOT/shell/platform.sh") && version=$("$PYTHON" -V) || return
  files=("$ROOT/cpu-requirements.txt" "$ROOT/$platform-requirements.txt" "$ROOT/energy-requirements.txt")
  if [[ $1 == dev ]]; then files+=("$ROOT/dev-requirements.txt"); fi
  { printf '%s\n' "$platform" "$version" && cat -- "${files[@]}"; } | sha256sum
}

# Prints nothing: setup.sh reports what is wrong with the platform or the Python.
environment_is_fresh() { # <runtime|dev>
  local wanted stamp=$VENV/.stamp-$1
  [[ -f $stamp && ! -e $VENV/.installing ]] || return 1
  wanted=$(wanted_stamp "$1" 2>/dev/null) && [[ $(<"$stamp") == "$wanted" ]]
}

# Make .venv match the requirement files; return at once if it does. The environment of an image is never changed,
# because the software that ran would then differ from the image that the result names.
use_environment() {
  if environment_is_fresh runtime; then return; fi
  if [[ -n ${TPRIMAT_IN_CONTAINER:-} ]]; then
    local platform
    platform=$("$ROOT/shell/platform.sh") || return
    printf 'error: environment: the image is older than %s-requirements.txt or cpu-requirements.txt %s\n' "$platform" \
      "(it was made for $(cat "$VENV/.made-for" 2>/dev/null || printf 'nothing')); run ./shell/build.sh" >&2
    exit 1
  fi
  "$ROOT/shell/setup.sh"
}

# A plan starts nothing and needs the standard library only, so any environment serves and stays as it is, and nothing is
# installed. The environment of an image must be of the checkout, as for a job.
use_environment_to_plan() {
  if [[ -n ${TPRIMAT_IN_CONTAINER:-} ]]; then use_environment; else use_any_python; fi
}

# For commands that need only the standard library and must run where nothing is installed.
use_any_python() {
  if "$PYTHON" -V &>/dev/null; then return; fi
  PYTHON=$(find_python)
}

# Print the Python that .venv is made with: python3 if its version fits, else the newest of python3.13 to python3.10.
# A Python of our own .venv does not count.
find_python() {
  local path problem found=''
  while read -r path; do
    if [[ $path == "$VENV"/* ]]; then continue; fi
    if _python_fits "$path"; then
      printf '%s\n' "$path"
      return
    fi
    found+="$path is $problem; "
  done < <(type -aP python3 python3.13 python3.12 python3.11 python3.10)
  printf 'error: python: got %swanted Python 3.10 to 3.13 with its venv module; install one and run again\n' \
    "${found:-none on PATH; }" >&2
  return 1
}

# Sets `problem` if this Python does not fit.
_python_fits() { # <path>
  problem=$("$1" -V 2>&1) || problem="not running (${problem%%$'\n'*})"
  [[ $problem =~ ^Python\ 3\.1[0-3]\. ]] || return 1
  problem+=" without its venv module (Debian, Ubuntu: apt install python3-venv)"
  "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# Replace this shell with a module of ours, so that signals reach it.
start_module() { # <module> <arguments...>; SETTINGS follow them
  local platform
  cd -- "$ROOT"
  platform=$("$ROOT/shell/platform.sh")
  export PLATFORM=$platform
  exec "$PYTHON" -m "$1" --platform "$platform" "${@:2}" "${SETTINGS[@]}"
}

# The help of a script is the header of the file that calls this.
show_help_if_asked() { # <arguments of the script...>
  local argument
  for argument in "$@"; do
    case $argument in
      -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[1]}"
        exit 0
        ;;
    esac
  done
}

# Refuse what this script does not take, before anything is installed or started. A machine without Python 3.10 or later
# (it starts containers) leaves that to the command in the container.
check_arguments() { # <arguments of the script...>
  local python=$PYTHON script
  if [[ ! -f $ROOT/utils/configure.py ]]; then return 0; fi # an image has only what setup.sh needs while it is built
  if ! "$python" -V &>/dev/null; then python=$(type -P python3) || return 0; fi
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' &>/dev/null || return 0
  script=$(readlink -f -- "$0")
  (cd -- "$ROOT" && "$python" -m utils.configure --platform "$PLATFORM" --check "$script" -- "$@") >&2 || exit
}

# Settings as a script got them, without PLATFORM=, which every process takes from the environment.
take_settings() { # <arguments of the script...>; sets SETTINGS, exports PLATFORM
  local argument
  SETTINGS=()
  for argument in "$@"; do
    case $argument in
      PLATFORM=*) export PLATFORM=${argument#PLATFORM=} ;;
      *) SETTINGS+=("$argument") ;;
    esac
  done
  PLATFORM=$("$ROOT/shell/platform.sh")
  export PLATFORM
  check_arguments "${SETTINGS[@]}"
}
