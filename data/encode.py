"""Encode JSONL files into the `.bin/.idx` pair that Megatron trains from, with a manifest beside it.

    python -m data.encode --input FILE.jsonl [FILE.jsonl ...] --tokenizer FOLDER --output-prefix PREFIX --workers N

The pair has the same bytes as the output of Megatron-LM's tools/preprocess_data.py with --partitions 1 --append-eod for
a Hugging Face tokenizer: ids of `tokenizer(text)` with its special tokens, an end-of-document token after each document
that has any token, documents without tokens kept as empty ones, input order with any number of workers.
A killed run continues where it stopped when it is started again. A bad line ends the run with its file and number, or
is counted and skipped (--on-bad-line skip). data/encoding/scale_out.py describes encoding on many machines.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from data.encoding.workers import WorkerError, one_thread_each
from utils.arguments import Parser, first_line, refusing, run
from utils.errors import DataError, UnusableError
from utils.settings.layers import GONE, warn_of_gone

EPILOG = """Prints the manifest as JSON.
Exit codes: 0 success; 1 the work failed; 2 bad input or arguments; 130 interrupted; 143 terminated."""
OPTIONS: dict[str, dict[str, Any]] = {
    "--input": {
        "type": Path,
        "required": True,
        "nargs": "+",
        "help": "JSONL files, one document a line, encoded in this order",
    },
    "--tokenizer": {"type": Path, "required": True, "help": "folder that transformers.AutoTokenizer loads"},
    "--output-prefix": {"type": Path, "required": True, "help": "path of the files to write, without .bin / .idx"},
    "--workers": {
        "type": int,
        "default": 1,
        "help": "processes that tokenize, at most one a core (default: %(default)s)",
    },
    "--text-key": {"default": "text", "help": "key of the text in each line (default: %(default)s)"},
    "--engine": {"help": argparse.SUPPRESS},
    "--on-bad-line": {
        "metavar": "error|skip",
        "default": "error",
        "help": "end with the file and number of a bad line, or count and skip it (default: %(default)s)",
    },
    "--executor": {
        "choices": ("local", "datatrove", "slurm"),
        "default": "local",
        "help": "starts the work; see data/encoding/scale_out.py (default: %(default)s)",
    },
    "--tasks": {
        "type": int,
        "default": 1,
        "help": "number of tasks with --executor datatrove or slurm (default: %(default)s)",
    },
    "--slurm-partition": {"help": "partition of the tasks and of the join; required with --executor slurm"},
    "--slurm-time": {
        "default": "04:00:00",
        "help": "time limit of a task and of the join, [days-]hours:minutes:seconds (default: %(default)s)",
    },
    "--slurm-option": {
        "action": "append",
        "default": [],
        "metavar": "NAME=VALUE",
        "help": "additional option of sbatch",
    },
}


@refusing(
    (UnusableError,),
    (OSError, DataError, WorkerError),
    interrupted="; finished parts are kept, run the same command to continue",
)
def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = Parser(OPTIONS, prog="python -m data.encode", description=first_line(__doc__), epilog=EPILOG)
    options = parser.parse_args(arguments)
    if options.engine is not None:
        parser.error(f"--engine: {GONE['ENCODER']}")
    warn_of_gone(os.environ)
    one_thread_each()
    # SIGTERM ends the run like an error: workers are stopped, no file is left half-written
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(json.dumps(_run(options), indent=1))
    return 0


def _run(options: argparse.Namespace) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "input": [path.absolute() for path in options.input],
        "tokenizer": options.tokenizer.absolute(),
        "output_prefix": options.output_prefix.absolute(),
        "text_key": options.text_key,
        "on_bad_line": options.on_bad_line,
    }
    if options.executor == "local":
        # imported on use: --help needs neither numpy nor tokenizers
        from data.encoding import pair

        return pair.encode(**arguments, workers=options.workers)
    from data.encoding import scale_out

    if options.executor == "datatrove":
        return scale_out.run_tasks(arguments, options.tasks, options.workers)
    if options.slurm_partition is None:
        raise UnusableError("--executor slurm needs --slurm-partition; `sinfo` lists the partitions of this cluster")
    job = scale_out.submit(arguments, options.tasks, options.slurm_partition, options.slurm_time, options.slurm_option)
    return {"submitted": job, "output_prefix": str(options.output_prefix)}


if __name__ == "__main__":
    sys.exit(run(main))
