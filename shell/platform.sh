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
shopt -s nullglob # so that files counts what exists

# The tool of a faulty driver can hang, hence the time limit. Its own error messages are not our output.
lists_device() { # <extended regex of one listed device> <command...>
  local listing
  listing=$(timeout 60 "${@:2}" 2>/dev/null) && grep -Eq "$1" <<<"$listing"
}

exists() { (($#)); } # <files that a glob has found...>

has_nvidia() {
  if lists_device '^GPU [0-9]' nvidia-smi -L; then return 0; fi
  if exists "$root"/dev/nvidia[0-9]* "$root"/proc/driver/nvidia/gpus/*; then
    refuse "platform: got an NVIDIA device node, wanted a GPU in 'nvidia-smi -L' too; repair the driver or start the container \
with --gpus all, or set PLATFORM=nvd or PLATFORM=cpu"
  fi
  return 1
}

amd_tool_lists_gpu() {
  lists_device '^GPU\[[0-9]' rocm-smi --showid || lists_device '^GPU: [0-9]' amd-smi list
}

has_amd() {
  local nodes=("$root"/sys/class/kfd/kfd/topology/nodes/*/properties) topology='' is_topology_read=false
  if [[ ! -e $root/dev/kfd ]]; then
    amd_tool_lists_gpu || return
    refuse "platform: got an AMD GPU without /dev/kfd, wanted both; start the container with --device=/dev/kfd \
--device=/dev/dri, or set PLATFORM=amd or PLATFORM=cpu"
  fi
  # A kernel node with SIMD units is a GPU, one without is a CPU. A node that this container may not use is unreadable.
  if ((${#nodes[@]})) && topology=$(cat -- "${nodes[@]}" 2>/dev/null); then is_topology_read=true; fi
  if grep -Eq '^simd_count [1-9]' <<<"$topology" || amd_tool_lists_gpu; then return 0; fi
  # The driver creates /dev/kfd even without a GPU: only the kernel's own list shows that there is none.
  if [[ $is_topology_read == true ]]; then return 1; fi
  refuse "platform: got /dev/kfd, wanted a GPU in the kernel's topology, 'rocm-smi' or 'amd-smi list' too; repair the driver, \
or set PLATFORM=amd or PLATFORM=cpu"
}

# Integrated graphics (/dev/dri alone) only draw the screen and do not count. These devices compute.
has_other_accelerator() {
  exists "$root"/dev/accel/* "$root"/dev/habanalabs* "$root"/dev/davinci[0-9]* "$root"/dev/neuron[0-9]* ||
    lists_device 'Device Name' xpu-smi discovery
}

export_settings platform 'PLATFORM=amd, PLATFORM=nvd or PLATFORM=cpu' "$@"
case ${PLATFORM:-} in
  '') ;;
  amd | nvd | cpu) printf '%s\n' "$PLATFORM" && exit ;;
  *) refuse "platform: got PLATFORM=$PLATFORM, wanted amd, nvd or cpu; unset it to have the platform detected" ;;
esac
found=()
if has_nvidia; then found+=(nvd); fi
if has_amd; then found+=(amd); fi
if has_other_accelerator; then
  refuse "platform: got an accelerator that is neither AMD nor NVIDIA, wanted one of these; set PLATFORM=${found[0]:-cpu} to \
leave it unused"
elif ((${#found[@]} > 1)); then
  refuse "platform: got AMD and NVIDIA GPUs in one machine, wanted one vendor; set PLATFORM=amd or PLATFORM=nvd"
fi
printf '%s\n' "${found[0]:-cpu}"
