#!/usr/bin/env bash
# Show every GPU of either vendor - memory, use, power and its cap, clocks, what slows it - and the processes on it.
#
# With --end it ends processes that you name and that are yours; with --end-ours what jobs of this suite have left
# behind: processes that a launcher which is gone had started (TPRIMAT_JOB in their environment). Both ask first.
# Another user's process is never ended. It needs no environment of the suite, only a Python from 3.10 on.
#
# Usage:  ./shell/gpu.sh [--end PID ...] [--end-ours] [--yes]
#         --yes does not ask
# Reads:  nvidia-smi, amd-smi (or rocm-smi), /proc, /sys
# Writes: nothing; ends processes that it was told to
# Exits:  0 shown, and ended what was to be ended, also where there is no GPU; 1 a driver or a process does not answer;
#         2 bad input, or not agreed
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
  show_help_if_asked "$@"
  use_any_python
  cd "$ROOT"
  exec "$PYTHON" -m train.machine.gpu_table "$@"
}

main "$@"
