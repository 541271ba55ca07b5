"""Trees of real Primus and its Megatron-LM beside the repository (their authors' code under their licences)."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

TREES = Path(__file__).parents[2].parent / "shared" / "reference" / "frameworks_cpu" / "primus"
MEGATRON = "megatron-lm-d3528a2"


def why_not() -> str | None:
    """Return the reason why no Primus can train on this machine, None if one can."""
    if not TREES.is_dir():
        return "no trees of Primus in ../shared/reference/frameworks_cpu/primus beside the repository"
    missing = [name for name in ("g++", "make") if shutil.which(name) is None]
    return f"no {' and no '.join(missing)}, with which Megatron-LM compiles its helper" if missing else None


def unpack(name: str, folder: Path) -> Path:
    """Return the root of a tree of Primus with its Megatron-LM, unpacked below `folder` unless it is there."""
    root = folder / name
    if not root.is_dir():
        for archive, target in ((name, folder), (MEGATRON, folder / "backend")):
            with tarfile.open(TREES / f"{archive}.tar.xz") as tar:
                tar.extractall(target, filter="data")
        (root / "third_party").mkdir(exist_ok=True)
        (folder / "backend" / MEGATRON).rename(root / "third_party" / "Megatron-LM")
    return root
