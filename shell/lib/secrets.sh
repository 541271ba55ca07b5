#!/usr/bin/env bash
# Take secrets from secrets.env into the environment of the calling script, by name, so that no command line holds one.
#
# Sourced by what talks to the hub, and by what must know a secret to keep it out of a file. The environment comes first,
# also with an empty value. Without the file nothing changes. A link is followed; what it leads to is judged.
#
# Usage:  source shell/lib/secrets.sh; load_secrets
# Reads:  secrets.env beside config.env: KEY=VALUE as there, of the keys in SECRET_KEYS
# Writes: the exported variables of SECRET_KEYS and TPRIMAT_SECRETS_TAKEN; one warning where others can read the file
# Exits:  0 after showing help; load_secrets returns 2 with one error line, without the value, for a bad file
set -Eeuo pipefail

SECRET_KEYS=(HF_TOKEN)
SECRETS_FILE=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)/secrets.env

# No message repeats a line of the file: it may be a secret with a slip of the finger beside it.
refuse_secrets() { # <what is wrong, what to do>
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
    # nor is the key named: it may be the end of a secret that was broken in two
    refuse_secrets "$1: unknown key; known: ${SECRET_KEYS[*]}; settings belong into config.env"
    return
  fi
  if [[ " ${*:3} " == *" $KEY "* ]]; then
    refuse_secrets "$1: $KEY stands there twice; keep one of the two"
    return
  fi
  if [[ -n $value && -z ${!KEY+set} ]]; then export "$KEY=$value"; fi
}

load_secrets() {
  # a trace (bash -x) would print the values
  local - number=0 line KEY keys=()
  set +x
  # a script that another has started has nothing more to take, and need not warn again
  if [[ -n ${TPRIMAT_SECRETS_TAKEN:-} ]]; then return 0; fi
  export TPRIMAT_SECRETS_TAKEN=1
  # in our containers /dev/null hides the file: the script outside has read it
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

# Started and not sourced, there is nothing else that it could do.
if [[ ${BASH_SOURCE[0]} == "$0" ]]; then sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; fi
