"""Files of a local source: one file, all files of a folder, or the matches of a glob; and reading a compressed one."""

from __future__ import annotations

import glob
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backports.zstd import DecompressionParameter, ZstdError, ZstdFile

from utils.errors import DataError, UnusableError

JSON_LINES, PARQUET, TEXT = "JSON lines", "Parquet", "plain text"
KINDS = {".jsonl": JSON_LINES, ".json": JSON_LINES, ".ndjson": JSON_LINES, ".txt": TEXT, ".parquet": PARQUET}
"""Content by file ending. C4 names its shards of JSON lines `.json.gz`."""
COMPRESSIONS = (".gz", ".zst")
WANTED = ".jsonl, .json or .txt, also followed by .gz or .zst, or .parquet"


def find(source: Path) -> list[Path]:
    """Return the files of `source`, sorted by path: the file itself, all files below a folder, or a glob's matches.

    A folder is searched recursively; its hidden files and files with other endings are ignored.
    Raises UnusableError if nothing is found, if a named or matched file has another ending, and if the choice is
    ambiguous: a folder with several kinds of files, a file beside its compressed copy or under two names.
    """
    if source.is_dir():
        paths = [path for path in source.rglob("*") if kind(path) and not _is_hidden(path.relative_to(source))]
    elif source.exists():
        paths = [source]
    elif glob.has_magic(str(source)):
        paths = [Path(name) for name in glob.glob(str(source), recursive=True)]  # noqa: PTH207 the pattern may start at the root
    else:
        raise UnusableError(f"{source}: no such file or folder; name a file, a folder or a glob of {WANTED}")
    paths = [path for path in paths if path.is_file()]
    if not paths:
        raise UnusableError(f"{source}: contains no file that can be read, wanted {WANTED}")
    for path in paths:
        if kind(path) is None:
            raise UnusableError(f"{path}: unknown file ending, wanted {WANTED}; rename or convert the file")
    # the order of a folder or a glob differs between file systems, and the data with it
    paths.sort()
    if source.is_dir():
        _require_one_kind(source, paths)
    require_each_once(paths)
    return paths


def kind(path: Path) -> str | None:
    """Return the kind of a file by its ending, None for an unknown ending."""
    content = KINDS.get(Path(_without_compression(path)).suffix)
    if content == PARQUET and compression(path):
        return None
    return content


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def compression(path: Path) -> str | None:
    """Return the last ending if it names a compression, else None."""
    return path.suffix if path.suffix in COMPRESSIONS else None


def _without_compression(path: Path) -> str:
    return str(path.with_suffix("")) if compression(path) else str(path)


def _require_one_kind(folder: Path, paths: list[Path]) -> None:
    first: dict[str | None, Path] = {}
    for path in paths:
        first.setdefault(kind(path), path)
    if len(first) > 1:
        kinds = " and ".join(f"{name} ({path.relative_to(folder)})" for name, path in first.items())
        raise UnusableError(f"{folder}: contains {kinds}; choose one kind with a glob, {folder}/*{paths[0].suffix}")


def require_each_once(paths: Iterable[Path]) -> None:
    """Raise UnusableError if a file is there under two names (links, `sub/../name`), or beside its compressed copy."""
    first: dict[object, Path] = {}
    for path in paths:
        status = path.stat()
        # links have other names and the same inode
        other = first.setdefault((status.st_dev, status.st_ino), path)
        if other is not path:
            raise UnusableError(f"{path}: is the same file as {other}; name each file once")
        other = first.setdefault(_without_compression(path.resolve()), path)
        if other is not path:
            raise UnusableError(f"{path}: {other.name} beside it would be read too; remove one or use a glob")


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
            content: Any = gzip.GzipFile(fileobj=file)
            if compression(path) == ".zst":
                content = ZstdFile(file, options=_ZSTD_OPTIONS)
            with content:
                # an extra buffer, because readline of GzipFile and ZstdFile is Python code and slow
                yield io.BufferedReader(content, _BUFFER_BYTES), file.tell
        except (EOFError, gzip.BadGzipFile, zlib.error, ZstdError) as error:
            raise DataError(
                f"{path}: the compressed data is cut short or damaged ({error}); download or copy the file again"
            ) from error
