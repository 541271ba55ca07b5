#!/usr/bin/env bash
# Train at every combination of several values of settings, draw heat maps of speed and memory, write the best settings.
#
# KEY=V1,V2 gives a setting several values. Points that cannot fit into the memory of the device, by the estimate, are
# marked and not started. Points with an ok result are kept, so after an interrupt the same command continues. Each point
# is run once unless RUNS is given. More: docs/sweep.md
#
# Usage:   ./shell/run_sweep.sh [--dry-run] [--here] KEY=VALUE,VALUE[,...] [KEY=VALUE ...]
#          --dry-run starts no job: it prints the command of the container, if there is one, and all points; --here
#          trains on this machine without a container (also ./shell/sweep.sh)
# Reads:   config.env and all that run_train.sh reads; LABEL is the name of the sweep (default: sweep)
# Writes:  as run_train.sh without its comparison, and OUTPUT_DIR/sweeps/<name>.json, <name>.png, <name>_best.env
# Exits:   0 every point that was started has an ok result, 2 bad input, 128 + signal interrupted, 1 otherwise
# Example: ./shell/run_sweep.sh FRAMEWORK=mega MODEL=llama MBS=1,2,4 SL=2048,4096,8192
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

take_run_arguments "$@"
load_secrets
choose_runtime run
run_jobs sweep train.sweep shell/run_sweep.sh --here
