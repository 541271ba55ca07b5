#!/usr/bin/env bash
# Train llama with mega on cpu, one run.
#
# Usage:  bash train/train_cpu_mega_llama.sh [--run N] [KEY=VALUE ...]
# Reads, writes, exits: as shell/inside/job.sh
set -Eeuo pipefail

# shellcheck source=shell/inside/job.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../shell/inside/job.sh" cpu mega llama "$@"
