"""A JSONL file in parts: where each begins and ends, and the files that an encoded part leaves for a later run.

Part files stand in a folder of their own beside the output, `.<name>.parts/`: `<number>.bin` (ids as in the pair),
`<number>.lengths` (int64 tokens of each document, 0 for an empty one) and `<number>.json`, written last, which says
what the part was made from and the digests of the two. A part is taken only where all of that is as it would be made
now; so it does not matter what else lies there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from utils.files import write_whole

PART_BYTES = 1 << 22
"""A part is the shortest run of whole lines of at least this size."""
PART_VERSION = 2
_SCAN_BYTES = 1 << 16


@dataclass(frozen=True)
class Span:
    """Some whole lines of a file: bytes from `start` up to `end`."""

    path: Path
    number: int
    """Of the part, over all files, from 0."""
    start: int
    end: int

    def read(self) -> bytes:
        """Return the lines."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.end - self.start)


@dataclass(frozen=True)
class Part:
    """What was found in a part, and where its ids lie."""

    number: int
    lines: int
    documents: int
    """As many as lines, unless bad ones were skipped."""
    bad_lines: int
    first_bad: str | None
    """What is wrong with the first bad line, after its number in the part: "3: got ..."."""
    guarded: int
    """Documents that the fast engine was kept from."""
    bytes_of_text: int
    tokens: int
    bin_digest: str
    """XXH3 of 128 bits: against damage and mixed-up files, not against forgery, and a hundredth of a SHA-256's time."""
    lengths_digest: str


def spans(paths: list[Path]) -> Iterator[Span]:
    """Yield the parts of the files, in order. Where they lie depends on the content and PART_BYTES alone."""
    number = 0
    for path in paths:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = 0
            while start < size:
                end = _line_end(file, start + PART_BYTES - 1, size)
                yield Span(path, number, start, end)
                start, number = end, number + 1


def _line_end(file: Any, position: int, size: int) -> int:
    """Return where the line ends that holds the byte at `position`."""
    file.seek(position)
    while chunk := file.read(_SCAN_BYTES):
        found = chunk.find(b"\n")
        if found >= 0:
            return position + int(found) + 1
        position += len(chunk)
    return size


def lines_before(span: Span) -> int:
    """Return how many lines of its file stand before a part."""
    found = 0
    with span.path.open("rb") as file:
        left = span.start
        while left:
            chunk = file.read(min(left, PART_BYTES))
            found += chunk.count(b"\n")
            left -= len(chunk)
    return found


def folder_of(prefix: Path) -> Path:
    """Return the folder of the part files of a pair."""
    return prefix.with_name(f".{prefix.name}.parts")


def bin_of(folder: Path, number: int) -> Path:
    """Return the path of a part's ids."""
    return folder / f"{number:06d}.bin"


def lengths_of(folder: Path, number: int) -> Path:
    """Return the path of a part's lengths."""
    return folder / f"{number:06d}.lengths"


def read_lengths(folder: Path, number: int) -> npt.NDArray[np.int64]:
    """Return the tokens of each document of a part."""
    return np.fromfile(lengths_of(folder, number), dtype="<i8")


def load_part(folder: Path, number: int, made_from: dict[str, Any]) -> Part | None:
    """Return a part that an earlier run finished from exactly `made_from`, else None."""
    try:
        content = json.loads(_manifest_of(folder, number).read_bytes())
        if content["made_from"] != made_from:
            return None
        part = Part(**content["part"])
        is_whole = (
            digest(bin_of(folder, number).read_bytes()) == part.bin_digest
            and digest(lengths_of(folder, number).read_bytes()) == part.lengths_digest
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return part if is_whole else None


def save_part(
    folder: Path,
    found: dict[str, Any],
    tokens: npt.NDArray[Any],
    lengths: npt.NDArray[np.int64],
    made_from: dict[str, Any],
) -> Part:
    """Write the files of a part, each whole or not at all, the manifest last; `found` is the rest of `Part`.

    They are not forced to the disk: what a power failure takes from them, the digests show, and it is made anew.
    """
    content = lengths.astype("<i8")
    part = Part(
        **found,
        tokens=int(lengths.sum()),
        bin_digest=digest(tokens.data),
        lengths_digest=digest(content.data),
    )
    write_whole(bin_of(folder, part.number), tokens.data, fsync=False)
    write_whole(lengths_of(folder, part.number), content.data, fsync=False)
    manifest = json.dumps({"made_from": made_from, "part": asdict(part)})
    write_whole(_manifest_of(folder, part.number), manifest, fsync=False)
    return part


def digest(content: bytes | memoryview) -> str:
    """Return the digest that parts are known by."""
    return xxhash.xxh3_128_hexdigest(content)


def finished(folder: Path) -> int:
    """Return how many parts in a folder have been finished."""
    return sum(1 for _ in folder.glob("[0-9]*.json"))


def _manifest_of(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.json"
