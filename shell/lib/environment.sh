#!/usr/bin/env bash
# Where the checkout and its Python are, and whether that Python is ready. Sourced by the other scripts.
# Usage:  source shell/lib/environment.sh; use_environment; "$PYTHON" -m utils.configure
# Reads:  *-requirements.txt, .venv/.stamp-*, PLATFORM; in our images TPRIMAT_VENV (in place of .venv), TPRIMAT_IN_CONTAINER
# Writes: ROOT, VENV and PYTHON (not exported); TOKENIZERS_PARALLELISM (exported)
# Exits:  0 after showing help; else not itself: its functions return what the scripts that they call returned
set -Eeuo pipefail

ROOT=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=${TPRIMAT_VENV:-$ROOT/.venv}
PYTHON=$VENV/bin/python

# The data loaders fork; a tokenizer's threads do not survive that, and warn about it in every worker.
export TOKENIZERS_PARALLELISM=false

# A stamp holds the hash of all that decides what an installed set is. cpu-requirements.txt is always a part: its torch
# and numpy lines serve every platform.
wanted_stamp() { # <runtime|dev>
  local platform version files
  platform=$("$ROOT/shell/platform.sh") && version=$("$PYTHON" -V) || return
  files=("$ROOT/cpu-requirements.txt" "$ROOT/$platform-requirements.txt")
  if [[ $1 == dev ]]; then files+=("$ROOT/dev-requirements.txt"); fi
  { printf '%s\n' "$platform" "$version" && cat -- "${files[@]}"; } | sha256sum
}

# Quiet: where something is wrong with the platform or the Python, setup.sh says so.
environment_is_fresh() { # <runtime|dev>
  local wanted stamp=$VENV/.stamp-$1
  [[ -f $stamp && ! -e $VENV/.installing ]] || return 1
  wanted=$(wanted_stamp "$1" 2>/dev/null) && [[ $(<"$stamp") == "$wanted" ]]
}

# Make .venv what the requirement files say; at once when it is so already. That of an image is never changed: what ran
# would no longer be the image that the result names.
use_environment() {
  if environment_is_fresh runtime; then return; fi
  if [[ -n ${TPRIMAT_IN_CONTAINER:-} ]]; then
    local platform
    platform=$("$ROOT/shell/platform.sh") || return
    printf 'error: environment: the image is older than %s-requirements.txt or cpu-requirements.txt (it was made for %s); %s\n' \
      "$platform" "$(cat "$VENV/.made-for" 2>/dev/null || printf 'nothing')" "run ./shell/build.sh" >&2
    exit 1
  fi
  "$ROOT/shell/setup.sh"
}

# For what needs the standard library only, and must run where nothing is installed.
use_any_python() {
  if "$PYTHON" -V &>/dev/null; then return; fi
  PYTHON=$("$ROOT/shell/lib/find_python.sh")
}

# Settings as a script got them, without PLATFORM=, which every process takes from the environment.
take_settings() { # <arguments of the script...>; sets SETTINGS, may export PLATFORM
  local argument
  SETTINGS=()
  for argument in "$@"; do
    case $argument in
      PLATFORM=*) export PLATFORM=${argument#PLATFORM=} ;;
      *) SETTINGS+=("$argument") ;;
    esac
  done
}

# A script's help is its header: one text, which cannot fall behind.
show_help_if_asked() { # <arguments of the script...>
  local argument
  for argument in "$@"; do
    case $argument in
      -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    esac
  done
}

# Started and not sourced, there is nothing else that it could do.
if [[ ${BASH_SOURCE[0]} == "$0" ]]; then show_help_if_asked --help; fi
