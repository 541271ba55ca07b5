#!/usr/bin/env bash
# Start a command that is one Python module: `gpu` with any Python, one that reads results in .venv if it is there, else in
# a small environment without torch.
#
# Usage:  shell/inside/read.sh extract|frame|gpu|history|trace|validate [ARGUMENT ...]; --help is that of the module
# Reads:  as the command
# Writes: as the command; .venv-evaluate
# Exits:  as the command; 1 if the environment could not be made
HELP_OF_MODULE=evaluate.$1
if [[ $1 == gpu ]]; then HELP_OF_MODULE=train.machine.gpu_command; fi
shift
. "$(dirname -- "$(readlink -f -- "$0")")/../lib/environment.sh" || exit
if [[ $HELP_OF_MODULE == train.* ]]; then use_any_python; else use_reading_environment "$HELP_OF_MODULE" "$@"; fi
start_in_folder_of_caller "$HELP_OF_MODULE" "$@"
