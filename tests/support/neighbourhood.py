"""A neighbourhood for purge: a checkout, a home, other people's files, and an OUTPUT_DIR of ours among them."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from checkout import ROOT
from housekeeping import write_data, write_output

COMMAND = (sys.executable, "-B", "-S", "-m", "utils.housekeeping.purge", "--platform", "nvd")
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24  # <linux/capability.h>, <linux/prctl.h>


def drop_rights() -> None:
    """Root may write anywhere; without these capabilities it may not. For any other user this does nothing."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@dataclass
class Place:
    """A neighbourhood: a checkout, a home, other people's files, and an OUTPUT_DIR of ours among them."""

    root: Path
    checkout: Path

    @property
    def output(self) -> Path:
        return self.root / "site" / "output"

    def run(self, *arguments: str, command: tuple[str, ...] = COMMAND, **environ: str):
        """Run the checkout's purge as a user with no rights beyond those of the files."""
        return subprocess.run(
            [*command, *arguments],
            cwd=self.checkout,
            env={"HOME": str(self.root / "homes" / "me"), "PATH": os.environ["PATH"], **environ},
            preexec_fn=drop_rights,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def purge(self, *arguments: str):
        return self.run(f"OUTPUT_DIR={self.output}", *arguments)


def write_checkout(folder: Path) -> None:
    shutil.copytree(ROOT / "utils", folder / "utils", ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.glob("config*.env"):
        shutil.copy(path, folder)


def write_place(root: Path) -> None:
    """Write a whole OUTPUT_DIR and DATA_DIR, an output of others with a file of theirs, and a home behind a link."""
    for name in ("site/output", "outside"):
        write_output(root / name)
    write_data(root / "data")
    (root / "outside" / "thesis.txt").write_text("years of work")
    (root / "people" / "home").mkdir(parents=True)
    (root / "people" / "home" / "letters").write_text("dear")
    (root / "homes").mkdir()
    (root / "homes" / "me").symlink_to("../people/home")


def make(root: Path, path: Path, what: str, detail: object) -> None:
    """Put a file, a link, a pipe, a folder, a copy, a hard link or another mode at a path, whatever was there."""
    if what == "mode":
        path.chmod(detail)
        return
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if what == "file":
        path.write_bytes(detail)
    elif what == "link":
        path.symlink_to(root / detail)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "copy":
        shutil.copytree(root / detail, path)
    else:
        path.mkdir()
