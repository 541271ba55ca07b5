#!/usr/bin/env bash
# Print the Python that .venv is made with: python3 where its version fits, else python3.13 to python3.10.
# Usage:  shell/lib/find_python.sh [KEY=VALUE ...]        no setting changes what it finds
# Reads:  PATH; a Python inside our own .venv does not count
# Writes: one path on stdout
# Exits:  0; 1 with one error line that says what was found instead; 2 bad argument
set -Eeuo pipefail

# shellcheck source=shell/lib/environment.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/environment.sh"

# Sets `verdict` to what stands in the way of this Python.
fits() { # <path>
  verdict=$("$1" -V 2>&1) || verdict="not running (${verdict%%$'\n'*})"
  [[ $verdict =~ ^Python\ 3\.1[0-3]\. ]] || return 1
  verdict+=" without its venv module (Debian, Ubuntu: apt install python3-venv)"
  "$1" -c 'import ensurepip, venv' 2>/dev/null
}

main() {
  local argument path verdict found=''
  show_help_if_asked "$@"
  for argument in "$@"; do
    [[ $argument == [A-Z]*=* ]] && continue
    printf "error: python: got argument '%s', wanted KEY=VALUE or --help\n" "$argument" >&2
    return 2
  done
  while read -r path; do
    if [[ $path == "$VENV"/* ]]; then continue; fi
    if fits "$path"; then
      printf '%s\n' "$path"
      return
    fi
    found+="$path is $verdict; "
  done < <(type -aP python3 python3.13 python3.12 python3.11 python3.10)
  printf 'error: python: got %swanted Python 3.10 to 3.13 with its venv module; install one and run again\n' \
    "${found:-none on PATH; }" >&2
  return 1
}

main "$@"
