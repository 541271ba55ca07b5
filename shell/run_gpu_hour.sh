#!/usr/bin/env bash
# Measure one GPU in parts of minutes: rates, speed of each framework, memory beside its estimate, profiles.
#
# The most valuable parts come first, and models get as many layers as fit into the card. The same command continues
# where the last call stopped. On a GPU machine it runs in the image that ./shell/build.sh makes; RUNTIME selects the
# engine (docs/containers.md).
#
# Usage:   ./shell/run_gpu_hour.sh [--dry-run] [--minutes N] [--only TEXT] [--device NAME] [OUTPUT_DIR=...] [DATA_DIR=...]
#          --dry-run starts no part: it prints the command of the container, if there is one, and the parts with their
#          layers and memory; --minutes (9): no part is started that would need more; --only: parts whose name contains
#          TEXT (may be repeated); --device H100 chooses the layers for that card instead of this machine's
# Reads:   settings, as shell/run_train.sh; secrets.env; CONTAINER_ARGS, CONTAINER_SHM_SIZE
# Writes:  .venv, DATA_DIR, OUTPUT_DIR/hour_*/train_*.json, OUTPUT_DIR/gpu_hour/, probe_*.json, profiles/, logs/
# Exits:   0 all parts that were started succeeded, 2 bad input, 1 otherwise
# Example: ./shell/run_gpu_hour.sh --only "llama SL 2048" OUTPUT_DIR=output-h100
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

take_run_arguments "$@"
load_secrets
choose_runtime run
run_jobs gpu-hour benchmarks.gpu shell/run_gpu_hour.sh
