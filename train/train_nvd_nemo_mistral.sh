#!/usr/bin/env bash
# Train mistral with nemo on nvd, one run.
#
# Usage:  bash train/train_nvd_nemo_mistral.sh [--run N] [KEY=VALUE ...]
# Reads, writes, exits: as shell/job.sh
set -Eeuo pipefail

# shellcheck source=shell/job.sh
source "$(dirname "${BASH_SOURCE[0]}")/../shell/job.sh" nvd nemo mistral "$@"
