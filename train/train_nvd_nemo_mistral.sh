#!/usr/bin/env bash
exec "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../shell/inside/job.sh" nvd nemo mistral "$@"
