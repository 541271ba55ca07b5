"""Open a file for reading lines, decompressed by its ending; a file that was cut short is an error."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from backports.zstd import DecompressionParameter, ZstdError, ZstdFile

from data.reading.sources import compression
from utils.errors import DataError

_BUFFER_BYTES = 1 << 18
_ZSTD_OPTIONS: Mapping[int, int] = {DecompressionParameter.window_log_max: 31}
"""Large corpora are compressed with `zstd --long=31`; decompressing them needs a window of 2 GiB."""


@contextmanager
def open_decompressed(path: Path) -> Iterator[tuple[io.BufferedReader, Callable[[], int]]]:
    """Yield a buffered reader of the content, and a function that returns the current position in the file on disk.

    Raises DataError, also while the block reads, for a compressed file that is damaged or ends too early. A file that
    ends exactly between two gzip members or zstd frames cannot be told from a whole one.
    """
    with path.open("rb") as file:
        try:
            if compression(path) is None:
                yield file, file.tell
                return
            if not file.peek(1):
                raise EOFError("the file is empty")
            with _decompressor(file, compression(path)) as content:
                # an extra buffer, because readline of GzipFile and ZstdFile is Python code and slow
                yield io.BufferedReader(content, _BUFFER_BYTES), file.tell
        except (EOFError, gzip.BadGzipFile, zlib.error, ZstdError) as error:
            raise DataError(
                f"{path}: the compressed data is cut short or damaged ({error}); download or copy the file again"
            ) from error


def _decompressor(file: BinaryIO, ending: str | None) -> gzip.GzipFile | ZstdFile:
    return gzip.GzipFile(fileobj=file) if ending == ".gz" else ZstdFile(file, options=_ZSTD_OPTIONS)
