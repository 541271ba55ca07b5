#!/usr/bin/env bash
# Secrets from secrets.env, exported to the environment of the calling script, so that no command line contains one. Sourced.
#
# For scripts that access the hub, and for those that must know a secret to keep it out of a file. A variable of the
# environment takes precedence, even if it is empty. Without the file nothing changes. Links are followed.
#
# Usage:  source shell/lib/secrets.sh; load_secrets
# Reads:  secrets.env beside config.env: KEY=VALUE as there, of the keys in SECRET_KEYS
# Writes: the exported variables of SECRET_KEYS and TPRIMAT_SECRETS_TAKEN; one warning if others can read the file
# Exits:  never; load_secrets returns 2 with one error line, without the value, for a bad file
set -Eeuo pipefail

SECRET_KEYS=(HF_TOKEN)
SECRETS_FILE=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)/secrets.env

# No message repeats a line of the file: it may be a secret with a typing error beside it.
refuse_secrets() { # <problem, and what to do>
  printf 'error: secrets.env:%s\n' "$1" >&2
  return 2
}

warn_of_readers() {
  local mode owner quoted
  # a plain assignment of $(...) would not end a caller that runs without `set -e`
  read -r mode owner < <(stat -L -c '%a %u' -- "$SECRETS_FILE") || return 0
  printf -v quoted %q "$SECRETS_FILE"
  if (((8#$mode & 077) != 0)); then
    printf 'warning: secrets.env: mode %s lets others read it: chmod 600 %s\n' "$mode" "$quoted" >&2
  elif ((owner != EUID && EUID != 0)); then
    printf 'warning: secrets.env: belongs to user %s, who can read it: keep a copy of your own\n' "$owner" >&2
  fi
}

is_secret_key() { # <key>
  local known
  for known in "${SECRET_KEYS[@]}"; do
    if [[ $1 == "$known" ]]; then return 0; fi
  done
  return 1
}

take_secret() { # <number of the line> <line> <keys so far...>; sets KEY
  local line=$2 value
  if [[ ! $line =~ ^([A-Z][A-Z0-9_]*)=([^[:space:]]*)$ || $line == *[\$\'\"\`\\]* ]]; then
    refuse_secrets "$1: wanted KEY=VALUE without quotes, spaces, \$ or export, comments on their own line"
    return
  fi
  KEY=${BASH_REMATCH[1]} value=${BASH_REMATCH[2]}
  if ! is_secret_key "$KEY"; then
    # the key is not printed either: it may be the end of a secret that was split over two lines
    refuse_secrets "$1: unknown key; known: ${SECRET_KEYS[*]}; settings belong in config.env"
    return
  fi
  if [[ " ${*:3} " == *" $KEY "* ]]; then
    refuse_secrets "$1: $KEY is there twice; keep one of the two"
    return
  fi
  if [[ -n $value && -z ${!KEY+set} ]]; then export "$KEY=$value"; fi
}

load_secrets() {
  # a trace (bash -x) would print the values
  local - number=0 line KEY keys=()
  set +x
  # the script that started this one has loaded them, and has warned
  if [[ -n ${TPRIMAT_SECRETS_TAKEN:-} ]]; then return 0; fi
  export TPRIMAT_SECRETS_TAKEN=1
  # in our containers /dev/null hides the file: the script outside has loaded it
  if [[ -c $SECRETS_FILE || (! -e $SECRETS_FILE && ! -L $SECRETS_FILE) ]]; then return 0; fi
  if [[ ! -f $SECRETS_FILE || ! -r $SECRETS_FILE ]]; then
    refuse_secrets " cannot be read as a file; see secrets.env.example, or remove it"
    return
  fi
  warn_of_readers
  while IFS= read -r line || [[ -n $line ]]; do
    number=$((number + 1))
    if [[ -z ${line//[[:space:]]/} || $line == '#'* ]]; then continue; fi
    take_secret "$number" "$line" "${keys[@]}" || return
    keys+=("$KEY")
  done <"$SECRETS_FILE"
}
