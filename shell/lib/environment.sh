#!/usr/bin/env bash
# The first part of every script: no secrets in its arguments, its help, its settings, the checkout and its Python. Sourced.
#
# sh reads it as far as the line that refuses sh. -h or --help prints the help of a script and exits: its header, or the
# start of the docstring of the module that the header names.
#
# Usage:  . "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
#         take_arguments "$@"; use_environment; start_module train.matrix
# Reads:  the arguments of the script; utils/secret_forms.txt; config.env and its overlays; *-requirements.txt,
#         .venv/.stamp-*, PLATFORM, PATH; in our images TPRIMAT_VENV (in place of .venv) and TPRIMAT_IN_CONTAINER
# Writes: ROOT, VENV, PYTHON, SECRET_TEXT and SECRET_NAME (not exported); TOKENIZERS_PARALLELISM (exported); PYTHONHOME,
#         PYTHONSAFEPATH and PYTHONOPTIMIZE are unset; the variables of take_arguments
# Exits:  2 with one error line, without the secret, if an argument of the script, PLATFORM, RUNTIME, LAUNCHER or METHOD
#         has one, and for sh; 0 after the help; check_arguments with 2 and one error line; the other functions return the
#         exit codes of the scripts that they call
if [ -z "${BASH_VERSION:-}" ]; then
  script=${0##*/}
  echo "error: ${script%.sh}: needs bash; start it without sh, or as: bash $0" >&2 && exit 2
fi
set -Eeuo pipefail

say() { printf '%s\n' "$*" >&2; }

die() { # <title> <message...>: failed work
  say "error: $1: ${*:2}"
  exit 1
}

refuse() { # <problem, and what to do>: bad input
  say "error: $1"
  exit 2
}

refuse_secret() { # <name> <text>
  local -
  set +x # a trace (bash -x) would print them
  local text=${2//\%5[Ff]/_}
  if [[ ${text//\%2[Dd]/-} =~ $SECRET_TEXT ]]; then refuse "$1: looks like a secret, which a command line would show; see docs/secrets.md"; fi
}

require_no_secrets() { # <arguments of the script...>
  local - argument name
  set +x
  for argument in "$@"; do
    if [[ $argument == -- ]]; then break; fi # the command for a container, which entry.sh looks at
    name=${argument%%=*}
    if [[ ! $name =~ ^([A-Z][A-Z0-9_]*|--[a-z][a-z-]*)$ || $name =~ $SECRET_TEXT ]]; then name=argument; fi
    refuse_secret "$name" "$argument"
  done
  for name in PLATFORM RUNTIME LAUNCHER METHOD; do refuse_secret "$name" "${!name:-}"; done
}

show_version() { sed -n 's/^VERSION = "\(.*\)"/tprimat \1/p' "$ROOT/utils/arguments.py"; }

# The help of a module needs any Python 3.10 or later and no package; without one, the start of its docstring is shown.
show_module_help() { # <module>
  local python
  for python in "$ROOT/.venv/bin/python" python3{,.13,.12,.11,.10}; do
    if PYTHONPATH=$ROOT PYTHONSAFEPATH=1 "$python" -m "$1" --help 2>/dev/null; then return; fi
  done
  sed -n '1s/^"""//; p; /^Example:/q' "$ROOT/${1//.//}.py"
}

show_help_if_asked() { # <arguments of the script...>
  local argument module
  for argument in "$@"; do
    if [[ $argument == -- ]]; then return; fi
    if [[ $argument == --version ]]; then show_version && exit 0; fi
    if [[ $argument != @(-h|--help) ]]; then continue; fi
    if [[ ${HELP_OF_MODULE:-} ]]; then show_module_help "$HELP_OF_MODULE" && exit 0; fi
    module=$(sed -n '2s/.* Help: //p' "$0")
    if [[ $module ]]; then sed -n '1s/^"""//; p; /^Example:/q' "$ROOT/$module" && exit 0; fi
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit 0
  done
}

ROOT=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
# Other users see command lines, and a message about a bad argument would repeat it: so scripts look at them first.
SECRET_TEXT='://[^/[:space:]]*(@|%40)'
# shellcheck disable=SC2034 # passed.sh reads SECRET_NAME
while read -r words before form after; do
  if [[ $words == '#'* ]]; then continue; fi
  if [[ $words == variable ]]; then SECRET_NAME=$before && continue; fi
  if [[ $before != - ]]; then form="(^|[^$before])$form"; fi
  if [[ $after != - ]]; then form+="([^$after]|$)"; fi
  SECRET_TEXT+="|$form"
done <"$ROOT/utils/secret_forms.txt"
require_no_secrets "$@" # of the script, or of the function in it, that sources this
show_help_if_asked "$@"

VENV=${TPRIMAT_VENV:-$ROOT/.venv}
PYTHON=$VENV/bin/python
ARGUMENTS=() SETTINGS=() DRY_RUN=() is_dry_run=false
found_fresh='' # runtime or dev, once it was looked at

# .venv has a Python of its own. Modules are found from the checkout, in which they are started, and their help is their
# docstring.
unset PYTHONHOME PYTHONSAFEPATH PYTHONOPTIMIZE

# The data loaders fork. A tokenizer's threads do not survive a fork and print a warning in every worker.
export TOKENIZERS_PARALLELISM=false

find_platform() { # sets and exports PLATFORM
  if [[ ${PLATFORM:-} != @(amd|nvd|cpu) ]]; then PLATFORM=$("$ROOT/shell/platform.sh") || return; fi
  export PLATFORM
}

# What every process takes from the environment is exported; --dry-run and the rest are kept.
take_arguments() { # <arguments of the script...>; sets is_dry_run, DRY_RUN (or nothing), ARGUMENTS (the rest), SETTINGS of it
  local argument
  for argument in "$@"; do
    case $argument in
      --dry-run) is_dry_run=true DRY_RUN=(--dry-run) ;;
      PLATFORM=* | CONTAINER_ARGS=* | CONTAINER_SHM_SIZE=*) export "${argument?}" ;;
      -*) ARGUMENTS+=("$argument") ;;
      *) ARGUMENTS+=("$argument") SETTINGS+=("$argument") ;;
    esac
  done
  find_platform
  check_arguments "${DRY_RUN[@]}" "${ARGUMENTS[@]}"
}

# Whether an option is among ARGUMENTS, from which it is removed.
take_option() { # <option>
  local argument others=() code=1
  for argument in "${ARGUMENTS[@]}"; do
    if [[ $argument == "$1" ]]; then code=0; else others+=("$argument"); fi
  done
  ARGUMENTS=("${others[@]}")
  return "$code"
}

export_settings() { # <title> <what is wanted> <KEY=VALUE...>
  local argument
  for argument in "${@:3}"; do
    if [[ $argument != [A-Z]*=* ]]; then refuse "$1: got argument '$argument', wanted $2"; fi
    export "${argument?}"
  done
}

# Refuse what this script does not take, before anything is installed or started. A machine without Python 3.10 or later
# (it starts containers) leaves that to the command in the container.
check_arguments() { # <arguments of the script...>
  local python=$PYTHON script is_new='import sys; sys.exit(sys.version_info < (3, 10))'
  if [[ ! -f $ROOT/utils/configure.py ]]; then return 0; fi # an image has only what setup.sh needs while it is built
  if ! "$python" -c "$is_new" &>/dev/null; then
    python=$(type -P python3) && "$python" -c "$is_new" &>/dev/null || return 0
  fi
  script=$(readlink -f -- "$0")
  (cd -- "$ROOT" && "$python" -m utils.configure --platform "$PLATFORM" --check "$script" -- "$@") >&2 || exit
}

# Print one setting as utils/settings/config.py finds it, without Python: an argument (the last of several), the
# environment, then the files. A device's recipe (config.<platform>-best-<device>.env) has no key that scripts read. Only
# Python checks the value.
setting() { # <key> [arguments of the script...]
  local key=$1 argument line layer found='' method=''
  for argument in "${@:2}"; do
    if [[ $argument == "$key="* ]]; then found=$argument; fi
  done
  if [[ -z $found && -v $key ]]; then found=$key=${!key}; fi
  if [[ $found ]]; then printf '%s\n' "${found#*=}" && return; fi
  find_platform || return
  if [[ $key != METHOD ]]; then method=$(setting METHOD "${@:2}") || return; fi
  for layer in ".$PLATFORM-$method" ".$PLATFORM" ''; do # the first is there for METHOD=best
    if line=$(grep -am 1 "^$key=" "$ROOT/config$layer.env" 2>/dev/null); then
      line=${line#*=} && printf '%s\n' "${line%$'\r'}" && return
    fi
  done
  die config.env "$key is missing; add the line $key=..."
}

# Print the hash of everything that determines a set of installed packages. cpu-requirements.txt is always part of it,
# because its pins of torch and numpy serve every platform.
wanted_stamp() { # <runtime|dev>
  local version files
  find_platform && version=$("$PYTHON" -V) || return
  files=("$ROOT/cpu-requirements.txt" "$ROOT/$PLATFORM-requirements.txt" "$ROOT/energy-requirements.txt")
  if [[ $1 == dev ]]; then files+=("$ROOT/dev-requirements.txt"); fi
  { printf '%s\n' "$PLATFORM" "$version" && cat -- "${files[@]}"; } | sha256sum
}

# Prints nothing: setup.sh reports what is wrong with the platform or the Python.
environment_is_fresh() { # <runtime|dev>
  local wanted stamp=$VENV/.stamp-$1
  if [[ $found_fresh == "$1" ]]; then return; fi
  [[ -f $stamp && ! -e $VENV/.installing ]] || return 1
  wanted=$(wanted_stamp "$1" 2>/dev/null) && [[ $(<"$stamp") == "$wanted" ]] && found_fresh=$1
}

# Make .venv match the requirement files; return at once if it does. The environment of an image is never changed,
# because the software that ran would then differ from the image that the result names. A plan starts nothing and needs the
# standard library only, so outside of an image any Python serves, and nothing is installed.
use_environment() {
  if environment_is_fresh runtime; then
    return
  elif [[ -z ${TPRIMAT_IN_CONTAINER:-} ]]; then
    if [[ $is_dry_run == true ]]; then use_any_python; else "$ROOT/shell/setup.sh"; fi
    return
  fi
  find_platform
  die environment "the image is older than $PLATFORM-requirements.txt or cpu-requirements.txt" \
    "(it was made for $(cat "$VENV/.made-for" 2>/dev/null || printf 'nothing')); run ./shell/build.sh"
}

# For commands that need only the standard library and must run where nothing is installed.
use_any_python() {
  "$PYTHON" -V &>/dev/null || PYTHON=$(find_python)
}

# For commands that read results: .venv if it is there, else a small environment without torch.
use_reading_environment() { # <module> <arguments of the command...>
  local more=()
  if "$PYTHON" -c 'import jinja2, scipy' &>/dev/null; then return; fi
  case "$*" in
    *parquet*) more=(pandas pyarrow) ;;
    evaluate.frame* | *csv*) more=(pandas) ;;
  esac
  PYTHON=$("$ROOT/shell/inside/setup_framework.sh" evaluate "${more[@]}") || exit
}

# Print the Python that .venv is made with: python3 if its version fits, else the newest of python3.13 to python3.10.
# A Python of our own .venv does not count.
find_python() {
  local path problem found=''
  while read -r path; do
    if [[ $path == "$VENV"/* ]]; then continue; fi
    problem=$("$path" -V 2>&1) || problem="not running (${problem%%$'\n'*})"
    if [[ $problem =~ ^Python\ 3\.1[0-3]\. ]]; then
      if "$path" -c 'import ensurepip, venv' 2>/dev/null; then printf '%s\n' "$path" && return; fi
      problem+=" without its venv module (Debian, Ubuntu: apt install python3-venv)"
    fi
    found+="$path is $problem; "
  done < <(type -aP python3 python3.13 python3.12 python3.11 python3.10)
  die python "got ${found:-none on PATH; }wanted Python 3.10 to 3.13 with its venv module; install one and run again"
}

# Replace this shell with a module of ours, so that signals reach it.
start_module() { # <module> <arguments...>; ARGUMENTS follow them
  cd -- "$ROOT"
  exec "$PYTHON" -m "$1" --platform "$PLATFORM" "${@:2}" "${ARGUMENTS[@]}"
}

# The same in the caller's folder, in which the paths on the command line are. A `utils` folder there must not shadow ours
# (safe path: Python 3.11 and later).
start_in_folder_of_caller() { # <module> <arguments...>
  export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH} PYTHONSAFEPATH=1
  exec "$PYTHON" -m "$@"
}
