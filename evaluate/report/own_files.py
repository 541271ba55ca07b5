"""Recognition of compare.{json,md,html,png}, also of earlier versions: only these are replaced."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from utils.own_files import Recogniser, content_of, is_png, json_with

is_comparison = json_with("comparison_version", "groups")
TITLE = "Comparison of training runs"
"""Title of every compare.html."""
HEADING, ADVICE = "Comparison", "shows every rule it breaks"
"""Title of every compare.md, and words of its last section, the method."""


def _is_markdown(path: Path) -> bool:
    content = content_of(path)
    return content.startswith(f"# {HEADING}\n\n".encode()) and ADVICE.encode() in content


def html_titled(title: str) -> Recogniser:
    """Return a recogniser of pages with this title."""
    return lambda path: f"<title>{title}</title>".encode() in content_of(path)


def _is_picture(path: Path) -> bool:
    """Recognise a PNG by its text; that of an earlier version has none, and stands beside a compare.json of ours."""
    content = content_of(path)
    is_without_text = content.startswith(b"\x89PNG") and b"tEXt" not in content
    return is_png(path) or (is_without_text and is_comparison(path.with_suffix(".json")))


RECOGNISERS: Mapping[str, Recogniser] = {
    "json": is_comparison,
    "md": _is_markdown,
    "html": html_titled(TITLE),
    "png": _is_picture,
}
"""Recogniser of each format."""
