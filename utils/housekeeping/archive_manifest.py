"""The two lists of the files in output.zip: manifest.json for programs, SHA256SUMS for `sha256sum -c`.

manifest.json: `manifest_version`, `tool`, `git_commit` and `git_dirty` of the checkout that packed (null with a reason
in `reasons`), `report_code_sha256` of its code that makes reports, and `files`: for each path its `bytes` and `sha256`.
manifest.json does not list itself; SHA256SUMS lists it too. Neither depends on when or where files were packed.
Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from utils.provenance import checkout

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
MANIFEST_VERSION = 1
TOOL = "tprimat"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ManifestError(ValueError):
    """A manifest.json that cannot be used; the message states why."""


class Listed(NamedTuple):
    """Entry of the manifest for one file."""

    bytes: int
    sha256: str
    """64 hex digits."""


def write(files: Mapping[str, Listed], root: Path) -> bytes:
    """Return manifest.json of `files`, by path, packed by the checkout `root`."""
    commit, is_dirty = checkout.commit(root)
    content = {
        "manifest_version": MANIFEST_VERSION,
        "tool": TOOL,
        "git_commit": commit,
        "git_dirty": is_dirty,
        "reasons": {} if commit else dict.fromkeys(("git_commit", "git_dirty"), checkout.NO_COMMIT),
        "report_code_sha256": checkout.sha256_report_code(root),
        "files": {path: files[path]._asdict() for path in sorted(files)},
    }
    return (json.dumps(content, indent=1) + "\n").encode()


def sums(files: Mapping[str, Listed], manifest: bytes) -> bytes:
    """Return SHA256SUMS of `files` and the manifest, in the form that GNU coreutils' sha256sum reads."""
    lines = [f"{files[path].sha256}  {path}\n" for path in sorted(files)]
    return "".join([*lines, f"{sha256(manifest).hexdigest()}  {MANIFEST}\n"]).encode()


def read(content: bytes) -> tuple[dict[str, Any], dict[str, Listed]]:
    """Return the content of a manifest.json and its entries by path; raise ManifestError if it is not one."""
    try:
        manifest = json.loads(content)
        version = manifest["manifest_version"]
        if version != MANIFEST_VERSION:
            raise ManifestError(f"manifest_version: got {version!r}, wanted {MANIFEST_VERSION}; use the version of the "
                                "suite that has packed it")  # fmt: skip
        files = {path: _listed(path, listed) for path, listed in manifest["files"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, ManifestError):
            raise
        raise ManifestError(f"no manifest of ours ({type(error).__name__}: {error})") from error
    return manifest, files


def _listed(path: str, listed: Any) -> Listed:
    size, digest = listed["bytes"], listed["sha256"]
    if type(size) is not int or size < 0 or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ManifestError(f"files: {path!r}: wanted bytes as a number from 0 and sha256 as 64 hex digits")
    return Listed(size, digest)
