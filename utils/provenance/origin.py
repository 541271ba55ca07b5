"""Origin of a result: commit, host, image, versions, and the environment variables that change speed.

Standard library only.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from utils.arguments import VERSION
from utils.frameworks import FRAMEWORKS
from utils.provenance.digests import sha256_code, sha256_files
from utils.provenance.variables import KNOWN, SPEED_VARIABLES
from utils.redact import is_secret_name, json_value
from utils.settings.config import ROOT

PACKAGES = (
    *("torch", "megatron-core", "transformers", "accelerate", "transformer-engine", "numpy", "triton"),
    *itertools.chain.from_iterable(one.packages for one in FRAMEWORKS.values()),
)
_HASH = re.compile(r"sha256:[0-9a-f]{16}")
REPORT_FOLDERS = ("utils", "evaluate")
"""Folders of the code that makes a report of results."""
NO_COMMIT = "not a git checkout, or git cannot be asked"
NO_CONTAINER = "not in a container of ours"


def describe(command: str, started_utc: str, finished_utc: str) -> dict[str, Any]:
    """Return the `provenance` section of a result."""
    reasons: dict[str, str] = {}
    git_commit, dirty = commit(ROOT)
    if git_commit is None:
        reasons |= dict.fromkeys(("git_commit", "git_dirty"), NO_COMMIT)
    image, digest = os.environ.get("TPRIMAT_IMAGE"), os.environ.get("TPRIMAT_IMAGE_DIGEST")
    where = "what started the container did not tell" if os.environ.get("TPRIMAT_IN_CONTAINER") else NO_CONTAINER
    reasons |= {key: where for key, value in (("image", image), ("image_digest", digest)) if not value}
    return {
        "suite_version": VERSION,
        "git_commit": git_commit,
        "git_dirty": dirty,
        "code_sha256": sha256_code(ROOT),
        "image": image or None,
        "image_digest": digest or None,
        "command": command,
        "host": platform.node(),
        **({"hosts": hosts.split(",")} if (hosts := os.environ.get("TPRIMAT_HOSTS")) else {}),
        "framework_versions": versions(),
        "environment": speed_variables(os.environ),
        "started_utc": started_utc,
        "finished_utc": finished_utc,
        "reasons": reasons,
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect speed and numerics."""
    from importlib import metadata  # which a comparison does not need

    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def speed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that can change the speed of a run, as they are put on record.

    A secret in a value is replaced, and a variable whose name means a secret is left out. A variable of an unpublished
    name has a hash in place of its value, by which two sides can be compared.
    """
    given = {
        name: f"{name}={value}"  # the name tells how a value is read
        for name, value in sorted(environ.items())
        if SPEED_VARIABLES.match(name) and not is_secret_name(name)
    }
    told = json_value(given, environ)
    return {name: on_record(name, told[name].partition("=")[2]) for name in given if name in told}


def on_record(name: str, value: str) -> str:
    """Return a value without secrets as results hold it: itself for a published name, else `sha256:<16 hex digits>`.

    The hash only serves comparison: a short value can be found by trying. A hash stays as it is.
    """
    if name in KNOWN or _HASH.fullmatch(value):
        return value
    return f"sha256:{sha256(value.encode(errors='surrogateescape')).hexdigest()[:16]}"


def commit(root: Path, environ: Mapping[str, str] = os.environ) -> tuple[str | None, bool | None]:
    """Return the commit of the checkout `root`, and True if tracked files differ from it; None, None without git.

    A container may have neither git nor the whole repository, so values determined outside come first
    (TPRIMAT_GIT_COMMIT and TPRIMAT_GIT_DIRTY of shell/lib/passed.sh).
    """
    import subprocess

    if "TPRIMAT_GIT_COMMIT" in environ:
        is_dirty = {"true": True, "false": False}.get(environ.get("TPRIMAT_GIT_DIRTY", ""))
        return environ["TPRIMAT_GIT_COMMIT"] or None, is_dirty

    def git(*arguments: str) -> str:
        # a user of the container may not own the checkout
        command = ["git", "-c", f"safe.directory={root}", "-C", str(root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    try:
        if git("rev-parse", "--show-prefix"):  # a copy inside another checkout has no commit of its own
            return None, None
        return git("rev-parse", "HEAD"), bool(
            git("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
        )
    except (OSError, subprocess.SubprocessError):
        return None, None


def sha256_report_code(root: Path) -> str:
    """Return one digest of names and contents of the code that makes reports; git is not needed."""
    found = (path for folder in REPORT_FOLDERS for path in (root / folder).rglob("*"))
    return sha256_files(root, (path for path in found if path.is_file() and "__pycache__" not in path.parts))
