"""Join the parts of a run, in input order, into the `.bin` of the pair, while workers encode the next parts."""

from __future__ import annotations

import hashlib
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from data.encoding.parts import Part, Span, digest, file_of, lines_before, spans
from data.encoding.worker import EncodeJob
from data.encoding.workers import in_order
from data.reading.unchanged import changed, progress_bar, unchanged
from utils.errors import in_one_line


@dataclass
class Totals:
    """Sums and digests over the parts of a run."""

    read: list[Any]
    """Running SHA-256 of each input."""
    sizes: list[int] = field(default_factory=list)
    """Bytes of each input."""
    written: Any = field(default_factory=hashlib.sha256)
    """Running SHA-256 of `.bin`, so that it needs no second reading."""
    lengths: list[npt.NDArray[np.int64]] = field(default_factory=lambda: [np.zeros(0, dtype=np.int64)])
    bytes_of_text: int = 0
    bad_lines: int = 0
    first_bad: str | None = None


def join(path: Path, inputs: list[Path], job: EncodeJob, workers: int) -> Totals:
    """Encode all parts of `inputs` in `workers` processes and join them, in input order, into `path`, an empty file.

    Raises DataError with file and line for a bad line, DataError for an input that changed during the run, and
    WorkerError if a worker process died.
    """
    totals = Totals([hashlib.sha256() for _ in inputs])
    read: deque[tuple[Span, str]] = deque()
    with unchanged(*inputs) as states, path.open("r+b") as file, ExitStack() as stack:
        totals.sizes = [state.bytes for state in states]
        bar = stack.enter_context(progress_bar("encode", sum(totals.sizes), "B"))
        # closed at once if writing fails, which ends the workers
        parts = stack.enter_context(closing(in_order(job, _read(inputs, totals, read), workers)))
        for part in parts:
            span, text_digest = read.popleft()
            if text_digest != part.text_digest:
                raise changed(span.path, "other bytes were encoded")
            _take(file, part, job, totals)
            if part.first_bad is not None and totals.first_bad is None:
                number, fault = part.first_bad.split(": ", 1)
                line = lines_before(span) + int(number)
                totals.first_bad = f"{in_one_line(str(span.path))}:{line}: {fault}"
            bar.update(span.end - span.start)
    if totals.bad_lines:
        lines = "bad line" if totals.bad_lines == 1 else "bad lines"
        print(f"encode: {totals.bad_lines:,} {lines} skipped, the first: {totals.first_bad}", file=sys.stderr)
    return totals


def _read(inputs: list[Path], totals: Totals, read: deque[tuple[Span, str]]) -> Iterator[Span]:
    """Yield the parts of `inputs`; read each, which adds to the digests of the inputs, and note its own in `read`."""
    for span in spans(inputs):
        text = span.read()
        totals.read[inputs.index(span.path)].update(text)
        read.append((span, digest(text)))
        yield span


def _take(file: BinaryIO, part: Part, job: EncodeJob, totals: Totals) -> None:
    """Add a part to the pair and to the totals."""
    # read once, for the file and for its digest
    ids = file_of(job.folder, part.number, "bin").read_bytes()
    totals.written.update(ids)
    file.write(ids)
    # np.fromfile turns the exception of a signal handler into a TypeError if it runs while numpy looks at the path
    totals.lengths.append(np.frombuffer(file_of(job.folder, part.number, "lengths").read_bytes(), dtype="<i8"))
    totals.bytes_of_text += part.bytes_of_text
    totals.bad_lines += part.bad_lines
