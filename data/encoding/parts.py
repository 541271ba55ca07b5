"""Parts of JSONL files: their borders, and the files of an encoded part, which a later run can reuse.

Part files are in a folder beside the output, `.<name>.parts/`: `<number>.bin` (ids as in the pair), `<number>.lengths`
(int64 tokens of each document, 0 for an empty one) and `<number>.json`. The last is written last and records the origin
of the part and the digests of the others. A part is reused only if its recorded origin equals the current one and the
digests match, so other files in the folder do no harm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import xxhash

from data.reading.unchanged import changed
from utils.files import write_whole
from utils.own_files import anything

PART_BYTES = 1 << 22
"""A part is the shortest run of whole lines of at least this size."""
PART_VERSION = 6
_NAMES = re.compile(r"[0-9]{6,}\.(bin|lengths|json)|tokenizer\.json|lock|manifest-[0-9a-f]{16}\.json|\..*\.tmp")
"""Files of a run."""


@dataclass(frozen=True)
class Span:
    """Some whole lines of a file: bytes from `start` up to `end`."""

    path: Path
    number: int
    """Number of the part, over all files, from 0."""
    start: int
    end: int

    def read(self) -> bytes:
        """Return the lines; raise DataError if the file has become shorter."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            data = file.read(self.end - self.start)
        if len(data) != self.end - self.start:
            raise changed(self.path, "it is shorter than before")
        return data


@dataclass(frozen=True)
class Part:
    """Counts of an encoded part and digests of its files."""

    number: int
    bad_lines: int
    """Number of lines that were skipped."""
    first_bad: str | None
    """Fault of the first bad line, after its number in the part: "3: got ..."."""
    bytes_of_text: int
    text_digest: str
    """Digest of the lines that were encoded."""
    bin_digest: str
    """XXH3 of 128 bits. It detects damage and mixed-up files, not forgery, in a hundredth of the time of SHA-256."""
    lengths_digest: str


def spans(paths: list[Path]) -> Iterator[Span]:
    """Yield the parts of the files, in order. Their borders depend only on the content and PART_BYTES."""
    number = 0
    for path in paths:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = 0
            while start < size:
                file.seek(start + PART_BYTES - 1)
                file.readline()
                # a file that grows meanwhile ends where it ended
                end = min(file.tell(), size)
                yield Span(path, number, start, end)
                start = end
                number += 1


def most_parts(paths: Sequence[Path]) -> int:
    """Return the largest number of parts that the files can have; only their sizes are read."""
    return sum(-(-path.stat().st_size // PART_BYTES) for path in paths)


def lines_before(span: Span) -> int:
    """Return the number of lines before a part in its file."""
    lines = 0
    left = span.start
    with span.path.open("rb") as file:
        while left:
            chunk = file.read(min(left, PART_BYTES))
            lines += chunk.count(b"\n")
            left -= len(chunk)
    return lines


def folder_of(prefix: Path) -> Path:
    """Return the folder of the part files of a pair."""
    return prefix.with_name(f".{prefix.name}.parts")


def is_parts_folder(folder: Path) -> bool:
    """Recognise a folder that holds nothing but files of a run of data.encode."""
    return not folder.is_symlink() and all(_NAMES.fullmatch(path.name) for path in folder.iterdir())


def file_of(folder: Path, number: int, ending: str) -> Path:
    """Return the path of a part's file: `bin`, `lengths` or `json`."""
    return folder / f"{number:06d}.{ending}"


def load_part(folder: Path, number: int, made_from: dict[str, Any]) -> Part | None:
    """Return a part that an earlier run finished with exactly the origin `made_from`, else None."""
    try:
        content = json.loads(file_of(folder, number, "json").read_bytes())
        if content["made_from"] != made_from:
            return None
        part = Part(**content["part"])
        ids = file_of(folder, number, "bin").read_bytes()
        lengths = file_of(folder, number, "lengths").read_bytes()
    except (OSError, ValueError, TypeError, KeyError):
        # damaged or of another version: it is encoded again
        return None
    if digest(ids) != part.bin_digest or digest(lengths) != part.lengths_digest:
        return None
    return part


def save(folder: Path, number: int, ending: str, content: npt.NDArray[Any]) -> str:
    """Write a file of a part, whole or not at all, and return its digest.

    It is not flushed to the disk. After a power failure the digests detect damaged parts, which are encoded again.
    """
    write_whole(file_of(folder, number, ending), content.data, is_ours=anything, fsync=False)
    return digest(content.data)


def finish(folder: Path, part: Part, made_from: dict[str, Any]) -> None:
    """Write `<number>.json`, the last file of a part."""
    manifest = json.dumps({"made_from": made_from, "part": asdict(part)})
    write_whole(file_of(folder, part.number, "json"), manifest, is_ours=anything, fsync=False)


def digest(content: bytes | memoryview) -> str:
    """Return the digest by which parts are recognised (XXH3, 128 bits)."""
    return xxhash.xxh3_128_hexdigest(content)


def has_finished_parts(folder: Path) -> bool:
    """Return True if at least one part in a folder is finished."""
    return any(folder.glob("[0-9]*.json"))
