"""Sections of a result whose values are only partly known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from utils.results.schema import SECTIONS


def filled(name: str, known: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Return the section `name` with the known values; every other key is null and has `reason`."""
    values = {key: known.get(key) for key in SECTIONS[name]}
    return values | {"reasons": {key: reason for key, value in values.items() if value is None}}
