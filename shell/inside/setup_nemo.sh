#!/usr/bin/env bash
# Print the Python that runs NeMo's ranks; on a machine without a GPU make or repair .venv-nemo for it first.
#
# NeMo 2.3 wants other versions of numpy, transformers and megatron-core than the suite, so it has an environment of its
# own, and the two never mix. On NVIDIA it is the NeMo container's own Python, to which nothing is added.
#
# Usage:  shell/inside/setup_nemo.sh [PLATFORM=nvd|cpu] [KEY=VALUE ...]
# Reads:  nemo-requirements.txt, PLATFORM, PATH; pip's own settings, proxies
# Writes: .venv-nemo, .venv-nemo.lock; one path on stdout
# Exits:  0; 1 no Python that fits, or something could not be installed; 2 bad argument, or a platform without NeMo
set -Eeuo pipefail

# shellcheck source=shell/lib/environment.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/environment.sh"

CPU_WHEELS=https://download.pytorch.org/whl/cpu
VENV=$ROOT/.venv-nemo
REQUIREMENTS=$ROOT/nemo-requirements.txt

say() { printf '%s\n' "$*" >&2; }

die() {
  say "error: nemo: $*"
  exit 1
}

# Two at once would write into each other's environment.
take_lock() {
  type -P flock >/dev/null || return 0
  mkdir -p -- "$VENV.lock"
  exec 9>"$VENV.lock/held"
  flock -n 9 && return
  say "another setup of NeMo is at work on this checkout; waiting for it"
  flock 9
}

wanted_stamp() {
  { "$VENV/bin/python" -V && cat -- "$REQUIREMENTS"; } 2>/dev/null | sha256sum
}

is_fresh() {
  [[ -f $VENV/.stamp && -x $VENV/bin/python && $(<"$VENV/.stamp") == "$(wanted_stamp)" ]]
}

python_311() {
  local path found=''
  while read -r path; do
    if [[ $path == "$ROOT"/.venv* ]]; then continue; fi
    found=$("$path" -V 2>&1) || continue
    if [[ $found == "Python 3.11."* ]] && "$path" -c 'import ensurepip, venv' 2>/dev/null; then
      printf '%s\n' "$path"
      return
    fi
  done < <(type -aP python3.11 python3)
  die "got ${found:-no python3} on PATH, wanted Python 3.11 with its venv module (megatron-core 0.12.3 has no wheel for" \
    "3.12 and later); install python3.11, or leave nemo out: FRAMEWORK=mega,hf"
}

pip_install() { # <pip arguments...>
  local quiet=()
  if [[ ! -t 2 ]]; then quiet=(--quiet); fi
  "$VENV/bin/python" -m pip install --no-input --disable-pip-version-check "${quiet[@]}" -c "$REQUIREMENTS" "$@" >&2 ||
    die "pip: could not install '$*', its reason is above; check network, proxy and PIP_INDEX_URL, then run again"
}

# The stamp comes last, so an environment whose making was interrupted is made anew.
make_environment() {
  local python extra=()
  python=$(python_311) || exit
  say "[1/3] making .venv-nemo with $("$python" -V) of $python (about 2.5 GB, once)"
  "$python" -m venv --clear "$VENV" >&2 || die "venv: could not make $VENV; the reason is above"
  if "$python" "$ROOT/shell/lib/torch_source.py" answers "$CPU_WHEELS/torch/"; then extra=(--extra-index-url "$CPU_WHEELS"); fi
  say "[2/3] torch and numpy"
  pip_install "${extra[@]}" torch numpy
  say "[3/3] packages of nemo-requirements.txt"
  pip_install -r "$REQUIREMENTS"
  wanted_stamp >"$VENV/.stamp"
}

# The container's Python may be called either; .venv is made with --system-site-packages and is not the container's own.
container_python() {
  local path
  while read -r path; do
    if [[ $path == "$ROOT"/.venv* ]]; then continue; fi
    if "$path" -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ("nemo", "nemo_run"))))' 2>/dev/null; then
      printf '%s\n' "$path"
      return
    fi
  done < <(type -aP python3 python)
  die "got no Python with NeMo on PATH, wanted that of NVIDIA's container; run inside nvcr.io/nvidia/nemo:25.04," \
    "or leave nemo out: FRAMEWORK=mega,hf"
}

main() {
  local argument
  show_help_if_asked "$@"
  for argument in "$@"; do
    case $argument in
      [A-Z]*=*) export "${argument?}" ;;
      *) say "error: nemo: got argument '$argument', wanted KEY=VALUE or --help" && exit 2 ;;
    esac
  done
  PLATFORM=$("$ROOT/shell/platform.sh")
  case $PLATFORM in
    cpu)
      if ! is_fresh; then
        if [[ -n ${TPRIMAT_IN_CONTAINER:-} ]]; then
          die "got the image tprimat:cpu, which has no NeMo; use RUNTIME=native, or leave nemo out: FRAMEWORK=mega,hf"
        fi
        take_lock
        is_fresh || make_environment
      fi
      printf '%s\n' "$VENV/bin/python"
      ;;
    nvd) container_python ;;
    *) say "error: nemo: got PLATFORM=$PLATFORM, wanted nvd or cpu; FRAMEWORK=prim is AMD's" && exit 2 ;;
  esac
}

main "$@"
