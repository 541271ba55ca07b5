"""Benchmark of encoding: data.encode and its peers in one run.

    python -m benchmarks.encode --input FILE.jsonl --tokenizer FOLDER [--processes 1 2] [--repetitions 3]
    MEGATRON_LM_PATH=CHECKOUT MEGATRON_LM_PYTHON=PYTHON python -m benchmarks.encode ...

Every figure covers a whole process tree from start to end, start-up included: MB/s of text in UTF-8 (10^6 bytes).
Repetitions alternate between the rows, so a drift of the machine affects all rows alike. The table has
medians with minimum and maximum. Each row also has its ratio to preprocess_data.py with the same number of processes if
there is a checkout of Megatron-LM (Python 3.12 or later, with torch and triton), else to one bare `tokenizers` process.

- bare tokenizers: read the file, take the texts, encode them, discard the ids; with several processes, each has a share
  of the lines. It is an upper bound for anything that writes.
- preprocess_data.py: the tool of Megatron-LM, with --append-eod and the fast tokenizer of transformers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.measure import MEGABYTE, Cost, cost_of, machine, spread
from utils.arguments import Parser, from_one, refusing, run
from utils.errors import DataError

ROOT = Path(__file__).resolve().parent.parent
OPTIONS: dict[str, dict[str, Any]] = {
    "--input": {"type": Path, "required": True, "help": "JSONL file, key `text`"},
    "--tokenizer": {"type": Path, "required": True, "help": "folder that transformers.AutoTokenizer loads"},
    "--processes": {"type": from_one, "nargs": "+", "default": [1, 2], "help": "numbers of processes (default: 1 2)"},
    "--only": {"nargs": "+", "help": "words; only rows whose name contains one are run (default: all)"},
    "--repetitions": {"type": from_one, "default": 3, "help": "runs of each row (default: %(default)s)"},
    "--bare": {"action": "store_true", "help": argparse.SUPPRESS},
}


@dataclass(frozen=True)
class EncodeCommand:
    """One row of the table: a command that encodes a file."""

    name: str
    processes: int
    command: tuple[str, ...]
    writes_pair: bool = True


Run = tuple[Cost, str | None]
"""Cost of one run of a row, and the digest of `.bin` and `.idx`; None for a row that writes none."""


@refusing((), failed=(DataError,))
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all rows and print the table; return 1 if a row of data.encode has other bytes than the reference."""
    kind = argparse.RawDescriptionHelpFormatter
    parser = Parser(OPTIONS, prog="python -m benchmarks.encode", description=__doc__, formatter_class=kind)
    options = parser.parse_args(arguments)
    if options.bare:
        return bare(options.input, options.tokenizer, options.processes[0])
    with options.input.open("rb") as file:
        size = sum(len(json.loads(line)["text"].encode("utf8")) for line in file) / MEGABYTE
    figures: dict[EncodeCommand, list[Run]] = {row: [] for row in _rows(options)}
    for _ in tqdm(range(options.repetitions), "repetitions", disable=None):
        # in turn: a machine that slows down slows all rows
        for row in figures:
            figures[row].append(_measure(row))
    print(f"{machine('tokenizers', 'transformers', 'orjson')}; load average {os.getloadavg()[0]:.1f}")
    print(f"{options.input.name}: {size:.1f} MB of text")
    _print_table(figures, size)
    return _report_digests(figures)


def bare(path: Path, tokenizer: Path, processes: int) -> int:
    """Encode a file with a tokenizer alone, in `processes` processes."""
    if processes == 1:
        _encode_share(path, tokenizer, 0, 1)
        return 0
    context = multiprocessing.get_context("forkserver")
    given = [(path, tokenizer, rank, processes) for rank in range(processes)]
    with context.Pool(processes) as pool:
        pool.starmap(_encode_share, given)
    return 0


def _encode_share(path: Path, tokenizer: Path, rank: int, processes: int) -> None:
    """Encode the lines of one byte range of a file."""
    import orjson
    from tokenizers import Tokenizer

    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(size * rank // processes)
        data = file.read(size * (rank + 1) // processes - file.tell())
    # A border of the range cuts a line, which is left out. The first range begins with a whole line.
    lines = data.split(b"\n")[:-1]
    if rank > 0:
        del lines[0]
    texts = [orjson.loads(line)["text"] for line in lines]
    rust = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    for start in range(0, len(texts), 512):
        rust.encode_batch_fast(texts[start : start + 512])


def _rows(options: argparse.Namespace) -> list[EncodeCommand]:
    source, tokenizer = str(options.input), str(options.tokenizer)
    rows = []
    for count in options.processes:
        given = ("--input", source, "--tokenizer", tokenizer)
        ours = (sys.executable, "-m", "data.encode", *given, "--workers", str(count), "--output-prefix", "{output}")
        rows.append(EncodeCommand("data.encode", count, ours))
        alone = (sys.executable, "-m", "benchmarks.encode", "--bare", *given, "--processes", str(count))
        rows.append(EncodeCommand("bare tokenizers", count, alone, writes_pair=False))
        checkout = os.environ.get("MEGATRON_LM_PATH")
        if checkout:
            python = os.environ.get("MEGATRON_LM_PYTHON", sys.executable)
            script = str(Path(checkout, "tools", "preprocess_data.py"))
            kind = ("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", tokenizer, "--append-eod")
            files = ("--input", source, "--output-prefix", "{output}", "--workers", str(count))
            rows.append(EncodeCommand("preprocess_data.py", count, (python, script, *files, *kind)))
    if options.only:
        rows = [row for row in rows if any(word in row.name for word in options.only)]
    return rows


def _measure(row: EncodeCommand) -> Run:
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    # the threads of the tokenizer would use cores that are not counted
    environment |= {"RAYON_NUM_THREADS": str(row.processes), "PYTHONPATH": str(ROOT)}
    if row.name.startswith("preprocess"):
        del environment["PYTHONPATH"]  # this project's `utils` would hide Megatron's
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "out")
        command = [part.replace("{output}", str(output)) for part in row.command]
        with Path(folder, "log").open("wb") as log:
            cost = cost_of(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)
        if cost.code != 0:
            said = Path(folder, "log").read_text().strip().rpartition("\n")[2]
            raise DataError(f"{row.name}: exit code {cost.code}: {said.removeprefix('error: ')}")
        digest = _digest(Path(folder)) if row.writes_pair else None
        return cost, digest


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("out*.bin")) + sorted(folder.glob("out*.idx")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _print_table(figures: dict[EncodeCommand, list[Run]], megabytes: float) -> None:
    rates = {row: [megabytes / cost.wall for cost, _ in repeated] for row, repeated in figures.items()}
    print("| what | processes | MB/s of text | ratio |\n|---|---|---|---|")
    for row, row_rates in rates.items():
        base = _base(row, list(rates))
        ratio = ""
        if base is not None:
            ratio = f"{statistics.median(row_rates) / statistics.median(rates[base]):.1f}"
        print(f"| {row.name} | {row.processes} | {spread(row_rates, 1)} | {ratio} |")


def _base(row: EncodeCommand, rows: list[EncodeCommand]) -> EncodeCommand | None:
    """Return the row that ratios are to: Megatron-LM's, else the bare tokenizers', with as many processes."""
    beside = {other.name: other for other in rows if other.processes == row.processes}
    return beside.get("preprocess_data.py") or beside.get("bare tokenizers")


def _report_digests(figures: dict[EncodeCommand, list[Run]]) -> int:
    """Print which rows wrote the same bytes; return 1 if data.encode's differ from each other or preprocess_data.py."""
    # equal bytes have equal digests, whoever wrote them
    names: dict[str, set[str]] = {}
    for row, repeated in figures.items():
        for _, digest in repeated:
            if digest is not None:
                names.setdefault(digest, set()).add(row.name)
    for digest, writers in names.items():
        print(f"{digest} {', '.join(sorted(writers))}")
    return int(len(names) > 1)


if __name__ == "__main__":
    sys.exit(run(main))
