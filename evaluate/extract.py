"""Make results of our schema from the logs of other trainings.

Usage:   ./shell/extract.sh --log-file F|--discover DIR [OPTION ...]
Reads:   logs of Primus, Megatron-LM, Megatron Bridge, NeMo, torchtitan, the Hugging Face Trainer; TensorBoard's events
Writes:  the file or folder of --output
Exits:   0 every result is ok, 1 one is not (it is written with its reason), 2 bad input
Example: ./shell/extract.sh --discover logs --output results

Facts that the log contains need no option; if the log contradicts an option, nothing is written. Without --log-file and
--discover, the log is searched: LLAMA_LOG for --model-name llama, then known names and folders. A result that is not ok
is written with its reason. docs/logs.md lists the formats.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluate.inputs.discover import DiscoverError, discover, log_of
from evaluate.inputs.from_log import OF_LOG, SAID, SIZES, Given, MissingError, build
from evaluate.inputs.partly_known import UNKNOWN
from evaluate.report.tables import plain
from utils import models
from utils.arguments import Parser, from_one, refusing, run
from utils.errors import ForeignFileError
from utils.input_files import InputFileError, require_regular
from utils.logs.events import EventFileError
from utils.logs.lines import FRAMEWORKS
from utils.logs.reader import LogFormatError, read_log
from utils.own_files import require_ours
from utils.results import store
from utils.settings.config import PLATFORMS

FOLDER = Path("output/from_logs")
LARGEST_LOG_BYTES = 1 << 36
"""The log of a million iterations has less than a hundredth."""
BAD_INPUT = (
    DiscoverError,
    LogFormatError,
    MissingError,
    models.UnknownModelError,
    ForeignFileError,
    store.ResultError,
    EventFileError,
    OSError,
)


def extract(paths: Sequence[Path], framework: str, given: Given, command: str) -> dict[str, Any]:
    """Return the result of the training whose log the files contain.

    Raises DiscoverError if one is no file, LogFormatError if the files are no such log or contradict `given`,
    MissingError if a size is missing, and ResultError if the log holds numbers that no result can.
    """
    for path in paths:
        try:
            require_regular(path, LARGEST_LOG_BYTES)
        except InputFileError as error:
            raise DiscoverError(f"{path}: cannot be used ({error}); name the log of a training") from error
    sizes = {OF_LOG.get(name, name): given[name] for name in SIZES}
    run = read_log(paths, framework, sizes)
    result = build(run, given, list(dict.fromkeys(paths)), command)
    # rounded, as it will be written: a loss of 1e-400 is 0 then, and no result
    store.validate(store.rounded(result), str(paths[0]))
    return result


@refusing(BAD_INPUT)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = Parser(module="evaluate.extract")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--log-file", nargs="+", type=Path, metavar="F", help="log file, or its parts in any order")
    source.add_argument("--discover", type=Path, metavar="DIR", help="read every log below this folder")
    for option, terms in OPTIONS.items():
        parser.add_argument(option, **terms)
    for option, meaning in OPTIONS_OF_SIZES.items():
        parser.add_argument(option, type=from_one, metavar="N", help=f"{meaning} (default: from the log)")
    options = parser.parse_args(arguments)
    if arguments is None:
        arguments = sys.argv[1:]
    command = shlex.join(["python", "-m", "evaluate.extract", *arguments])
    if options.discover:
        return _extract_all(options, command)
    if options.model is None:
        raise MissingError(f"--model-name: missing; name the trained model: {', '.join(models.NAMES)}")
    paths = options.log_file or log_of(options.model, os.environ)
    result = extract(paths, options.framework, _given(options), command)
    path = options.output
    if path.suffix != ".json":
        path = path / _name(result)
    store.write(result, path)
    print(path)
    if result["status"] == "ok":
        return 0
    print(f"error: {result['status']}: {plain(result['reason'])}", file=sys.stderr)
    return 1


def _extract_all(options: argparse.Namespace, command: str) -> int:
    """Write a result for each log below a folder; print an error for each log without a result, and return 1."""
    lines: list[str] = []
    results: list[tuple[dict[str, Any], Path]] = []
    for log in discover(options.discover):
        model, label = options.model or log.model or UNKNOWN, options.label or log.label
        name = plain(log.name)
        try:
            if log.refused:
                raise DiscoverError(log.refused)
            if model == UNKNOWN:
                raise MissingError(f"no part of its path names {', '.join(models.NAMES)}; add --model-name")
            given = _given(options) | {"model": model, "label": label}
            result = extract(log.paths, options.framework, given, command)
        # one log that is no training does not keep the others from being read
        except BAD_INPUT as error:
            lines.append(f"{name}: no result: {plain(str(error))}")
            continue
        path = options.output / label / _name(result)
        results.append((result, path))
        reason = f": {plain(result['reason'])}" if result["reason"] else ""
        lines.append(f"{name}: {result['status']}{reason} -> {path}")
    # before the first is written: all results, or none
    require_ours(store.is_result, *(path for _, path in results))
    for result, path in results:
        store.write(result, path)
    if not lines:
        raise DiscoverError(f"{options.discover}: found no log of a training, wanted .log or .txt files")
    print("\n".join(lines))
    good = [result for result, _ in results if result["status"] == "ok"]
    return 0 if len(good) == len(lines) else 1


def _name(result: dict[str, Any]) -> str:
    return store.result_name(result["platform"], result["framework"], result["model"], result["run"])


def _given(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in SAID}


OPTIONS: dict[str, dict[str, Any]] = {
    "--framework": {
        "default": "auto",
        "choices": ("auto", *FRAMEWORKS),
        "help": "framework that wrote the log (default: %(default)s)",
    },
    "--output": {"type": Path, "default": FOLDER, "help": "JSON file or folder to write (default: %(default)s)"},
    "--model-name": {"dest": "model", "choices": models.NAMES, "help": "model that was trained"},
    "--model-size": {
        "choices": models.SIZES,
        "default": "full",
        "help": "size of the model (default: %(default)s)",
    },
    "--platform": {"choices": PLATFORMS, "help": "platform that trained (default: from the log or its framework)"},
    "--device-name": {"help": "name of the GPU, which logs do not contain"},
    "--precision": {
        "choices": ("bf16", "fp8", "fp32"),
        "help": "precision of the training (default: from the log)",
    },
    "--method": {
        "choices": ("equal", "best", UNKNOWN),
        "default": UNKNOWN,
        "help": "method of the settings (default: %(default)s)",
    },
    "--label": {"default": "", "help": "label of the result (default with --discover: the path of the log)"},
    "--run": {"type": from_one, "default": 1, "help": "number of the run, from 1 (default: %(default)s)"},
}
"""Options with the arguments of their `add_argument`."""
OPTIONS_OF_SIZES = {
    "--num-gpus": "GPUs over all nodes",
    "--global-batch-size": "sequences of one step over all GPUs",
    "--sequence-length": "tokens",
    "--max-steps": "planned iterations of the training",
    "--micro-batch-size": "sequences of one pass on one GPU",
    "--tp": "tensor-parallel size",
    "--pp": "pipeline-parallel size",
    "--cp": "context-parallel size",
    "--ep": "expert-parallel size",
}
"""Options of sizes, which a log may hold too, with their meaning."""


if __name__ == "__main__":
    sys.exit(run(main))
