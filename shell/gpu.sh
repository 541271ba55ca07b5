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
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit

use_any_python
cd "$ROOT"
exec "$PYTHON" -m train.machine.gpu_command "$@"
