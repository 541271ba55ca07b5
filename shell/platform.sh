#!/usr/bin/env bash
# Print the platform of this machine: amd, nvd or cpu.
#
# It needs no Python, so it can select the image to build. Settings other than PLATFORM have no effect.
#
# Usage:   ./shell/platform.sh [PLATFORM=amd|nvd|cpu] [KEY=VALUE ...]
# Reads:   PLATFORM (if it is set, nothing is detected), TPRIMAT_SYSROOT (tests: prefix of /dev, /proc and /sys),
#          nvidia-smi, rocm-smi, amd-smi, xpu-smi as far as they are on PATH
# Writes:  one word on stdout
# Exits:   0; 2 with one error line if the platform cannot be determined without guessing
# Example: ./shell/platform.sh
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit

root=${TPRIMAT_SYSROOT:-}

# The tool of a faulty driver can hang, hence the time limit. Its own error messages are not our output.
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
    refuse "platform: got an NVIDIA device node, wanted a GPU in 'nvidia-smi -L' too; repair the driver or start the container \
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
      refuse "platform: got an AMD GPU without /dev/kfd, wanted both; start the container with --device=/dev/kfd \
--device=/dev/dri, or set PLATFORM=amd or PLATFORM=cpu"
    fi
    return 1
  fi
  # A kernel node with SIMD units is a GPU, one without is a CPU. A node that this container may not use is unreadable.
  topology=$(cat "$root"/sys/class/kfd/kfd/topology/nodes/*/properties 2>/dev/null) || is_topology_read=false
  if grep -Eq '^simd_count [1-9]' <<<"$topology" || amd_tool_lists_gpu; then return 0; fi
  # The driver creates /dev/kfd even without a GPU: only the kernel's own list shows that there is none.
  if [[ $is_topology_read == true ]]; then return 1; fi
  refuse "platform: got /dev/kfd, wanted a GPU in the kernel's topology, 'rocm-smi' or 'amd-smi list' too; repair the driver, \
or set PLATFORM=amd or PLATFORM=cpu"
}

# Integrated graphics (/dev/dri alone) only draw the screen and do not count. These devices compute.
has_other_accelerator() {
  any_exists '/dev/accel/*' '/dev/habanalabs*' '/dev/davinci[0-9]*' '/dev/neuron[0-9]*' ||
    lists_device 'Device Name' xpu-smi discovery
}

detect() {
  local found=()
  if has_nvidia; then found+=(nvd); fi
  if has_amd; then found+=(amd); fi
  if has_other_accelerator; then
    refuse "platform: got an accelerator that is neither AMD nor NVIDIA, wanted one of these; set PLATFORM=${found[0]:-cpu} to \
leave it unused"
  fi
  if ((${#found[@]} > 1)); then
    refuse "platform: got AMD and NVIDIA GPUs in one machine, wanted one vendor; set PLATFORM=amd or PLATFORM=nvd"
  fi
  printf '%s\n' "${found[0]:-cpu}"
}

main() {
  local argument
  for argument in "$@"; do
    case $argument in
      PLATFORM=*) PLATFORM=${argument#PLATFORM=} ;;
      [A-Z]*=*) ;;
      *) refuse "platform: got argument '$argument', wanted PLATFORM=amd, PLATFORM=nvd or PLATFORM=cpu" ;;
    esac
  done
  case ${PLATFORM:-} in
    '') detect ;;
    amd | nvd | cpu) printf '%s\n' "$PLATFORM" ;;
    *) refuse "platform: got PLATFORM=$PLATFORM, wanted amd, nvd or cpu; unset it to have the platform detected" ;;
  esac
}

main "$@"
