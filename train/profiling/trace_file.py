"""The trace of one rank, `rank<R>.json.gz`: written by torch.profiler, checked, compressed, renamed when complete."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

from utils.files import temporary_beside, written_whole
from utils.provenance.digests import sha256_file
from utils.results.profile_file import Trace

LEVEL = 6
"""Of gzip: Python's own default, 9, takes twice as long for 2 % less."""
_TAIL_BYTES = 4096
_PIECE_BYTES = 1 << 20


class TraceError(RuntimeError):
    """torch.profiler wrote no complete trace; the message states the file."""


def write_trace(profiler: Any, path: Path) -> Trace:
    """Write the trace of a stopped profiler to `path` and return its name and digest.

    Raises OSError where the disk refuses, and TraceError for a trace that is cut off: torch's C++ writer does not
    report a full disk.
    """
    plain = temporary_beside(path)
    try:
        with written_whole(path) as (temporary,):
            profiler.export_chrome_trace(str(plain))
            require_whole(plain)
            compress(plain, temporary)
    finally:
        plain.unlink(missing_ok=True)
    return Trace(path.name, sha256_file(path))


def compress(source: Path, target: Path) -> None:
    """Write `source`, compressed with gzip, over `target`; equal content gives equal bytes."""
    with source.open("rb") as plain, target.open("wb") as file, gzip.GzipFile("", "wb", LEVEL, file, 0) as compressed:
        shutil.copyfileobj(plain, compressed, _PIECE_BYTES)


def require_whole(path: Path) -> None:
    """Raise TraceError unless a trace in JSON is there and has its end."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read().rstrip()
    except FileNotFoundError:
        size, tail = 0, b""
    # a list of events that was cut off ends with an event and a comma, or inside of one (libkineto, output_json.cpp)
    if not tail.endswith(b"}") or b'"traceName"' not in tail:
        raise TraceError(f"{path.parent}: torch.profiler wrote no complete trace ({size:,} bytes); is the disk full?")
