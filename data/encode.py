"""Encode JSONL files into the `.bin/.idx` pair that Megatron trains from, with a manifest beside it.

    python -m data.encode --input FILE.jsonl [FILE.jsonl ...] --tokenizer FOLDER --output-prefix PREFIX --workers N

The pair is byte for byte what tools/preprocess_data.py of Megatron-LM writes with --partitions 1 --append-eod for a
Hugging Face tokenizer: ids of `tokenizer(text)` with its special tokens, an end-of-document token behind each document
that has any token, documents without tokens kept as empty ones, input order whatever engine and number of workers.
A run that was killed goes on where it was when it is started again. A line that cannot be read ends the run with its
file and number, or is counted (--on-bad-line skip). Many machines: data/encoding/scale_out.py.
Exits 0; 1 when the work fails; 2 for bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from data.encoding.workers import WorkerError, one_thread_each, start_workers

EXECUTORS = ("local", "datatrove", "slurm")


def __getattr__(name: str) -> Any:
    """`encode` and `job_of` can be had from here too: this module itself imports nothing that takes long."""
    if name in ("encode", "job_of"):
        from data.encoding import pair

        return getattr(pair, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = _parser().parse_args(arguments)
    one_thread_each()
    # an ordinary `kill` ends the run like any error: workers stopped, nothing half-written
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if options.workers > 1 and options.executor == "local":
        start_workers(options.tokenizer.absolute(), options.engine)  # before numpy, which takes a tenth of a second
    from utils.errors import DataError, UnusableError

    try:
        manifest = _run(options)
    except UnusableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (DataError, WorkerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; finished parts are kept, the same command goes on with them", file=sys.stderr)
        return 128 + signal.SIGINT
    print(json.dumps(manifest, indent=1))
    return 0


def _run(options: argparse.Namespace) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "input": [path.absolute() for path in options.input],
        "tokenizer": options.tokenizer.absolute(),
        "output_prefix": options.output_prefix.absolute(),
        "text_key": options.text_key,
        "engine": options.engine,
        "on_bad_line": options.on_bad_line,
    }
    if options.executor == "local":
        from data.encoding import pair

        return pair.encode(**arguments, workers=options.workers)
    from data.encoding import scale_out
    from utils.errors import UnusableError

    if options.executor == "datatrove":
        return scale_out.run_tasks(arguments, options.tasks, options.workers)
    if options.slurm_partition is None:
        raise UnusableError("--executor slurm needs --slurm-partition; `sinfo` lists those of this cluster")
    slurm = scale_out.SlurmOptions(options.slurm_partition, options.slurm_time, tuple(options.slurm_option))
    return {"submitted": scale_out.submit(arguments, options.tasks, slurm), "output_prefix": str(options.output_prefix)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data.encode", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--input", type=Path, required=True, nargs="+", help="JSONL files, one document a line, in this order")
    add("--tokenizer", type=Path, required=True, help="folder that transformers.AutoTokenizer loads")
    add("--output-prefix", type=Path, required=True, help="path to write to, without .bin / .idx")
    add("--workers", type=int, default=1, help="processes that tokenize (default: 1)")
    add("--text-key", default="text", help="key of the text in each line (default: text)")
    add(
        "--engine",
        metavar="auto|hf|gigatoken",
        default=os.environ.get("ENCODER", "auto"),
        help="same bytes by either: hf is the reference, gigatoken many times as fast (default: auto, the fast one "
        "where it is installed and proven for the tokenizer)",
    )
    add("--on-bad-line", metavar="error|skip", default="error", help="end with its number, or count (default: error)")
    add("--executor", choices=EXECUTORS, default="local", help="what starts the work, see data/encoding/scale_out.py")
    add("--tasks", type=int, default=1, help="tasks of --executor datatrove or slurm (default: 1)")
    add("--slurm-partition", help="partition that tasks run in")
    add("--slurm-time", default="04:00:00", help="longest time of a task, [days-]hours:minutes:seconds")
    add("--slurm-option", action="append", default=[], metavar="NAME=VALUE", help="another option of sbatch")
    return parser


if __name__ == "__main__":
    sys.exit(main())
