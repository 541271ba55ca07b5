#!/usr/bin/env bash
# Start a command that reads results: in .venv if it is there, else in a small environment without torch.
#
# Usage:  shell/inside/read.sh extract|frame|history|trace|validate [ARGUMENT ...]; with --help the part below with its name
# Reads:  as the command
# Writes: as the command; .venv-evaluate
# Exits:  as the command; 1 if the environment could not be made

# extract
# Make results of our schema from the logs of other trainings.
#
# Usage:   ./shell/extract.sh --log-file F|--discover DIR [OPTION ...]   options: python -m evaluate.extract --help
# Reads:   logs of Primus, Megatron-LM, Megatron Bridge, NeMo, torchtitan, the Hugging Face Trainer
# Writes:  the file or folder of --output
# Exits:   as python -m evaluate.extract: 0 every result is ok, 1 one is not, 2 bad input
# Example: ./shell/extract.sh --discover logs --output results

# frame
# Write results as a table for pandas, R or a spreadsheet: a row for each run, or with --steps for each step.
#
# Usage:   ./shell/frame.sh FOLDER|ZIP|RESULT ... [--output FILE.csv|FILE.parquet] [--steps]
# Reads:   results, and output.zip of shell/wrap.sh
# Writes:  the file of --output; without it CSV on stdout
# Exits:   as python -m evaluate.frame: 0 the table is written, 1 it cannot be written, 2 bad input
# Example: ./shell/frame.sh amd.zip nvd.zip --output runs.csv

# history
# Show the results of many days side by side, and what got slower with which change.
#
# Usage:   ./shell/history.sh FOLDER|ZIP ... [OPTION ...]   options: python -m evaluate.history --help
# Reads:   train_*.json (and benchmark_*.json of earlier formats) below the folders; output.zip of shell/wrap.sh
# Writes:  history.{html,json} into the folder of --output (default: the input if it is one folder, else history/)
# Exits:   0 no series got slower beyond the band; 3 one did; 1 no result can be used, or an output cannot be written;
#          2 bad input, or no result found
# Example: ./shell/history.sh nightly/* --output nightly-history

# trace
# Divide the time of a training step by kind, from one trace of torch.profiler or from two side by side.
#
# Usage:   ./shell/trace.sh TRACE.json[.gz] [TRACE] [OPTION ...]   options: python -m evaluate.trace --help
# Reads:   the traces; probes named by --probe
# Writes:  trace.{html,json} into the folder of --output, if it is given
# Exits:   0; 1 an output cannot be written; 2 bad input, such as a file that is no trace
# Example: ./shell/trace.sh nvidia.json.gz amd.json.gz --output report

# validate
# Check results and archives against their own raw samples and logs.
#
# Usage:   ./shell/validate.sh [FOLDER|FILE ...] [--bundle ZIP ...]   options: python -m evaluate.validate --help
# Reads:   train_*.json below the folders, archives of shell/wrap.sh
# Writes:  nothing
# Exits:   as python -m evaluate.validate: 0 all results are valid, 1 one is not, 2 bad input
# Example: ./shell/validate.sh --bundle output.zip

command=$1
shift
for argument in "$@"; do
  if [[ $argument == @(-h|--help) ]]; then
    sed -n "/^# $command\$/,/^\$/{/^# $command\$/d; s/^# \{0,1\}//p}" "$0"
    printf '\nNeeds no torch: where .venv is missing, it makes a small environment of its own (.venv-evaluate).\n'
    exit
  fi
done
. "$(dirname -- "$(readlink -f -- "$0")")/../lib/environment.sh" || exit
use_reading_environment "evaluate.$command" "$@"
start_in_folder_of_caller "evaluate.$command" "$@"
