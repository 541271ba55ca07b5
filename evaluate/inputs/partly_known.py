"""Parts that all converted results share: sections whose values are only partly known, and names of models in texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from utils.models import NAMES
from utils.results.schema import SECTIONS

UNKNOWN = "unknown"
"""Name of a model, a framework or a method that nothing names."""
LARGEST_NUMBER = 1e30
"""Far above every quantity of a result, and far below the largest float."""


def is_number(value: Any) -> bool:
    """Return whether a value is a number, not a boolean, that arithmetic can handle."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER


def filled(name: str, known: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Return the section `name` with the known values; every other key is null and has `reason`."""
    values = {key: known.get(key) for key in SECTIONS[name]}
    return values | {"reasons": {key: reason for key, value in values.items() if value is None}}


def named_in(text: str) -> list[str]:
    """Return the models whose names occur in `text`, without a name that is a part of another one that occurs."""
    # the mixture of experts has the name of its release too, Qwen3-30B-A3B
    text = re.sub("qwen3[-_]?30b[-_]?a3b", "qwen3moe", text.lower())
    names = [name for name in NAMES if name in text]
    return [name for name in names if not any(name != other and name in other for other in names)]
