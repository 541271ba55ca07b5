"""Commit of a checkout, and digest of its code that makes reports. Standard library only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

REPORT_FOLDERS = ("utils", "evaluate")
"""Folders of the code that makes a report of results."""
NO_COMMIT = "not a git checkout, or git cannot be asked"


def commit(root: Path, environ: Mapping[str, str] = os.environ) -> tuple[str | None, bool | None]:
    """Return the commit of the checkout `root`, and True if tracked files differ from it; None, None without git.

    A container may have neither git nor the whole repository, so values determined outside come first
    (TPRIMAT_GIT_COMMIT and TPRIMAT_GIT_DIRTY of shell/lib/passed.sh).
    """
    if "TPRIMAT_GIT_COMMIT" in environ:
        is_dirty = {"true": True, "false": False}.get(environ.get("TPRIMAT_GIT_DIRTY", ""))
        return environ["TPRIMAT_GIT_COMMIT"] or None, is_dirty

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True, timeout=20
        ).stdout.strip()

    try:
        if git("rev-parse", "--show-prefix"):  # a copy inside another checkout has no commit of its own
            return None, None
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def sha256_report_code(root: Path) -> str:
    """Return one digest of names and contents of the code that makes reports; git is not needed."""
    digest = sha256()
    paths = [path for folder in REPORT_FOLDERS for path in (root / folder).rglob("*") if path.is_file()]
    for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix()):
        if "__pycache__" not in path.parts:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()
