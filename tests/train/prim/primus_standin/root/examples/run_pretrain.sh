#!/usr/bin/env bash
# The launcher of a stand-in for Primus (primus/cli/main.py): EXP in, its exit code out.
#
# Usage:  EXP=experiment.yaml bash examples/run_pretrain.sh
# Reads:  EXP, TRAIN_LOG, GPUS_PER_NODE, MASTER_PORT, STANDIN_PYTHON, STANDIN_FAULT, STANDIN_LINES
# Writes: TRAIN_LOG, and what the experiment names
# Exits:  with the code of primus/cli/main.py
set -Eeuo pipefail

say() { printf '[NODE-0(%s)] [INFO] %s\n' "$(hostname)" "$*"; }

main() {
  export HSA_NO_SCRATCH_RECLAIM=${HSA_NO_SCRATCH_RECLAIM:-0} GPU_MAX_HW_QUEUES=${GPU_MAX_HW_QUEUES:-2}
  say "HSA_NO_SCRATCH_RECLAIM: $HSA_NO_SCRATCH_RECLAIM"
  say "GPU_MAX_HW_QUEUES: $GPU_MAX_HW_QUEUES"
  local exit_code=0
  "$STANDIN_PYTHON" primus/cli/main.py train pretrain --config "$EXP" 2>&1 | tee "$TRAIN_LOG" || exit_code=${PIPESTATUS[0]}
  say "primus launcher exited with code $exit_code"
  exit "$exit_code"
}

main "$@"
