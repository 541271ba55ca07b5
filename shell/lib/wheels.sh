#!/usr/bin/env bash
# Setup of a machine without a network from a folder of wheels, which another machine collects. Sourced by shell/setup.sh.
#
# The folder has wheels/, manifest.txt (what they are for; its first line marks the folder as the suite's) and, once they
# are complete, SHA256SUMS. shell/lib/collect.sh makes it.
#
# Usage:  . "$ROOT/shell/lib/wheels.sh"; setup_with_wheels "$@"
# Reads:  ROOT, PLATFORM; *-requirements.txt; DIR
# Writes: as setup.sh; TPRIMAT_WHEELS (exported), environments (names of those beside .venv that DIR is for)
# Exits:  1 something could not be installed; 2 with one error line for a bad argument, and if DIR is not the suite's, is
#         for something else, or is incomplete

MARK='# Wheels for ./tprimat setup --offline, collected by ./tprimat setup --download'

# Print the first lines of the manifest, which must be the same on both machines.
describe() { # <python> <machine> <environment...>
  printf '%s\nplatform %s\npython %s\nmachine %s\nenvironments %s\n' "$MARK" "$PLATFORM" "$1" "$2" "${*:3}"
  cd -- "$ROOT" || return
  printf '%s-requirements.txt\n' "$PLATFORM" cpu energy "${@:3}" | sort -u | xargs sha256sum --
}

is_ours() { # <folder>
  local line=''
  if [[ -f $1/manifest.txt ]]; then IFS= read -r line <"$1/manifest.txt" || true; fi # true: the last line may have no end
  [[ $line == "$MARK" ]]
}

# Refuse a folder whose manifest does not begin with the wanted lines.
require_lines() { # <folder> <what to do> <line...>
  local stored i wanted=("${@:3}")
  mapfile -t stored <"$1/manifest.txt"
  for i in "${!wanted[@]}"; do
    if [[ ${stored[i]-} == "${wanted[i]}" ]]; then continue; fi
    if [[ ${wanted[i]} == *.txt ]]; then
      refuse "setup: $1: got wheels for another ${wanted[i]##* }, wanted that of this checkout; $2"
    fi
    refuse "setup: $1: got wheels for ${stored[i]-}, wanted ${wanted[i]}; $2"
  done
}

require_wheels() { # <folder> <python>
  local lines output again="run ./tprimat setup --download with --platform $PLATFORM --python $2 and this checkout"
  if ! is_ours "$1"; then
    refuse "setup: $1: got no folder that ./tprimat setup --download made, wanted one; see ./tprimat setup --help"
  fi
  mapfile -t lines <"$1/manifest.txt"
  read -ra environments <<<"${lines[4]#environments}"
  mapfile -t lines < <(describe "$2" "$(uname -m)" "${environments[@]}")
  require_lines "$1" "$again" "${lines[@]}"
  if [[ ! -f $1/SHA256SUMS ]]; then
    refuse "setup: $1: incomplete; run the same ./tprimat setup --download again"
  elif ! output=$(cd -- "$1" && sha256sum --check --quiet --strict SHA256SUMS 2>&1); then
    refuse "setup: $1: ${output%%$'\n'*}; copy the folder again"
  fi
}

take_values() { # <arguments of the script...>; sets given and ARGUMENTS (the rest)
  while (($#)); do
    case $1 in
      --download | --offline | --python | --machine | --platform)
        if [[ ${2:--} == -* ]]; then refuse "setup: $1: got no value, wanted one; see --help"; fi
        given[${1#--}]=$2
        shift
        ;;
      *) ARGUMENTS+=("$1") ;;
    esac
    shift
  done
  if [[ ${given[platform]-} ]]; then ARGUMENTS+=("PLATFORM=${given[platform]}"); fi
}

# Print the version of the Python that .venv has, or would be made with: 3.12.
short_version() {
  # shellcheck disable=SC2153 # environment.sh sets PYTHON
  local program=$PYTHON version
  if ! keeps_venv >/dev/null; then program=$(find_python) || return; fi
  version=$("$program" -V)
  [[ $version =~ ^Python\ ([0-9]+\.[0-9]+) ]] && printf '%s\n' "${BASH_REMATCH[1]}"
}

# Each environment for itself: without Python 3.11, for example, there is no NeMo, and all others work.
make_others() {
  local name failed=''
  for name in "${environments[@]}"; do
    "$ROOT/shell/inside/setup_framework.sh" "$name" >/dev/null || failed+=${failed:+, }.venv-$name
  done
  if [[ $failed ]]; then die setup "could not make $failed, the reason is above; everything else is ready"; fi
}

setup_with_wheels() { # <arguments of the script...>
  local version
  local -A given=()
  take_values "$@"
  PLATFORM=cpu check_arguments "${ARGUMENTS[@]}"
  export_settings setup 'an option of --help or KEY=VALUE' "${ARGUMENTS[@]}"
  find_platform
  version=$(short_version) || exit
  if [[ ! ${given[offline]-} ]]; then
    . "$ROOT/shell/lib/collect.sh"
    collect_wheels "$(realpath -m -- "${given[download]}")" "${given[python]-$version}" "${given[machine]-$(uname -m)}"
    return
  elif [[ ${given[download]-}${given[python]-}${given[machine]-} ]]; then
    refuse "setup: got --offline with an option of --download, wanted one of both; see --help"
  fi
  given[offline]=$(realpath -m -- "${given[offline]}")
  require_wheels "${given[offline]}" "$version"
  export TPRIMAT_WHEELS=${given[offline]}/wheels
  take_lock "$VENV" setup
  make_suite false
  make_others
}
