"""Reader of a Chrome trace, event by event, in little memory whatever the size of the file.

Format: "Trace Event Format" of Chromium's tracing project: an object with a list `traceEvents`, or that list alone. A
trace of five million events has over a gigabyte of text. The file is read in pieces, plain or compressed with gzip.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from utils.input_files import InputFileError, require_regular

PIECE = 1 << 22
LARGEST_VALUE = 1 << 28
"""Characters of one event, or of one value beside the events; a larger one is not of a trace."""
CUT_OFF = "is cut off: it ends in the middle"
_BLANK = re.compile(r"[\s,]*")
_GZIP = b"\x1f\x8b"


class TraceError(ValueError):
    """A file is no usable trace; the message states the file, what was got and wanted, and what to do."""


class EventStream:
    """The events of a trace, as an iterator over objects; `header` has all other values of the file once it ends.

    Raises TraceError for a file that cannot be read, that is cut off, or that is no trace. `advance` is called with the
    number of bytes read from the disk.
    """

    def __init__(self, path: Path, advance: Callable[[int], object] = lambda _: None) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self._advance = advance
        self._text = ""
        self._place = 0
        # names of kernels may hold control characters
        self._decode = json.JSONDecoder(strict=False).raw_decode
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._found = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            require_regular(self.path)
            with self.path.open("rb") as raw:
                self._raw = raw
                # by the content, because names are not reliable
                is_packed = raw.peek(len(_GZIP)).startswith(_GZIP)
                self._file: IO[bytes] = gzip.GzipFile(fileobj=raw) if is_packed else raw  # type: ignore[assignment]
                yield from self._values()
        except InputFileError as error:
            raise TraceError(f"{self.path}: {error}") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._wrong(f"is damaged or cut off ({error})") from error
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        except RecursionError as error:
            raise self._wrong("has values nested too deeply") from error

    def _values(self) -> Iterator[dict[str, Any]]:
        first = self._next()
        self._place += 1
        if first == "[":
            yield from self._list()
        elif first == "{":
            while self._next() != "}":
                self._require('"')
                key = self._value()
                self._require(":")
                self._place += 1
                opening = self._next()
                if key == "traceEvents" and opening == "[":
                    self._place += 1
                    yield from self._list()
                else:
                    self.header[key] = self._value()
            self._place += 1
        else:
            raise self._wrong("is no JSON" if first else "is empty")
        if not self._found:
            raise self._wrong('is JSON without "traceEvents"')
        if self._next():
            raise self._wrong("has something behind the end of the trace")

    def _list(self) -> Iterator[dict[str, Any]]:
        self._found = True
        while self._next() != "]":
            if self._place >= len(self._text):
                raise self._wrong(CUT_OFF)
            event = self._value()
            if isinstance(event, dict):
                yield event
            elif event is not None:
                # Chromium accepts a null behind the last comma
                raise self._wrong("has an event that is no object")
        self._place += 1

    def _require(self, wanted: str) -> None:
        found = self._next()
        if found != wanted:
            raise self._wrong("is no valid JSON" if found else CUT_OFF)

    def _next(self) -> str:
        """Move to the next character that is neither blank nor a comma and return it; return "" at the end."""
        while True:
            found = _BLANK.match(self._text, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._more():
                return ""

    def _value(self) -> Any:
        """Return the JSON value at the present place; more of the file is read until it is complete."""
        while True:
            text, place = self._text, self._place
            try:
                value, end = self._decode(text, place)
            except json.JSONDecodeError as error:
                if len(text) - place > LARGEST_VALUE or not self._more():
                    at_end = error.pos >= len(text) - 1 or "Unterminated" in error.msg
                    raise self._wrong(CUT_OFF if at_end else f"is no valid JSON ({error.msg})") from error
                continue
            # a number may go on in the next piece
            if end < len(text) or not self._more():
                self._text, self._place = text, end
                return value

    def _more(self) -> bool:
        """Read on, at least as much as is kept, so that the work grows no faster than the file."""
        kept = self._text[self._place :]
        before = self._raw.tell()
        data = self._file.read(max(PIECE, len(kept)))
        self._advance(self._raw.tell() - before)
        self._text, self._place = kept + self._utf8.decode(data, final=not data), 0
        return len(data) > 0

    def _wrong(self, what: str) -> TraceError:
        return TraceError(
            f"{self.path}: {what}; wanted a complete trace (.json, .json.gz) as torch.profiler exports it"
        )
