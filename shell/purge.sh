#!/usr/bin/env bash
exec "$(dirname -- "$(readlink -f -- "$0")")/run_purge.sh" --here "$@"
