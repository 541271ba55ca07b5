#!/usr/bin/env bash
exec "$(dirname -- "$(readlink -f -- "$0")")/../shell/inside/job.sh" amd titan qwen3moe "$@"
