"""Paths, manifest and digests of a `.bin/.idx` pair; a prefix is the path of its files without their endings.

`read` checks the fields that `data.encode` writes into a manifest, their types, and agreement among them. Every reader
of a manifest goes through it (`utils.dataset.indexed.load_manifest`). `require_recorded` compares a manifest with the
files of its pair.

Digests of data files are kept in DATA_DIR so that each file is hashed only once. A record is valid while the file has
the size, inode, modification time and change time that it had when it was hashed; only the kernel sets the change time.
The device is left out: on a network file system each node has another number for it. If a record cannot be written, the
file is hashed again next time.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from utils.errors import DataError, quoted, shortened
from utils.housekeeping import footprint
from utils.housekeeping.footprint import FootprintError
from utils.own_files import anything
from utils.provenance import digests
from utils.provenance.digests import sha256_file
from utils.results.fields import OBJECT, Wanted, checked, is_digest, is_whole, json_in
from utils.results.schema import LARGEST_INTEGER
from utils.results.store import write_json

MANIFEST_VERSION = 1
ENGINES = ("hf", "gigatoken")
"""Encoders of pairs: that of this version, and one of earlier versions, which gave the same ids."""
LIBRARIES = ("numpy", "tokenizers", "transformers")
"""Libraries whose versions every manifest records."""
AGAIN = "encode the text again with python -m data.encode"


def read(path: Path) -> dict[str, Any]:
    """Return the content of a manifest; raise DataError for one that is damaged, incomplete or contradicts itself."""
    manifest = json_in(path, DataError, f"; {AGAIN}")
    # before its fields: those of another version have other names
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if type(version) is not int or version != MANIFEST_VERSION:
        raise DataError(f"{path}: got format_version {quoted(version)}, wanted {MANIFEST_VERSION}; {AGAIN}")
    missing = [key for key in _FIELDS if key not in manifest]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}; {AGAIN}")
    rules = _FIELDS | {key: rule for key, rule in _OPTIONAL_FIELDS.items() if key in manifest}
    checked(manifest, str(path), DataError, rules, f"; {AGAIN}")
    _require_agreement(path, manifest)
    return dict(manifest)


def name_of(path: Path) -> str:
    """Return the name of a file for a manifest, with bytes that are not UTF-8 as escapes."""
    return path.name.encode("utf8", "backslashreplace").decode("utf8")


def joined(files: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the input of a manifest for several files: the sum of their bytes, and the digest of their digests."""
    # of the digests and not of the content, so that each file is read once
    digest = hashlib.sha256("".join(file["sha256"] + "\n" for file in files).encode("ascii")).hexdigest()
    size = sum(file["bytes"] for file in files)
    return {"name": f"{len(files)} files", "sha256": digest, "bytes": size, "files": files}


def licences(manifest: dict[str, Any]) -> dict[str, str | None]:
    """Return the licences of data set and tokenizer as identifiers, None where unknown or not on record."""
    dataset = manifest.get("source") or {}
    tokenizer = manifest.get("tokenizer_source") or {}
    return {"dataset": dataset.get("licence"), "tokenizer": tokenizer.get("licence")}


def require_recorded(path: Path, manifest: dict[str, Any], key: str, value: Any, has: str = "the files have") -> None:
    """Raise DataError if the manifest at `path` records another value than its pair, tokenizer or input has."""
    if manifest[key] != value:
        raise DataError(
            f"{path}: {key} is {shortened(str(manifest[key]))}, {has} {value}; they changed, or the manifest belongs "
            f"to another pair: {AGAIN}"
        )


def require_tokenizer(
    folder: Path, digest: str, path: Path, manifest: dict[str, Any], remedy: str = f"name that tokenizer or {AGAIN}"
) -> None:
    """Raise DataError if the tokenizer in `folder` has another digest than the one of the manifest at `path`."""
    encoded = manifest["tokenizer"]["sha256"]
    if digest != encoded:
        raise DataError(
            f"{folder}: sha256 of the tokenizer is {digest}, the data was encoded with {encoded} "
            f"({path.name}); {remedy}"
        )


def _require_agreement(path: Path, manifest: dict[str, Any]) -> None:
    """Raise DataError if a field follows from others and has another value."""
    token, vocabulary = manifest["eod_token_id"], manifest["vocab_size"]
    if token >= vocabulary:
        raise DataError(f"{path}: eod_token_id {token} does not agree with vocab_size {vocabulary:,}; {AGAIN}")
    source, text_bytes = manifest["input"], manifest["bytes_of_text"]
    agrees = (source is None) == (text_bytes is None)
    if agrees and source is not None:
        agrees = text_bytes <= source["bytes"]  # JSON needs at least the bytes of the text
    if not agrees:
        raise DataError(
            f"{path}: bytes_of_text {quoted(text_bytes)} does not agree with the input {quoted(source)}; {AGAIN}"
        )


def _is_number(value: Any) -> bool:
    return is_whole(value, 0, LARGEST_INTEGER)


def _is_unknown_or_number(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_from_one(value: Any) -> bool:
    return is_whole(value, 1, LARGEST_INTEGER)


def _is_dtype(value: Any) -> bool:
    return value in _DTYPES


def _is_true(value: Any) -> bool:
    return value is True


def _is_file(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return False
    return is_digest(value.get("sha256")) and _is_number(value.get("bytes"))


def _is_input(value: Any) -> bool:
    if value is None:
        return True
    if not _is_file(value):
        return False
    if "files" not in value:
        return True
    files = value["files"]
    if not isinstance(files, list) or not all(_is_file(file) for file in files):
        return False
    # the sum must be that of the list, which a reader may rely on
    whole = joined(files)
    return (value["bytes"], value["sha256"]) == (whole["bytes"], whole["sha256"])


def _is_tokenizer(value: Any) -> bool:
    return isinstance(value, dict) and is_digest(value.get("sha256")) and isinstance(value.get("class", ""), str)


def _is_versions(value: Any) -> bool:
    if not isinstance(value, dict) or not set(LIBRARIES) <= set(value):
        return False
    for version in value.values():
        if not isinstance(version, str) or not re.fullmatch(r"\d[\w.+!-]{0,63}", version):
            return False
    return True


def _is_origin(value: Any) -> bool:
    texts = ("licence", "licence_source", "licence_looked_up", "licence_reason", "licence_asks", "licence_differs")
    return isinstance(value, dict) and all(isinstance(value.get(key) or "", str) for key in texts)


def _is_engine(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or value.get("name") not in ENGINES:
        return False
    return _is_number(value.get("documents_by_reference", 0))


_DTYPES = ("uint8", "int8", "int16", "int32", "int64", "uint16")
_NUMBER = Wanted(_is_number, "a whole number from 0")
# null: a pair of token ids has no text whose bytes could be counted
_UNKNOWN_NUMBER = Wanted(_is_unknown_or_number, "a whole number from 0, or null")
_DIGEST = Wanted(is_digest, "64 hexadecimal digits")
_ORIGIN = Wanted(_is_origin, "an object with texts about the licence")
_FILE = "name, sha256 and bytes of a file"
_FIELDS = {
    "format_version": _NUMBER,
    "documents": _NUMBER,
    "sequences": _NUMBER,
    "tokens": Wanted(_is_from_one, "a whole number from 1"),
    "bytes_of_text": _UNKNOWN_NUMBER,
    "dtype": Wanted(_is_dtype, "an integer type of Megatron"),
    "vocab_size": _NUMBER,
    "eod_token_id": _NUMBER,
    "append_eod": Wanted(_is_true, "true: each document ends with eod_token_id"),
    "tokenizer": Wanted(_is_tokenizer, "an object with class and sha256"),
    "input": Wanted(_is_input, f"{_FILE}, of several files the list `files` and its sum and digest, or null"),
    "bin_sha256": _DIGEST,
    "idx_sha256": _DIGEST,
    "bin_bytes": _NUMBER,
    "versions": Wanted(_is_versions, f"the versions of {', '.join(LIBRARIES)}"),
}
_OPTIONAL_FIELDS = {
    "engine": Wanted(_is_engine, f"an object with the name {' or '.join(ENGINES)}, or null"),
    "bad_lines": _UNKNOWN_NUMBER,
    "cleaning": OBJECT,
    "source": _ORIGIN,
    "tokenizer_source": _ORIGIN,
}
"""Fields that older manifests lack, and those that data.prepare adds."""


def bin_path(prefix: Path) -> Path:
    """Return the path of the token ids."""
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    """Return the path of the index."""
    return prefix.with_name(prefix.name + ".idx")


def manifest_path(prefix: Path) -> Path:
    """Return the path of the manifest."""
    return prefix.with_name(prefix.name + ".json")


NAME = ".tprimat_digests.json"
"""File in DATA_DIR, listed in utils/housekeeping/inventory.py; no other program uses this name."""


def sha256_once(path: Path, data_dir: Path, *, is_recorded: bool = True) -> str:
    """Return the digest of a file: the recorded one if the file is unchanged, else a new one, which is recorded.

    With `is_recorded=False` nothing is written. Raises UnusableError if there is no such file.
    """
    known = _records(data_dir).get(_key(path))
    before = _state(path) if path.is_file() else {}
    if before and isinstance(known, dict) and known == before | {"sha256": known.get("sha256")}:
        return str(known["sha256"])
    digest = sha256_file(path)
    if is_recorded and _state(path) == before:  # else it changed while it was read
        _record(data_dir, {_key(path): before | {"sha256": digest}})
    return digest


def record_pair(prefix: Path, data_dir: Path, manifest: dict[str, Any], tokenizer: Path) -> None:
    """Record the digests of a pair that was just written and checked against its manifest, and of its tokenizer."""
    files = {bin_path(prefix): manifest["bin_sha256"], idx_path(prefix): manifest["idx_sha256"]}
    files |= {path: digests.sha256_file(path) for path in digests.tokenizer_files(tokenizer)}
    _record(data_dir, {_key(path): _state(path) | {"sha256": digest} for path, digest in files.items()})


def _record(data_dir: Path, records: dict[str, dict[str, Any]]) -> None:
    if not (data_dir / footprint.MARKER).exists():
        folders = {Path(key).parent for key in records}
        if data_dir.absolute() in folders:
            return  # a folder with a pair of the user's, which nothing is written to
    # a record only saves time: a read-only DATA_DIR is no error
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
