#!/usr/bin/env bash
# Train qwen3 with prim on cpu, one run.
#
# Usage:  bash train/train_cpu_prim_qwen3.sh [--run N] [KEY=VALUE ...]
# Reads, writes, exits: as shell/inside/job.sh
set -Eeuo pipefail

# shellcheck source=shell/inside/job.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../shell/inside/job.sh" cpu prim qwen3 "$@"
