"""Recognition of the suite's plots of document lengths, without the import of matplotlib, which takes a second."""

from __future__ import annotations

from pathlib import Path

from utils.own_files import content_of, is_png

_EARLIER = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (960).to_bytes(4, "big") + (540).to_bytes(4, "big")
"""Beginning of a plot of an earlier version, which had no text in it: 6.4 by 3.6 inches of 150 points."""


def is_plot(path: Path) -> bool:
    """Recognise a plot of this version by its text, and of an earlier one by its size and the lack of any text."""
    content = content_of(path)
    return is_png(path) or (content.startswith(_EARLIER) and b"tEXt" not in content and b"pHYs" in content)
