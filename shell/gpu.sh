#!/usr/bin/env bash
# Show every GPU of either vendor (memory, use, power and its cap, clocks, what slows it down) and its processes.
#
# --end ends the processes that you name, if they are yours. --end-ours ends what jobs of this suite left behind:
# processes whose launcher is gone (TPRIMAT_JOB in their environment). Both ask first. Another user's process is never
# ended. The command needs no environment of the suite, only Python 3.10 or later.
#
# Usage:   ./shell/gpu.sh [--end PID ...] [--end-ours] [--yes]
#          --yes does not ask
# Reads:   nvidia-smi, amd-smi, /proc, /sys
# Writes:  nothing; ends the selected processes
# Exits:   0 shown and ended as asked, also on a machine without a GPU; 1 a driver or a process does not answer;
#          2 bad input, or not agreed
# Example: ./shell/gpu.sh --end-ours
if [ -z "${BASH_VERSION:-}" ]; then echo "error: gpu: needs bash; start it without sh, or as: bash $0" >&2 && exit 2; fi
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib/environment.sh"
  show_help_if_asked "$@"
  use_any_python
  cd "$ROOT"
  exec "$PYTHON" -m train.machine.gpu_command "$@"
}

main "$@"
