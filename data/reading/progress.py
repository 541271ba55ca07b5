"""Progress bar of the data commands, on stderr."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


def progress_bar(title: str, total: int | None, unit: str) -> tqdm[Any]:
    """Return a bar that appears after two seconds, and only on a terminal."""
    return tqdm(desc=title, total=total, unit=unit, unit_scale=True, delay=2, disable=None)
