"""Paths of the files of a `.bin/.idx` pair; a prefix is the path without their endings. Standard library only."""

from __future__ import annotations

from pathlib import Path


def bin_path(prefix: Path) -> Path:
    """Return the path of the token ids."""
    return prefix.with_name(prefix.name + ".bin")


def idx_path(prefix: Path) -> Path:
    """Return the path of the index."""
    return prefix.with_name(prefix.name + ".idx")


def manifest_path(prefix: Path) -> Path:
    """Return the path of the manifest."""
    return prefix.with_name(prefix.name + ".json")
