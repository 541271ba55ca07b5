#!/usr/bin/env bash
# Start benchmarks.gpu, here or in a container. Help: benchmarks/gpu.py
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

take_run_arguments "$@"
load_secrets
choose_runtime run
run_jobs gpu-hour benchmarks.gpu shell/run_gpu_hour.sh
