"""Open a file for reading lines, decompressed where its name says so, and never take a cut file for a whole one."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import zstandard

from data.reading.sources import compression
from utils.errors import DataError

_COMPRESSED_BYTES = 1 << 14
"""Read at once from a `.zst`. What they unpack to is in memory: usually ten times as much."""
_BUFFER_BYTES = 1 << 18
_LONGEST_WINDOW_BYTES = 1 << 31
"""`zstd --long=31`, which large corpora are packed with, needs as much."""


@contextmanager
def opened(path: Path) -> Iterator[tuple[io.BufferedReader, Callable[[], int]]]:
    """Yield the content of a file as a buffered reader, and a function that says how far into the file on disk it is.

    Raises DataError, also out of the block, for a compressed file that is damaged or ends too early. (One that ends
    exactly between two gzip members or zstd frames looks whole.)
    """
    with path.open("rb") as file:
        try:
            if compression(path) is None:
                yield file, file.tell
            elif not file.peek(1):
                raise EOFError("the file is empty")
            elif compression(path) == ".gz":
                with gzip.GzipFile(fileobj=file) as unpacked:
                    # a reader of its own: the readline of GzipFile is Python and slow
                    yield io.BufferedReader(unpacked, _BUFFER_BYTES), file.tell
            else:
                yield io.BufferedReader(_ZstdFile(file), _BUFFER_BYTES), file.tell
        except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise DataError(
                f"{path}: the compressed data is cut short or damaged ({error}); download or copy the file again"
            ) from error


class _ZstdFile(io.RawIOBase):
    """The content of all frames of a file. (zstandard's own stream_reader takes a cut file for a whole one.)"""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_LONGEST_WINDOW_BYTES)
        self._frame = self._decompressor.decompressobj()
        self._is_inside_frame = False
        self._unpacked = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        wanted = memoryview(buffer).cast("B")  # type: ignore[arg-type] # the buffer protocol has no type before 3.12
        while not self._unpacked and (compressed := self._next_compressed()):
            self._unpacked = memoryview(self._frame.decompress(compressed))
            self._is_inside_frame = not self._frame.eof
        taken = min(len(wanted), len(self._unpacked))
        wanted[:taken] = self._unpacked[:taken]
        self._unpacked = self._unpacked[taken:]
        return taken

    def _next_compressed(self) -> bytes:
        remaining = b""
        if self._frame.eof:
            remaining = self._frame.unused_data
            self._frame = self._decompressor.decompressobj()
        compressed = remaining or self._file.read(_COMPRESSED_BYTES)
        if not compressed and self._is_inside_frame:
            raise EOFError("its last frame has no end")
        return compressed
