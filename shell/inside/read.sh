#!/usr/bin/env bash
# Start a command that is one Python module: `gpu` with any Python, one that reads results in .venv if it is there, else in
# a small environment without torch.
#
# Usage:  shell/inside/read.sh extract|frame|gpu|history|trace|validate [ARGUMENT ...]; with --help the start of the
#         module's docstring, for which no Python is needed
# Reads:  as the command
# Writes: as the command; .venv-evaluate
# Exits:  as the command; 1 if the environment could not be made
module=evaluate.$1
if [[ $1 == gpu ]]; then module=train.machine.gpu_command; fi
shift
for argument in "$@"; do
  if [[ $argument == @(-h|--help) ]]; then
    sed -n '1s/^"""//; p; /^Example:/q' "$(dirname -- "$(readlink -f -- "$0")")/../../${module//.//}.py"
    if [[ $module == train.* ]]; then exit; fi
    printf '\nNeeds no torch: where .venv is missing, it makes a small environment of its own (.venv-evaluate).\n' && exit
  fi
done
. "$(dirname -- "$(readlink -f -- "$0")")/../lib/environment.sh" || exit
if [[ $module == train.* ]]; then use_any_python; else use_reading_environment "$module" "$@"; fi
start_in_folder_of_caller "$module" "$@"
