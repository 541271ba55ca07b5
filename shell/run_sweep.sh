#!/usr/bin/env bash
# Start train.sweep, here or in a container. Help: train/sweep.py
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

take_run_arguments "$@"
load_secrets
choose_runtime run
run_jobs sweep train.sweep shell/run_sweep.sh --here
