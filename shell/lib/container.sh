#!/usr/bin/env bash
# The command that starts a script of ours in a container, with no more rights than it needs. Sourced.
#
# docs/containers.md explains each argument. The command contains only names of environment variables, no values, and
# variables that may hold a secret are not even named: they go through a private file (shell/lib/passed.sh).
#
# Usage:  . shell/lib/environment.sh; . shell/lib/container.sh
#         container_command <tools|jobs> <title> <command...>
# Reads:  RUNTIME, PLATFORM, ARGUMENTS, TERMINAL (the engine's options for it), mounts of shell/lib/mounts.sh, CONTAINER_ARGS,
#         CONTAINER_SHM_SIZE, the environment, TPRIMAT_SYSROOT (tests: prefix of /dev and /sys); the engine
# Writes: COMMAND, CONTAINER (its name); for apptainer it exports APPTAINERENV_*, because apptainer has no option for a name
#         without a value
# Exits:  2 with one error line for bad CONTAINER_ARGS or TPRIMAT_HOME
. "$ROOT/shell/lib/mounts.sh"
. "$ROOT/shell/lib/passed.sh"

COMMAND=() CONTAINER='' TERMINAL=() START=shell/inside/start.sh
is_only_looking=false

# --mount is a line of CSV in every engine, so paths may contain spaces and commas.
_add_mounts() {
  local i fields
  while read -r _ i; do
    # a dry run creates no folder, and reads only those that exist
    if [[ $is_only_looking == true && ! -e ${MOUNT_SOURCES[i]} ]]; then continue; fi
    fields="source=${MOUNT_SOURCES[i]}"$'\n'"target=${MOUNT_TARGETS[i]}"
    if [[ $fields == *,* ]]; then fields=\"${fields/$'\n'/'","'}\"; else fields=${fields/$'\n'/,}; fi
    if [[ ${MOUNT_MODES[i]} == ro ]]; then fields+=,ro; fi
    COMMAND+=(--mount "type=bind,$fields")
  done < <(for i in "${!MOUNT_TARGETS[@]}"; do printf '%d %d\n' "${#MOUNT_TARGETS[i]}" "$i"; done | sort -n)
}

# CONTAINER_ARGS is split into words as a shell does it, with quotes and backslashes. Nothing in it is run or expanded.
_add_extra() {
  local extra
  if [[ -z ${CONTAINER_ARGS:-} ]]; then return; fi
  refuse_secret CONTAINER_ARGS "$CONTAINER_ARGS"
  if ! xargs printf '%s\0' <<<"$CONTAINER_ARGS" &>/dev/null; then
    refuse "CONTAINER_ARGS=$CONTAINER_ARGS: has an unmatched quote; wanted words as a shell reads them"
  fi
  mapfile -d '' extra < <(xargs printf '%s\0' <<<"$CONTAINER_ARGS")
  COMMAND+=("${extra[@]}")
}

# Two cases need the machine's network: several machines that talk over it, and a mirror of the hub or a proxy at an
# address of this machine, which a separate network of the container cannot reach.
_needs_host_network() {
  local name nodes
  nodes=$(setting NNODES "${ARGUMENTS[@]}") || exit
  if [[ $nodes != 1 ]]; then return 0; fi
  for name in HF_ENDPOINT http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY; do
    if [[ ${!name:-} =~ ^([a-z0-9]+://)?([^/@]*@)?(localhost|127\.|\[::1\]) ]]; then return 0; fi
  done
  return 1
}

# Groups that own the devices on this machine. Their numbers may differ from those in the image.
_device_groups() { # prints gids
  local group gid
  for group in video render; do
    if IFS=: read -r _ _ gid _ < <(getent group "$group"); then printf '%s\n' "$gid"; fi
  done
  stat -c %g -- "${TPRIMAT_SYSROOT:-}"/dev/kfd "${TPRIMAT_SYSROOT:-}"/dev/dri/renderD* 2>/dev/null || true # one may be missing
}

_add_amd() {
  local gid
  COMMAND+=(--device /dev/kfd --device /dev/dri)
  if [[ $RUNTIME == podman && $EUID != 0 ]]; then
    # this machine's numbers mean nothing in a user namespace; crun can keep the groups of the user instead
    COMMAND+=(--group-add keep-groups)
  else
    COMMAND+=(--group-add video --group-add render) # amd.Dockerfile makes sure that both exist
    while read -r gid; do COMMAND+=(--group-add "$gid"); done < <(_device_groups | sort -nu)
  fi
  COMMAND+=(--security-opt seccomp=unconfined --cap-add SYS_PTRACE)
}

# podman without root cannot raise a limit above that of the user.
_add_limit() { # <name> <bytes, -1 for none> <highest allowed: `ulimit -H`, KiB or unlimited>
  if [[ $RUNTIME == docker || $EUID == 0 || $3 == unlimited ]] || (($2 > 0 && $2 <= $3 * 1024)); then
    COMMAND+=(--ulimit "$1=$2")
  else
    say "warning: runtime: the limit $1 is $3 KiB here and podman cannot raise it; RDMA and RCCL may need more"
  fi
}

# With --ipc host the container uses the machine's /dev/shm, which has a size of its own.
_add_devices_and_memory() {
  local shm=(--ipc host)
  if [[ $PLATFORM == cpu ]]; then shm=(--shm-size 1g); fi
  if [[ -n ${CONTAINER_SHM_SIZE:-} ]]; then shm=(--shm-size "$CONTAINER_SHM_SIZE"); fi
  case $PLATFORM-$RUNTIME in
    cpu-*) COMMAND+=("${shm[@]}") && return ;;
    amd-*) _add_amd ;;
    nvd-docker) COMMAND+=(--gpus all) ;;
    nvd-podman) COMMAND+=(--device nvidia.com/gpu=all) ;;
  esac
  if [[ -d ${TPRIMAT_SYSROOT:-}/dev/infiniband ]]; then COMMAND+=(--device /dev/infiniband); fi
  COMMAND+=("${shm[@]}")
  _add_limit memlock -1 "$(ulimit -Hl)"
  _add_limit stack 67108864 "$(ulimit -Hs)"
}

# The caller owns the results. In docker without root, the container's root is the caller.
_add_user() {
  if [[ $RUNTIME == podman && $EUID != 0 ]]; then
    COMMAND+=(--userns keep-id)
  elif [[ $RUNTIME == podman || $ENGINE_INFO == *rootless* ]]; then
    COMMAND+=(--user 0:0)
  else
    COMMAND+=(--user "$(id -u):$(id -g)")
  fi
}

# podman needs catatonit for --init. Without it, shell/inside/start.sh is process 1. The folders are podman's own defaults.
has_init() {
  local usr=${TPRIMAT_SYSROOT:-}/usr
  [[ $RUNTIME == docker ]] ||
    PATH=$PATH:$usr/libexec/podman:$usr/lib/podman:$usr/local/libexec/podman:$usr/local/lib/podman type -P catatonit >/dev/null
}

_docker_command() { # <tools|jobs>
  local name
  COMMAND=("$RUNTIME" run "${TERMINAL[@]}" --rm --name "$CONTAINER" --hostname "$(uname -n)" --workdir "$CODE")
  if has_init; then COMMAND+=(--init); fi
  _add_user
  # SELinux labels would change the user's files
  if [[ $(cat "${TPRIMAT_SYSROOT:-}/sys/fs/selinux/enforce" 2>/dev/null) == 1 ]]; then
    COMMAND+=(--security-opt label=disable)
  fi
  if [[ $1 == tools ]]; then
    COMMAND+=(--network none)
  else
    if _needs_host_network; then COMMAND+=(--network host); fi
    _add_devices_and_memory
  fi
  _add_mounts
  for name in "${PASSED_NAMES[@]}" "${PASSED_VALUES[@]}"; do COMMAND+=(--env "$name"); done
  if ((! ${#PRIVATE_NAMES[@]})); then return; fi
  if [[ $is_dry_run == true ]]; then
    say "note: not in this command, because a dry run makes no private file: ${PRIVATE_NAMES[*]}"
  else
    lend_private
    COMMAND+=(--mount "type=bind,source=$PRIVATE_FILE,target=/run/tprimat/environment,ro")
  fi
}

# In apptainer, /dev, /sys, /tmp and the network are those of this machine, and the user is the caller. A folder in /tmp
# that belongs to another user could be a trap.
_apptainer_command() { # <tools|jobs>
  local - home=${TPRIMAT_HOME:-${TMPDIR:-/tmp}/tprimat-home-$UID} name
  if [[ $is_dry_run == false ]] && { ! (umask 077 && mkdir -p -- "$home") || [[ ! -O $home || -L $home ]]; }; then
    refuse "TPRIMAT_HOME=$home: wanted a folder of your own for the container's HOME; name another one"
  fi
  COMMAND=(apptainer exec --cleanenv --pid --no-mount cwd --home "$home:/workspace/home" --pwd "$CODE")
  case $1-$PLATFORM in
    jobs-amd) COMMAND+=(--rocm) ;;
    jobs-nvd) COMMAND+=(--nv) ;;
  esac
  _add_mounts
  set +x # a trace (bash -x) would print the values
  for name in "${PASSED_NAMES[@]}"; do export "APPTAINERENV_$name=${!name}"; done
  for name in "${PASSED_VALUES[@]}"; do export "APPTAINERENV_${name?}"; done
}

container_command() { # <tools|jobs> <title> <command...>
  local start=() word
  CONTAINER=tprimat-$2-$$-$RANDOM
  pass_environment
  if [[ $RUNTIME == apptainer ]]; then _apptainer_command "$1"; else _docker_command "$1"; fi
  _add_extra
  if [[ ${#PRIVATE_NAMES[@]} != 0 && $is_dry_run == false && $3 != "$START" ]]; then start=("$START"); fi
  COMMAND+=("$(image_of "$RUNTIME" "$PLATFORM")" "${start[@]}" "${@:3}")
  for word in "${COMMAND[@]}"; do refuse_secret "a word of the container's command" "$word"; done
}
