"""Digests of data files, kept in DATA_DIR so that each file is hashed only once.

A record is valid while the file has the size, inode, modification time and change time that it had when it was hashed;
only the kernel sets the change time. The device is left out: on a network file system each node has another number
for it. If a record cannot be written, the file is hashed again next time.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from utils.dataset.indexed import bin_path, idx_path
from utils.housekeeping import footprint
from utils.housekeeping.footprint import FootprintError
from utils.own_files import anything
from utils.provenance import digests
from utils.provenance.digests import sha256_file
from utils.results.store import write_json

NAME = ".tprimat_digests.json"
"""File in DATA_DIR, listed in utils/housekeeping/layout.py; no other program uses this name."""


def sha256_once(path: Path, data_dir: Path, *, is_recorded: bool = True) -> str:
    """Return the digest of a file: the recorded one if the file is unchanged, else a new one, which is recorded.

    With `is_recorded=False` nothing is written. Raises UnusableError if there is no such file.
    """
    known = _records(data_dir).get(_key(path))
    if isinstance(known, dict) and path.is_file() and known == _state(path) | {"sha256": known.get("sha256")}:
        return str(known["sha256"])
    before = _state(path) if path.is_file() else {}
    digest = sha256_file(path)
    if is_recorded and _state(path) == before:
        _record(data_dir, {_key(path): before | {"sha256": digest}})
    return digest


def record_pair(prefix: Path, data_dir: Path, manifest: dict[str, Any], tokenizer: Path) -> None:
    """Record the digests of a pair that was just written and checked against its manifest, and of its tokenizer."""
    files = {bin_path(prefix): manifest["bin_sha256"], idx_path(prefix): manifest["idx_sha256"]}
    files |= {path: digests.sha256_file(path) for path in digests.tokenizer_files(tokenizer)}
    _record(data_dir, {_key(path): _state(path) | {"sha256": digest} for path, digest in files.items()})


def _record(data_dir: Path, records: dict[str, dict[str, Any]]) -> None:
    if not (data_dir / footprint.MARKER).exists() and any(Path(key).parent == data_dir.absolute() for key in records):
        return  # a folder with a pair of the user's, which nothing is written to
    with suppress(OSError, FootprintError):
        footprint.mark(data_dir, footprint.DATA)
        write_json(_records(data_dir) | records, data_dir / NAME, is_ours=anything)


def _records(data_dir: Path) -> dict[str, Any]:
    try:
        records = json.loads((data_dir / NAME).read_text(encoding="utf8"))
    except (OSError, ValueError):
        return {}
    return records if isinstance(records, dict) else {}


def _key(path: Path) -> str:
    return str(path.absolute())


def _state(path: Path) -> dict[str, int]:
    status = path.stat()
    return {
        "bytes": status.st_size,
        "inode": status.st_ino,
        "modified_ns": status.st_mtime_ns,
        "changed_ns": status.st_ctime_ns,
    }
