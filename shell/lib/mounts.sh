#!/usr/bin/env bash
# The files of this machine that a container sees, their paths there, and whether it may write to them. Sourced.
#
# The checkout is /workspace/code, read-only, and files in it keep their place below it. Everything else has the same path
# in the container as here, so that settings, logs and messages mean the same on both sides.
#
# Usage:  . shell/lib/environment.sh; . shell/lib/mounts.sh; mount_checkout; mount_folder OUTPUT_DIR "$@"
# Reads:  settings, HF_HOME, HF_HUB_CACHE, PRIMUS_PATH; is_dry_run (true: no folder is made)
# Writes: MOUNT_MODES, MOUNT_SOURCES, MOUNT_TARGETS, PATH_SETTINGS (KEY=VALUE as the container gets it); missing folders
# Exits:  2 with one error line for a folder that cannot be mounted

CODE=/workspace/code
MOUNT_MODES=() MOUNT_SOURCES=() MOUNT_TARGETS=() PATH_SETTINGS=()

# As in Python: ~ is HOME, and a relative path starts at the checkout. Links are not resolved.
_absolute() { # <path>
  case $1 in
    \~) realpath -ms -- "$HOME" ;;
    \~/*) realpath -ms -- "$HOME/${1#??}" ;;
    /*) realpath -ms -- "$1" ;;
    *) realpath -ms -- "$ROOT/$1" ;;
  esac
}

path_inside() { # <absolute path>
  local path=$1/
  path=${path/#"$ROOT/"/"$CODE/"}
  printf '%s\n' "${path%/}"
}

# Engines split a path at a colon, a quote or a line break. A mount over a folder of the image would hide its programs.
_check_path() { # <setting> <source> <target>
  if [[ $2 == *[:\"$'\n']* ]]; then
    refuse "$1: $2: a path with a colon, a quote or a line break cannot be mounted; rename it, or use RUNTIME=native"
  fi
  case $3 in
    / | /bin | /bin/* | /dev | /dev/* | /etc | /etc/* | /home | /lib | /lib/* | /lib64 | /lib64/* | /opt | /proc | /proc/* | \
      /root | /run | /sbin | /sbin/* | /sys | /sys/* | /tmp | /usr | /usr/* | /var | /workspace | /workspace/home | \
      /opt/tprimat | /opt/tprimat/* | /opt/rocm* | /opt/venv | /opt/venv/*)
      refuse "$1: $2: would hide a folder of the image; name another folder, or use RUNTIME=native"
      ;;
  esac
}

# A path inside a folder that is already mounted with sufficient rights needs no mount of its own.
_is_mounted() { # <ro|rw> <target>
  local i
  for i in "${!MOUNT_TARGETS[@]}"; do
    if [[ ($2 == "${MOUNT_TARGETS[i]}" || $2 == "${MOUNT_TARGETS[i]}"/*) && ($1 == ro || ${MOUNT_MODES[i]} == rw) ]]; then
      return 0
    fi
  done
  return 1
}

_mount() { # <ro|rw> <setting> <source>
  local target
  target=$(path_inside "$3")
  if _is_mounted "$1" "$target"; then return 0; fi
  _check_path "$2" "$3" "$target"
  MOUNT_MODES+=("$1") MOUNT_SOURCES+=("$3") MOUNT_TARGETS+=("$target")
}

# secrets.env is hidden: its secrets go through a private file (shell/lib/passed.sh).
mount_checkout() {
  _mount ro checkout "$ROOT"
  if [[ -e $ROOT/secrets.env ]]; then
    MOUNT_MODES+=(rw) MOUNT_SOURCES+=(/dev/null) MOUNT_TARGETS+=("$CODE/secrets.env")
  fi
}

# The engine would also create a missing folder, but owned by root.
_mount_writable() { # <setting> <folder>
  if [[ ${is_dry_run:-false} == false && ! -d $2 ]]; then
    mkdir -p -- "$2" 2>/dev/null || refuse "$1=$2: cannot be created; name a folder of yours, e.g. $1=output"
  fi
  _mount rw "$1" "$2"
  PATH_SETTINGS+=("$1=$(path_inside "$2")")
}

mount_folder() { # <OUTPUT_DIR|DATA_DIR> <arguments of the script...>
  local path
  path=$(setting "$@")
  refuse_secret "$1" "$path"
  path=$(_absolute "$path")
  _mount_writable "$1" "$path"
}

# purge removes the folder itself and refuses a mount point, so the container gets the parent folder. Links, mounts and the
# home folder of this machine are checked here, because a container cannot see them.
mount_parent() { # <OUTPUT_DIR|DATA_DIR> <arguments of the script...>
  local path home
  path=$(setting "$@")
  path=$(_absolute "$path")
  home=$(realpath -m -- "$HOME")
  if [[ $(realpath -m -- "$path") != "$path" ]]; then
    refuse "$1=$path: contains a symbolic link, which may lead anywhere; name the folder itself"
  elif [[ $home == "$path" || $home == "$path"/* ]]; then
    refuse "$1=$path: is or contains the home folder; name the folder that the results are in"
  elif mountpoint -q -- "$path"; then
    refuse "$1=$path: is a mount point; name a folder below it"
  fi
  PATH_SETTINGS+=("$1=$(path_inside "$path")")
  if [[ -d $path ]]; then _mount rw "$1" "$(dirname -- "$path")"; fi
}

# A file, a prefix, a folder or a glob. A file may be a link to another folder, as in the hub's cache. The suite itself
# reports a missing path, with what it expects.
mount_dataset() { # <arguments of the script...>
  local value path place
  value=$(setting DATASET "$@")
  refuse_secret DATASET "$value" # realpath would make another text of an address
  case $value in
    bc | c4 | hub | synth) return ;;
  esac
  path=$(_absolute "$value")
  PATH_SETTINGS+=("DATASET=$(path_inside "$path")")
  if [[ ! -e $path && $path == *[*?[]* ]]; then # a glob: the last folder before its first special character
    path=${path%%[*?[]*}
    path=${path%/*}
  fi
  path=${path:-/} place=$path
  if [[ ! -d $place ]]; then place=$(dirname -- "$place"); fi
  if [[ -d $place ]]; then _mount ro DATASET "$place"; fi
  if [[ -L $path && -f $path ]]; then _mount ro DATASET "$(dirname -- "$(realpath -- "$path")")"; fi
}

# TOKENIZER is a folder if one exists, else a name on the hub.
mount_tokenizer() { # <arguments of the script...>
  local value path
  value=$(setting TOKENIZER "$@")
  path=$(_absolute "$value")
  if [[ $value == auto || ! -d $path ]]; then return; fi
  PATH_SETTINGS+=("TOKENIZER=$(path_inside "$path")")
  _mount ro TOKENIZER "$path"
}

# The same cache as without a container, so that nothing is downloaded twice.
mount_hub_cache() {
  local HF_HOME=${HF_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/huggingface} key
  for key in HF_HOME HF_HUB_CACHE HF_DATASETS_CACHE; do
    if [[ -n ${!key:-} ]]; then _mount_writable "$key" "$(_absolute "${!key}")"; fi
  done
}

# The user's own Primus, in place of the image's. It compiles parts of itself in its folders, hence writable.
mount_primus() {
  local path
  if [[ -z ${PRIMUS_PATH:-} ]]; then return; fi
  path=$(_absolute "$PRIMUS_PATH")
  PATH_SETTINGS+=("PRIMUS_PATH=$path")
  if [[ -d $path ]]; then _mount rw PRIMUS_PATH "$path"; fi # else it is a path in the image
}
