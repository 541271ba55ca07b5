#!/usr/bin/env bash
# Prepare training data for any machine: set up, fetch, clean, encode, verify; print what is in them and where they lie.
#
# What is there already is kept and verified again; after an interrupt the same command goes on where it was. Data that
# do not fit this machine's own model size or number of steps are made too, with a warning: they may be for another one.
# On a GPU machine it runs in the image that ./shell/build.sh has made; RUNTIME says with which engine (docs/containers.md).
#
# Usage:  ./shell/run_data.sh [--dry-run] [KEY=VALUE ...]          e.g. ./shell/run_data.sh DATASET=c4 SAMPLES=50000
#         --dry-run prints the command that it would start
# Reads:  config.env and its overlays, the environment, secrets.env; CONTAINER_ARGS, CONTAINER_SHM_SIZE; the hub, with
#         HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME
# Writes: .venv, DATA_DIR/<data set>/text.{bin,idx,json}, tokenizer/; the cache of huggingface_hub; prefixes on stdout
# Exits:  0 prepared and verified, 2 bad input, 128 + signal interrupted, 1 failed
set -Eeuo pipefail

main() {
  # shellcheck source=shell/lib/environment.sh
  source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
  show_help_if_asked "$@"
  # shellcheck source=shell/lib/run.sh
  source "$ROOT/shell/lib/run.sh"
  take_run_arguments "$@"
  load_secrets
  choose_runtime run
  if [[ $RUNTIME == native ]]; then
    local command=("$PYTHON" -m data.prepare --for-any-training --platform "$PLATFORM" --workers "$(nproc)")
    run_here "${command[@]}" "${ARGUMENTS[@]}"
  fi
  mount_for_jobs
  run_in_container jobs data shell/run_data.sh "${INNER[@]}"
}

main "$@"
