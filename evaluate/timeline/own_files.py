"""Recognition of history.html and history.json, so that only these are replaced."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from utils.own_files import Recogniser, content_of, json_with

TITLE = "History of training runs"
"""Title of every history.html."""


def _is_html(path: Path) -> bool:
    return f"<title>{TITLE}</title>".encode() in content_of(path)


RECOGNISERS: Mapping[str, Recogniser] = {
    "history.html": _is_html,
    "history.json": json_with("history_version", "series"),
}
"""Recogniser of each file by its name."""
