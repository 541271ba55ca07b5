#!/usr/bin/env bash
# One setting, read without Python, with the precedence of utils/settings/config.py. Sourced.
#
# Usage:  source shell/lib/environment.sh; source shell/lib/setting.sh; setting OUTPUT_DIR "$@"
# Reads:  KEY=VALUE arguments, then the environment, then config.<platform>-best.env (METHOD=best), config.<platform>.env
#         and config.env; PLATFORM. A device's recipe (config.<platform>-best-<device>.env) sets no key that scripts read.
# Writes: the value on stdout; only Python checks it
# Exits:  never; setting returns 1 with an error line if no layer has the key
set -Eeuo pipefail

# Sets `value`. A file has a key at most once.
_value_in_file() { # <key> <file>
  local line
  [[ -r $2 ]] || return 1
  while IFS= read -r line || [[ -n $line ]]; do
    if [[ $line == "$1="* ]]; then
      value=${line#*=}
      value=${value%$'\r'}
      return
    fi
  done <"$2"
  return 1
}

# Sets `value`. The last of several arguments counts.
_value_asked() { # <key> <arguments...>
  local key=$1 argument is_asked=false
  shift
  for argument in "$@"; do
    if [[ $argument == "$key="* ]]; then value=${argument#*=} is_asked=true; fi
  done
  if [[ $is_asked == true ]]; then return; fi
  if [[ ! -v $key ]]; then return 1; fi
  value=${!key}
}

setting() { # <key> [arguments of the script...]
  local key=$1 value='' method='' platform=${PLATFORM:-}
  shift
  if _value_asked "$key" "$@"; then
    printf '%s\n' "$value"
    return
  fi
  if [[ -z $platform ]]; then platform=$("$ROOT/shell/platform.sh") || return; fi
  if [[ $key != METHOD ]]; then method=$(setting METHOD "$@") || return; fi
  if [[ $method == best ]] && _value_in_file "$key" "$ROOT/config.$platform-best.env" ||
    _value_in_file "$key" "$ROOT/config.$platform.env" || _value_in_file "$key" "$ROOT/config.env"; then
    printf '%s\n' "$value"
    return
  fi
  printf 'error: config.env: %s is missing; add the line %s=...\n' "$key" "$key" >&2
  return 1
}
