"""Records of text from files: `.jsonl` or `.json` (an object a line) and `.txt`, each also `.gz` or `.zst`; `.parquet`.

Records are read one at a time, so memory does not grow with the files. Reading is strict. A record is bad if its bytes
are not UTF-8, its line is not a JSON object, or its text is missing, not a string, or contains half a surrogate pair.
A bad record is an error with file and line, or is counted and skipped on request. A compressed file that was cut short
is always an error. A byte order mark at the start of a file and `\r` before a line end are not part of the text.

A `.txt` file is one document, as in a folder of books. With `text_unit`, each line or each paragraph (separated by
blank lines) is a document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from data.reading.jsonl import BOM, NO_TEXT, NO_UTF8, BadRecordError, is_utf_16, text_of
from data.reading.sources import PARQUET, TEXT, kind, open_decompressed
from data.reading.unchanged import unchanged
from utils.errors import DataError, UnusableError, did_you_mean, quoted, shortened

MAX_RECORD_BYTES = 1 << 30
"""Limit of one line, or of a `.txt` that is one document. A file without line ends would otherwise fill the memory."""
_FIX = "fix or remove it"
_PARQUET_ROWS = 128
_PROGRESS_RECORDS = 256
Progress = Callable[[int], object]


class Record(NamedTuple):
    """A text and its place: `file:line`, or `file:row` of a Parquet file, counted from 1."""

    where: str
    text: str


class Dropped(NamedTuple):
    """A record that was left out, kept for people to look at."""

    where: str
    reason: str
    excerpt: str


def records(
    paths: Iterable[Path],
    column: str = "text",
    *,
    text_unit: str = "file",
    on_bad: str = "error",
    counts: Counter[str],
    dropped: Callable[[Dropped], object] = lambda _: None,
    progress: Progress = lambda _: None,
) -> Iterator[Record]:
    """Yield the records of `paths`, file after file; the text is under `column` and may be empty.

    With `on_bad="skip"` a bad record is counted in `counts` under `unreadable: <reason>` and passed to `dropped`, and
    reading continues. `progress` is called with the number of bytes of files read since its last call.
    Raises DataError for a bad record, for a damaged file and for one that changes while it is read.
    """
    for path in paths:
        items = _items(path, column, text_unit, progress)
        with unchanged(path):
            for item in items:
                if isinstance(item, Record):
                    yield item
                    continue
                if on_bad == "error":
                    raise item
                reason = f"unreadable: {item.reason}"
                counts[reason] += 1
                dropped(Dropped(str(item).partition(": ")[0], reason, str(item)))


def _items(path: Path, column: str, text_unit: str, progress: Progress) -> Iterator[Record | BadRecordError]:
    content = kind(path)
    if content is None or not path.is_file():
        raise UnusableError(f"{path}: not a file of a supported kind; see python -m data.clean --help")
    if content == PARQUET:
        return _parquet_rows(path, column, progress)
    if content != TEXT:
        return json_lines(path, column, progress)
    if text_unit == "file":
        return _whole_file(path, progress)
    if text_unit == "paragraph":
        return _paragraphs(path, progress)
    return _text_lines(path, progress)


def _lines(path: Path, progress: Progress) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line; a line that is too long is cut one byte above the limit."""
    done = number = 0
    with open_decompressed(path) as (file, position):
        line = file.readline(MAX_RECORD_BYTES + 1).removeprefix(BOM)
        while line:
            number += 1
            yield number, line
            # the rest of a line that is too long is passed over
            while len(line) > MAX_RECORD_BYTES and not line.endswith(b"\n"):
                line = file.readline(MAX_RECORD_BYTES + 1)
            if number % _PROGRESS_RECORDS == 0:
                progress(position() - done)
                done = position()
            line = file.readline(MAX_RECORD_BYTES + 1)
        progress(position() - done)


def json_lines(path: Path, column: str, progress: Progress = lambda _: None) -> Iterator[Record | BadRecordError]:
    """Yield a record, or what is wrong with it, for each line of a file of JSON lines."""
    for number, line in _lines(path, progress):
        if len(line) > MAX_RECORD_BYTES:
            yield _too_long(path, number)
            continue
        try:
            yield Record(f"{path}:{number}", text_of(line, path, number, column))
        except BadRecordError as error:
            yield error


def _text_lines(path: Path, progress: Progress) -> Iterator[Record | BadRecordError]:
    for number, line in _lines(path, progress):
        yield _decoded(path, number, line.removesuffix(b"\n").removesuffix(b"\r"))


def _paragraphs(path: Path, progress: Progress) -> Iterator[Record | BadRecordError]:
    first = 1
    paragraph = bytearray()
    # an empty line ends the last paragraph
    for number, line in chain(_lines(path, progress), [(0, b"")]):
        if line.strip():
            if not paragraph:
                first = number
            paragraph += line
            if len(paragraph) <= MAX_RECORD_BYTES:
                continue
        if paragraph:
            yield _decoded(path, first, bytes(paragraph).replace(b"\r\n", b"\n").removesuffix(b"\n"))
            paragraph.clear()


def _whole_file(path: Path, progress: Progress) -> Iterator[Record | BadRecordError]:
    with open_decompressed(path) as (file, position):
        content = file.read(MAX_RECORD_BYTES + 1)
        progress(position())
    yield _decoded(path, 1, content.removeprefix(BOM).replace(b"\r\n", b"\n"))


def _decoded(path: Path, number: int, content: bytes) -> Record | BadRecordError:
    if len(content) > MAX_RECORD_BYTES:
        return _too_long(path, number)
    try:
        return Record(f"{path}:{number}", content.decode("utf8"))
    except UnicodeDecodeError as error:
        line = number + content.count(b"\n", 0, error.start)
        if is_utf_16(content):
            got, remedy = "UTF-16 or UTF-32, wanted UTF-8", "convert it, for instance with iconv -f UTF-16 -t UTF-8"
        else:
            got, remedy = f"bytes that are not UTF-8, {content[error.start : error.end]!r}", _FIX
        return BadRecordError(f"{path}:{line}: got {got}; {remedy}", NO_UTF8)


def _parquet_rows(path: Path, column: str, progress: Progress) -> Iterator[Record | BadRecordError]:
    # imported on use: the import takes a moment, and most sources are JSON lines
    import pyarrow as pa
    from pyarrow import parquet

    try:
        # read, not mapped: the kernel ends a process that reads a mapped file behind its new, earlier end
        with parquet.ParquetFile(path) as file:
            _require_text_column(path, file.schema_arrow, column)
            rows = file.metadata.num_rows
            size = path.stat().st_size
            done = number = 0
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=[column], use_threads=False):
                for value in batch.column(0):
                    number += 1
                    yield _parquet_value(path, number, value, column)
                # a row counts as the same share of the file as every other
                position = size * number // max(rows, 1)
                progress(position - done)
                done = position
    except (pa.ArrowException, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(
            f"{path}: cannot be read as Parquet ({shortened(reason)}); download or copy the file again"
        ) from error


def _require_text_column(path: Path, schema: Any, column: str) -> None:
    from pyarrow import types

    if column not in schema.names:
        raise UnusableError(
            f"{path}: got the columns {quoted(schema.names)}, wanted {column!r} among them; name the column of the text"
            f"{did_you_mean(column, schema.names)} (TEXT_COLUMN=NAME, --column NAME)"
        )
    columns = schema.names.count(column)
    if columns > 1:
        raise UnusableError(f"{path}: has {columns} columns {column!r}, wanted one; rename the others")
    kind_of_column = schema.field(column).type
    inner = kind_of_column.value_type if types.is_dictionary(kind_of_column) else kind_of_column
    if not (types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)):
        raise DataError(
            f"{path}: column {column!r} holds {shortened(str(kind_of_column))}, wanted string; name another column"
        )


def _parquet_value(path: Path, number: int, value: Any, column: str) -> Record | BadRecordError:
    try:
        text = value.as_py()
    except UnicodeDecodeError as error:
        got = f"bytes that are not UTF-8 at byte {error.start} of the text"
        return BadRecordError(f"{path}:{number}: got {got}; {_FIX}", NO_UTF8)
    if text is None:
        return BadRecordError(f"{path}:{number}: got null, wanted a text in column {column!r}; {_FIX}", NO_TEXT)
    return Record(f"{path}:{number}", text)


def _too_long(path: Path, number: int) -> BadRecordError:
    message = f"{path}:{number}: got more than {MAX_RECORD_BYTES:,} bytes in one document; split it"
    return BadRecordError(message, "longer than 1 GiB")
