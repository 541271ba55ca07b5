#!/usr/bin/env bash
# Train mistral with titan on amd, one run.
#
# Usage:  bash train/train_amd_titan_mistral.sh [--run N] [KEY=VALUE ...]
# Reads, writes, exits: as shell/inside/job.sh
set -Eeuo pipefail

# shellcheck source=shell/inside/job.sh
source "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../shell/inside/job.sh" amd titan mistral "$@"
