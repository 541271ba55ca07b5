#!/usr/bin/env bash
# Prepare training data for any machine: set up, download, clean, encode, verify; print the contents and the location.
#
# Data that exist are kept and verified again. After an interrupt, the same command continues where it stopped. Data that
# do not fit the model size or number of steps of this machine are prepared with a warning: they may be for another one.
# On a GPU machine it runs in the image that ./shell/build.sh makes; RUNTIME selects the engine (docs/containers.md).
#
# Usage:   ./shell/run_data.sh [--dry-run] [--here] [--for-this-training] [KEY=VALUE ...]
#          --dry-run prints the command that it would start; --here uses no container; --for-this-training refuses data
#          that do not fit the training here, and verifies no data that exist. Both together are ./shell/data.sh
# Reads:   config.env and its overlays, the environment, secrets.env; CONTAINER_ARGS, CONTAINER_SHM_SIZE; the hub, with
#          HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME
# Writes:  .venv, DATA_DIR/<data set>/text.{bin,idx,json}, tokenizer/; the cache of huggingface_hub; prefixes on stdout
# Exits:   0 prepared and verified, 2 bad input, 128 + signal interrupted, 1 failed
# Example: ./shell/run_data.sh DATASET=c4 SAMPLES=50000
. "$(dirname -- "$(readlink -f -- "$0")")/lib/environment.sh" || exit
. "$ROOT/shell/lib/run.sh"

take_run_arguments "$@"
fit=(--for-any-training)
if take_option --for-this-training; then fit=() && exec >/dev/null; fi # the prefixes are of no use to the caller
load_secrets
choose_runtime run
if [[ $RUNTIME == native ]]; then
  run_here "$PYTHON" -m data.prepare "${fit[@]}" --platform "$PLATFORM" --workers "$(nproc)" "${ARGUMENTS[@]}"
fi
mount_for_jobs
run_in_container jobs data shell/run_data.sh
