"""Benchmark of reading and cleaning on one core: MB of text per second of CPU time, and peak memory.

    OMP_NUM_THREADS=1 python -m benchmarks.clean [--megabytes 100] [--repetitions 5]

Three texts are generated with data/synth.py: documents of about 1,250 bytes in English letters; the same with half of
them in other scripts; single sentences like BookCorpus's, with its rules. Each text is only read, and read, cleaned and
written at each level. Every run is a separate process. CPU time is measured instead of wall time, to exclude the disk
and reduce the influence of other work on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from data.cleaning.documents import clean, level, write_documents
from data.reading.records import records
from data.synth import generate
from utils.arguments import Parser, first_line, from_one, run

LEVELS = ("read", "none", "light", "full")
OTHER_SCRIPTS = (
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! ",
    "\u6771\u4eac\u306e\u5929\u6c17\u306f\u3044\u3044\u3067\u3059\u3002",
    "Gr\u00fc\u00dfe, se\u00f1or \u2014 \u201cquoted\u201d\u2026 ",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643\u0645 ",
    "\u0928\u092e\u0938\u094d\u0924\u0947 ",
)
SENTENCES_OF_A_GROUP = 32
BYTES_OF_FULL = 10_000_000
"""Amount of mixed text for the level full, because ftfy is slow on text that is not ASCII."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table."""
    options = _arguments(argv)
    if options.run:
        _run(Path(options.run[0]), options.run[1])
        return 0
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}; {options.megabytes} MB of text, {options.repetitions} runs")
    print(f"{'text':12}{'level':8}{'MB/s median':>12}{'min':>8}{'max':>8}{'peak MB':>9}")
    with tempfile.TemporaryDirectory(prefix="tprimat-clean-") as folder:
        for name, texts in (("documents", _documents()), ("mixed", _mixed()), ("sentences", _sentences())):
            path = Path(folder) / f"{name}.jsonl"
            _write(path, texts, options.megabytes * 1_000_000)
            for what in LEVELS:
                if what == "full" and name == "mixed":
                    _write(path, _mixed(), min(BYTES_OF_FULL, options.megabytes * 1_000_000))
                runs = [_measure(path, what) for _ in range(options.repetitions)]
                speeds = [speed for speed, _ in runs]
                figures = f"{statistics.median(speeds):12.0f}{min(speeds):8.0f}{max(speeds):8.0f}"
                print(f"{name:12}{what:8}{figures}{max(peak for _, peak in runs):9.0f}", flush=True)
    return 0


def _documents() -> Iterator[str]:
    return (text for text, _ in generate(3))


def _mixed() -> Iterator[str]:
    numbers = random.Random(0)
    for text in _documents():
        foreign = numbers.random() < 0.5
        yield "".join(numbers.choices(OTHER_SCRIPTS, k=len(text) // 25)) + text[:100] if foreign else text


def _sentences() -> Iterator[str]:
    return chain.from_iterable((f"{part.lower()} ." for part in text.split(". ")) for text in _documents())


def _write(path: Path, texts: Iterator[str], size: int) -> None:
    written = 0
    with path.open("w", encoding="utf8") as file:
        while written < size:
            for text in islice(texts, 100):
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                written += len(text.encode("utf8"))


def _measure(path: Path, what: str) -> tuple[float, float]:
    """Return MB of text per second of CPU time, and peak memory in MB, of one run in a separate process."""
    command = [sys.executable, "-m", "benchmarks.clean", "--run", str(path), what]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return figures["bytes"] / 1e6 / figures["seconds"], figures["peak_mb"]


def _run(path: Path, what: str) -> None:
    import resource
    import time

    started = time.process_time()
    size = 0
    if what == "read":
        for record in records([path]):
            size += len(record.text.encode("utf8"))
    else:
        is_bookcorpus = path.stem == "sentences"
        rules = level(what, is_bookcorpus=is_bookcorpus, group_rows=SENTENCES_OF_A_GROUP if is_bookcorpus else 1)
        output = path.with_suffix(".out")
        write_documents(clean(records([path]), rules, Counter()), output)
        size = output.stat().st_size
        output.unlink()
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"bytes": size, "seconds": seconds, "peak_mb": peak}))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m benchmarks.clean", description=first_line(__doc__))
    parser.add_argument(
        "--megabytes", type=from_one, default=100, help="size of each text in MB (default: %(default)s)"
    )
    parser.add_argument(
        "--repetitions", type=from_one, default=5, help="runs per text and level (default: %(default)s)"
    )
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(run(main))
