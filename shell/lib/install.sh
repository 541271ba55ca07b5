#!/usr/bin/env bash
# What the scripts that install packages share: a lock, pip. Sourced.
#
# Usage:  . shell/lib/environment.sh; . shell/lib/install.sh; take_lock "$VENV" setup; run_pip setup <arguments...>
# Reads:  ROOT, PATH; TPRIMAT_WHEELS (a folder of wheels in place of every index); pip's own settings, proxies
# Writes: <environment>.lock; packages; messages on stderr
# Exits:  never; has_cpu_wheels and run_pip return 1 on failure

CPU_WHEELS=https://download.pytorch.org/whl/cpu

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
  [[ -z ${TPRIMAT_WHEELS:-} ]] && "$1" "$ROOT/shell/lib/torch_source.py" answers "$CPU_WHEELS/torch/"
}

# On a terminal, how long pip is at work; this shell ends it, or its own end does.
_tick() {
  SECONDS=0
  while sleep 1 && kill -0 $$ 2>/dev/null; do
    printf '\r      %d:%02d elapsed' $((SECONDS / 60)) $((SECONDS % 60)) >&2
  done
}

# An interrupt leaves the output in its file.
run_quietly() { # <file for its output> <command...>
  local code=0 ticker=''
  if [[ -t 2 ]]; then
    _tick 9>&- & # without the lock
    ticker=$!
  fi
  "${@:2}" &>"$1" || code=$?
  if [[ $ticker ]]; then
    kill "$ticker" 2>/dev/null || true # it may have ended already
    wait "$ticker" 2>/dev/null || true # its code is that of the kill
    printf '\r\e[K' >&2
  fi
  return "$code"
}

# pip's output is shown only if it fails, and then as a whole.
run_pip() { # <title> <python> <file of pins> <pip arguments...>
  local code=0 output=${2%/bin/*}/.pip-output source=() advice="check network, proxy and PIP_INDEX_URL"
  if [[ ${TPRIMAT_WHEELS:-} ]]; then
    source=(--no-index --find-links "$TPRIMAT_WHEELS") advice="$TPRIMAT_WHEELS is the only source; see docs/containers.md"
  fi
  run_quietly "$output" "$2" -m pip install --no-input --disable-pip-version-check --progress-bar off -c "$3" \
    "${source[@]}" "${@:4}" || code=$?
  if ((code != 0)); then
    cat -- "$output" >&2
    say "error: $1: pip: could not install '${*:4}', its reason is above; $advice, then run again"
  fi
  rm -f -- "$output"
  return $((code != 0))
}

packages_of() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; } # <python>
