#!/usr/bin/env bash
# What the scripts that install packages share: messages, a lock, pip, environments of single frameworks. Sourced.
#
# Usage:  source shell/lib/environment.sh; source shell/lib/install.sh; take_lock "$VENV" setup; run_pip setup <arguments...>
# Reads:  ROOT, PATH; pip's own settings, proxies
# Writes: <environment>.lock; packages; messages on stderr
# Exits:  die and require_imports exit with 1; has_cpu_wheels and run_pip return 1 on failure
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

# On a terminal, how long pip is at work; this shell ends it, or its own end does.
_tick() {
  local second=0
  while sleep 1 && kill -0 $$ 2>/dev/null; do
    second=$((second + 1))
    printf '\r      %d:%02d elapsed' $((second / 60)) $((second % 60)) >&2
  done
}

# pip's output is shown only if it fails, and then as a whole. An interrupt leaves it in the environment.
run_pip() { # <title> <python> <file of pins> <pip arguments...>
  local code=0 ticker='' output=${2%/bin/*}/.pip-output
  if [[ -t 2 ]]; then
    _tick 9>&- & # without the lock
    ticker=$!
  fi
  "$2" -m pip install --no-input --disable-pip-version-check --progress-bar off -c "$3" "${@:4}" &>"$output" || code=$?
  if [[ $ticker ]]; then
    kill "$ticker" 2>/dev/null || true # it may have ended already
    wait "$ticker" 2>/dev/null || true # its code is that of the kill
    printf '\r\e[K' >&2
  fi
  if ((code != 0)); then cat -- "$output" >&2; fi
  rm -f -- "$output"
  if ((code == 0)); then return; fi
  say "error: $1: pip: could not install '${*:4}', its reason is above; check network, proxy and PIP_INDEX_URL, then run" \
    "again"
  return 1
}

export_settings() { # <title> <KEY=VALUE...>
  local argument
  for argument in "${@:2}"; do
    case $argument in
      [A-Z]*=*) export "${argument?}" ;;
      *) say "error: $1: got argument '$argument', wanted KEY=VALUE or --help" && exit 2 ;;
    esac
  done
}

# The Python and the requirements of an environment. A setup writes its stamp last, so that an environment whose setup was
# interrupted is made anew.
stamp_of() { # <environment> <file of pins>
  { "$1/bin/python" -V && cat -- "$2"; } 2>/dev/null | sha256sum
}

is_stamped() { # <environment> <stamp that it should have>
  [[ -f $1/.stamp && -x $1/bin/python && $(<"$1/.stamp") == "$2" ]]
}

# Print the first Python of those on stdin that is none of the suite's and runs the code without an error.
first_python() { # <code>
  local path
  while read -r path; do
    if [[ $path != "$ROOT"/.venv* ]] && "$path" -c "$1" 2>/dev/null; then printf '%s\n' "$path" && return; fi
  done
  return 1
}

# Print the first Python of a version that can make environments; else the last version found. A shim of pyenv fails where
# its version is not chosen; the folder of its versions has the program itself.
python_of_version() { # <version, such as 3.12>
  local path version found=''
  while read -r path; do
    if [[ $path == "$ROOT"/.venv* ]]; then continue; fi
    version=$("$path" -V 2>/dev/null) || continue
    found=$version
    if [[ $found == "Python $1."* ]] && first_python 'import ensurepip, venv' <<<"$path"; then return; fi
  done < <(
    type -aP "python$1" python3
    compgen -G "${PYENV_ROOT:-${HOME:-/}/.pyenv}/versions/$1.*/bin/python$1"
  )
  printf '%s\n' "$found"
  return 1
}

# End with one line where the Python of a framework cannot import what its trainer imports; without a GPU the module of
# the trainer redirects CUDA to the CPU first. While an image is made it has no trainers yet; probe_image.sh comes later.
require_imports() { # <framework> <python> <its package> <what is wanted> [<code> <folders of modules>]
  local output reason
  if [[ ! -d $ROOT/train ]]; then return; fi
  output=$(cd / && PYTHONPATH=${6:-$ROOT}${PYTHONPATH:+:$PYTHONPATH} "$2" -c "${5:-import train.train_$1}" 2>&1) && return
  reason="whose import ends with ${output##*$'\n'}"
  if [[ $reason =~ "No module named '"([^\']+) ]]; then reason="which lacks ${BASH_REMATCH[1]}"; fi
  die "$1" "got $3 $(version_of "$2" "$3") of $2, $reason; wanted $4, or leave $1 out of FRAMEWORK"
}

version_of() { # <python> <package>
  "$1" -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$2" 2>/dev/null || printf 'of no known version'
}

packages_of() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; } # <python>
