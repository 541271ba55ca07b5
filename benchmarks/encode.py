"""How fast text becomes tokens: our two engines, the bare tokenizers, and Megatron's scripts, in turn within one run.

    python -m benchmarks.encode --input FILE.jsonl --tokenizer FOLDER [--processes 1 2] [--repetitions 3]
    MEGATRON_LM_PATH=CHECKOUT MEGATRON_LM_PYTHON=PYTHON python -m benchmarks.encode ...

Every figure is of a whole process tree from start to end, so starting counts: MB/s of text in UTF-8 (10^6 bytes) and
documents/s. Repetitions alternate between the rows, so that a machine that drifts drifts for all; the table has medians
with smallest and largest, and each row as a ratio to preprocess_data.py with as many processes, where there is a
checkout of Megatron-LM (Python 3.12 or later, with torch and triton), else to one bare `tokenizers` process. Memory is
looked at in one more run of each row, which is not timed: the largest sum of resident memory of all its processes,
sampled ten times a second (pages that processes share count once for each).

- bare gigatoken, bare tokenizers: read the file, take the texts, encode them, throw the ids away; as many processes,
  each with its share of the lines. Nothing that writes can be faster.
- preprocess_data.py and preprocess_data_fast.py: tools of Megatron-LM, with --append-eod.
- `--slow-input` is a shorter file of the same kind for the rows that take minutes; rates can be compared, start-up
  weighs more in it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_SECONDS = 0.1
MEGABYTE = 1e6


@dataclass(frozen=True)
class Row:
    """One way to encode a file, as a command."""

    name: str
    processes: int
    command: tuple[str, ...]
    input: Path
    writes: bool = True


@dataclass(frozen=True)
class Figure:
    """What one run of a row took."""

    seconds: float
    sha256: str | None
    """Of `.bin` and `.idx`; None where nothing is written."""
    peak_rss_bytes: int | None = None
    """None where it was not looked for: looking takes a tenth of a core from the work."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all rows in turn and print the table; return 1 where a row of ours has other bytes than the reference."""
    options = _parser().parse_args(arguments)
    if options.bare:
        return bare(options.bare, options.input, options.tokenizer, options.processes[0])
    slow = options.slow_input or options.input
    sizes = {path: _size(path) for path in {options.input, slow}}
    figures: dict[Row, list[Figure]] = {row: [] for row in _rows(options, slow)}
    for _ in tqdm(range(options.repetitions), "repetitions", disable=None):
        for row in figures:
            figures[row].append(_measure(row))
    peaks = {row: _measure(row, samples_memory=True).peak_rss_bytes for row in tqdm(figures, "memory", disable=None)}
    print(_machine())
    for path, (documents, size) in sizes.items():
        print(f"{path.name}: {documents:,} documents, {size / MEGABYTE:.1f} MB of text")
    _print_table(figures, peaks, sizes)
    return _report_digests(figures)


def bare(engine: str, path: Path, tokenizer: Path, processes: int) -> int:
    """Encode a file with a tokenizer alone, in `processes` processes."""
    if processes == 1:
        _encode_share(engine, path, tokenizer, 0, 1)
        return 0
    context = multiprocessing.get_context("forkserver")
    given = [(engine, path, tokenizer, rank, processes) for rank in range(processes)]
    with context.Pool(processes) as pool:
        pool.starmap(_encode_share, given)
    return 0


def _encode_share(engine: str, path: Path, tokenizer: Path, rank: int, processes: int) -> None:
    """Encode the lines of one byte range of a file."""
    import orjson

    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(size * rank // processes)
        data = file.read(size * (rank + 1) // processes - file.tell())
    texts = []
    for line in data.split(b"\n")[1 if rank else 0 : -1]:  # what the border cuts is left out: a line or two
        texts.append(orjson.loads(line)["text"])
    if engine == "gigatoken":
        from gigatoken.gigatoken_rs import load_hf_json

        encode = load_hf_json((tokenizer / "tokenizer.json").read_bytes()).encode
        for text in texts:
            encode(text)
    else:
        from tokenizers import Tokenizer

        rust = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
        for start in range(0, len(texts), 512):
            rust.encode_batch_fast(texts[start : start + 512])


def _rows(options: argparse.Namespace, slow: Path) -> list[Row]:
    rows = []
    tokenizer = str(options.tokenizer)
    for count in options.processes:
        for engine, path in (("gigatoken", options.input), ("hf", slow)):
            ours = ("-m", "data.encode", "--input", str(path), "--tokenizer", tokenizer, "--engine", engine)
            more = ("--workers", str(count), "--output-prefix", "{output}")
            rows.append(Row(f"data.encode, {engine}", count, (sys.executable, *ours, *more), path))
        for engine, path in (("gigatoken", options.input), ("tokenizers", slow)):
            bare_ = ("-m", "benchmarks.encode", "--bare", engine, "--input", str(path), "--tokenizer", tokenizer)
            command = (sys.executable, *bare_, "--processes", str(count))
            rows.append(Row(f"bare {engine}", count, command, path, writes=False))
        rows += _megatron_rows(options, slow, count)
    return [row for row in rows if not options.only or any(word in row.name for word in options.only)]


def _megatron_rows(options: argparse.Namespace, slow: Path, count: int) -> list[Row]:
    checkout = os.environ.get("MEGATRON_LM_PATH")
    if not checkout:
        return []
    python = os.environ.get("MEGATRON_LM_PYTHON", sys.executable)
    common = ("--output-prefix", "{output}", "--tokenizer-type", "HuggingFaceTokenizer", "--append-eod")
    common = (*common, "--tokenizer-model", str(options.tokenizer))
    rows = []
    for script, path, more in (
        ("preprocess_data.py", slow, ("--workers", str(count))),
        ("preprocess_data_fast.py", options.input, ("--use-gigatoken",)),
    ):
        command = (python, str(Path(checkout, "tools", script)), "--input", str(path), *common, *more)
        rows.append(Row(script, count, command, path))
    return rows


def _measure(row: Row, *, samples_memory: bool = False) -> Figure:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"RAYON_NUM_THREADS": str(row.processes), "PYTHONPATH": str(ROOT)}
    if row.name.startswith("preprocess"):
        del environment["PYTHONPATH"]  # our `utils` is not Megatron's
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "out")
        command = [part.format(output=output) if part == "{output}" else part for part in row.command]
        started = time.perf_counter()
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=ROOT)
            peak = _Peak(process.pid) if samples_memory else None
            code = process.wait()
        seconds = time.perf_counter() - started
        if peak:
            peak.stop()
        if code != 0:
            raise RuntimeError(f"{row.name}: exit {code}: {Path(folder, 'log').read_text()[-2000:]}")
        digest = _digest(Path(folder)) if row.writes else None
        return Figure(seconds, digest, peak.bytes if peak else None)


class _Peak(threading.Thread):
    """The largest sum of resident memory of a process and all below it."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._pid = pid
        self._done = threading.Event()
        self.start()

    def run(self) -> None:
        """Sample until told to stop."""
        while not self._done.wait(SAMPLE_SECONDS):
            try:
                root = psutil.Process(self._pid)
                self.bytes = max(self.bytes, sum(map(_rss, [root, *root.children(recursive=True)])))
            except psutil.NoSuchProcess:
                return

    def stop(self) -> None:
        """End the sampling."""
        self._done.set()
        self.join()


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("out*.bin")) + sorted(folder.glob("out*.idx")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _size(path: Path) -> tuple[int, int]:
    documents = size = 0
    with path.open("rb") as file:
        for line in file:
            documents += 1
            size += len(json.loads(line)["text"].encode("utf8"))
    return documents, size


def _print_table(
    figures: dict[Row, list[Figure]], peaks: dict[Row, int | None], sizes: dict[Path, tuple[int, int]]
) -> None:
    rates = {
        row: [sizes[row.input][1] / MEGABYTE / figure.seconds for figure in repeated]
        for row, repeated in figures.items()
    }
    print("| what | processes | MB/s of text | documents/s | peak RSS, MB | ratio |\n|---|---|---|---|---|---|")
    for row, found in rates.items():
        base = _base(row, list(rates))
        median = statistics.median(found)
        documents, size = sizes[row.input]
        spread = f"{median:.1f} ({min(found):.1f} to {max(found):.1f})"
        rss = (peaks[row] or 0) / MEGABYTE
        ratio = f"{median / statistics.median(rates[base]):.1f}" if base else ""
        per_second = f"{median * MEGABYTE / size * documents:,.0f}"
        print(f"| {row.name} | {row.processes} | {spread} | {per_second} | {rss:.0f} | {ratio} |")


def _base(row: Row, rows: list[Row]) -> Row | None:
    """Return the row that ratios are to."""
    for name in ("preprocess_data.py", "bare tokenizers"):
        for other in rows:
            if other.name == name and other.processes == row.processes:
                return other
    return None


def _report_digests(figures: dict[Row, list[Figure]]) -> int:
    """Say which rows wrote the same bytes; return 1 where ours differ among themselves or from preprocess_data.py."""
    differs = 0
    for path in {row.input for row in figures}:
        found: dict[str, set[str]] = {}
        for row, repeated in figures.items():
            if row.input == path and row.writes:
                for figure in repeated:
                    found.setdefault(str(figure.sha256), set()).add(row.name)
        for digest, names in found.items():
            print(f"{path.name}: {digest} {', '.join(sorted(names))}")
        strict = [digest for digest, names in found.items() if names - {"preprocess_data_fast.py"}]
        differs |= len(strict) > 1
    return int(differs)


def _machine() -> str:
    names = [platform.machine(), f"{os.cpu_count()} cores", f"Python {platform.python_version()}"]
    names += [f"{name} {metadata.version(name)}" for name in ("tokenizers", "gigatoken", "orjson")]
    return ", ".join(names) + f"; load average {os.getloadavg()[0]:.1f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.encode", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--input", type=Path, required=True, help="JSONL file, key `text`")
    parser.add_argument("--slow-input", type=Path, help="shorter file for the rows that are slow (default: --input)")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder that transformers.AutoTokenizer loads")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="process counts (default: 1 2)")
    parser.add_argument("--only", nargs="+", help="rows whose name holds one of these words (default: all)")
    parser.add_argument("--repetitions", type=int, default=3, help="of each row (default: %(default)s)")
    parser.add_argument("--bare", choices=("gigatoken", "tokenizers"), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
