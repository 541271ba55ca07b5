#!/usr/bin/env bash
exec "$(dirname -- "$(readlink -f -- "$0")")/run_data.sh" --here --for-this-training "$@"
