#!/usr/bin/env bash
# Print what this machine computes on: amd, nvd or cpu. It needs no Python, so it can choose the image to build.
# Usage:  shell/platform.sh [PLATFORM=amd|nvd|cpu] [KEY=VALUE ...]        other settings change nothing here
# Reads:  PLATFORM (taken as it is, nothing is looked for), TPRIMAT_SYSROOT (tests: prefix of /dev, /proc and /sys),
#         nvidia-smi, rocm-smi, amd-smi, xpu-smi where they are on PATH
# Writes: one word on stdout
# Exits:  0, or 2 with one error line where the machine cannot be told without guessing
set -Eeuo pipefail

root=${TPRIMAT_SYSROOT:-}

die() {
  printf 'error: platform: %s\n' "$1" >&2
  exit 2
}

# A driver in trouble can leave its tool hanging, hence the time limit; what the tool says about it is not our output.
lists_device() { # <extended regex of one listed device> <command...>
  local pattern=$1 listing
  shift
  listing=$(timeout 60 "$@" 2>/dev/null) && grep -Eq "$pattern" <<<"$listing"
}

any_exists() { # <glob...>
  local pattern
  for pattern in "$@"; do
    if compgen -G "$root$pattern" >/dev/null; then return 0; fi
  done
  return 1
}

has_nvidia() {
  if lists_device '^GPU [0-9]' nvidia-smi -L; then return 0; fi
  if any_exists '/dev/nvidia[0-9]*' '/proc/driver/nvidia/gpus/*'; then
    die "got an NVIDIA device node, wanted a GPU in 'nvidia-smi -L' too; repair the driver or start the container \
with --gpus all, or set PLATFORM=nvd or PLATFORM=cpu"
  fi
  return 1
}

amd_tool_lists_gpu() {
  lists_device '^GPU\[[0-9]' rocm-smi --showid || lists_device '^GPU: [0-9]' amd-smi list
}

has_amd() {
  local topology is_topology_read=true
  if ! any_exists /dev/kfd; then
    if amd_tool_lists_gpu; then
      die "got an AMD GPU without /dev/kfd, wanted both; start the container with --device=/dev/kfd \
--device=/dev/dri, or set PLATFORM=amd or PLATFORM=cpu"
    fi
    return 1
  fi
  # A kernel node with SIMD units is a GPU, one without is a CPU; a node barred from this container is unreadable.
  topology=$(cat "$root"/sys/class/kfd/kfd/topology/nodes/*/properties 2>/dev/null) || is_topology_read=false
  if grep -Eq '^simd_count [1-9]' <<<"$topology" || amd_tool_lists_gpu; then return 0; fi
  # The driver makes /dev/kfd when it is loaded, GPU or not: only the kernel's own list can say that there is none.
  if [[ $is_topology_read == true ]]; then return 1; fi
  die "got /dev/kfd, wanted a GPU in the kernel's topology, 'rocm-smi' or 'amd-smi list' too; repair the driver, \
or set PLATFORM=amd or PLATFORM=cpu"
}

# Integrated graphics (/dev/dri alone) only draw the screen; the devices here compute.
has_other_accelerator() {
  any_exists '/dev/accel/*' '/dev/habanalabs*' '/dev/davinci[0-9]*' '/dev/neuron[0-9]*' ||
    lists_device 'Device Name' xpu-smi discovery
}

detect() {
  local found=()
  if has_nvidia; then found+=(nvd); fi
  if has_amd; then found+=(amd); fi
  if has_other_accelerator; then
    die "got an accelerator that is neither AMD nor NVIDIA, wanted one of these; set PLATFORM=${found[0]:-cpu} to \
leave it unused"
  fi
  if ((${#found[@]} > 1)); then
    die "got AMD and NVIDIA GPUs in one machine, wanted one vendor; set PLATFORM=amd or PLATFORM=nvd"
  fi
  printf '%s\n' "${found[0]:-cpu}"
}

main() {
  local argument
  for argument in "$@"; do
    case $argument in
      -h | --help) sed -n '2,7s/^# //p' "${BASH_SOURCE[0]}" && return ;;
      PLATFORM=*) PLATFORM=${argument#PLATFORM=} ;;
      [A-Z]*=*) ;;
      *) die "got argument '$argument', wanted PLATFORM=amd, PLATFORM=nvd or PLATFORM=cpu" ;;
    esac
  done
  case ${PLATFORM:-} in
    '') detect ;;
    amd | nvd | cpu) printf '%s\n' "$PLATFORM" ;;
    *) die "got PLATFORM=$PLATFORM, wanted amd, nvd or cpu; unset it to have the machine looked at" ;;
  esac
}

main "$@"
