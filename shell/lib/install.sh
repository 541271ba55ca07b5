#!/usr/bin/env bash
# What the scripts that install packages share: messages, a lock, pip. Sourced.
#
# Usage:  source shell/lib/environment.sh; source shell/lib/install.sh; take_lock "$VENV" setup; run_pip setup <arguments...>
# Reads:  ROOT, PATH; pip's own settings, proxies
# Writes: <environment>.lock; packages; messages on stderr
# Exits:  die exits with 1; has_cpu_wheels and run_pip return 1 on failure
set -Eeuo pipefail

CPU_WHEELS=https://download.pytorch.org/whl/cpu

say() { printf '%s\n' "$*" >&2; }

die() { # <title> <message...>
  say "error: $1: ${*:2}"
  exit 1
}

# Two setups at once would write into the same environment. The lock is a folder beside the environment, because the
# environment may be made anew.
take_lock() { # <environment> <name of the setup>
  type -P flock >/dev/null || return 0
  mkdir -p -- "$1.lock"
  exec 9>"$1.lock/held"
  flock -n 9 && return
  say "another $2 is running in this checkout; waiting for it"
  flock 9
}

# Whether the index with PyTorch's builds for CPUs can be reached from here.
has_cpu_wheels() { # <python>
  "$1" "$ROOT/shell/lib/torch_source.py" answers "$CPU_WHEELS/torch/"
}

run_pip() { # <title> <python> <file of pins> <pip arguments...>
  local quiet=()
  if [[ ! -t 2 ]]; then quiet=(--quiet); fi
  "$2" -m pip install --no-input --disable-pip-version-check "${quiet[@]}" -c "$3" "${@:4}" >&2 && return
  say "error: $1: pip: could not install '${*:4}', its reason is above; check network, proxy and PIP_INDEX_URL, then run" \
    "again"
  return 1
}
