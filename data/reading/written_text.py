"""Writing of a JSONL file for a user: whole or not at all, and only in the place of one that the suite wrote.

Such a file looks like anybody's, so a hidden file beside it, `.<name>.tprimat`, records its size and the time of its
last change: one that was edited by hand is the user's. Records of earlier versions have the size only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from utils.files import write_whole, written_whole
from utils.own_files import content_of, json_with, require_ours

_is_record = json_with("tool", "bytes")


def record_of(path: Path) -> Path:
    """Return the path of the record of a text."""
    return path.with_name(f".{path.name}.tprimat")


def is_written_text(path: Path) -> bool:
    """Recognise a text by its record, if it has not changed since."""
    status, record = path.stat(), json.loads(content_of(record_of(path)))
    return status.st_size in record["bytes"] and status.st_mtime_ns in record.get("modified_ns", [status.st_mtime_ns])


@contextmanager
def text_written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which is renamed, with its record, when the block ends without an error.

    Raises ForeignFileError, before the block too, if a file that the suite did not write is there.
    """
    require_ours(_is_record, record_of(path))
    with written_whole(path, is_ours=is_written_text) as (temporary,):
        yield temporary
        # if this run is killed before the rename, the earlier text must be recognised too
        states = [one.stat() for one in (temporary, path) if one.exists()]
        sizes, times = [one.st_size for one in states], [one.st_mtime_ns for one in states]
        record = json.dumps({"tool": "tprimat", "bytes": sizes, "modified_ns": times})
        write_whole(record_of(path), record + "\n", is_ours=_is_record)
