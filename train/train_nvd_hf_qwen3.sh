#!/usr/bin/env bash
# Train qwen3 with hf on nvd, one run.
#
# Usage:  bash train/train_nvd_hf_qwen3.sh [--run N] [KEY=VALUE ...]
# Reads, writes, exits: as shell/inside/job.sh
set -Eeuo pipefail

# shellcheck source=shell/inside/job.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../shell/inside/job.sh" nvd hf qwen3 "$@"
