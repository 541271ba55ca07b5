"""The gaps by kind (`why`) in a compare.json of an archive, which cannot be recalculated.

They rest on profiles, whose traces of up to gigabytes no archive holds. Comparisons of earlier suites also have `why`
from probes by operator, which this suite does not calculate.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluate.bundle.archive import UNREADABLE, Bundle
from utils.input_files import parse_json


def take_out(content: Any) -> bool:
    """Remove `why` from all verdicts of a comparison; return whether any had a value."""
    return any([verdict.pop("why", None) for verdict in _verdicts(content)])


def notes(bundle: Bundle, name: str) -> Iterator[str]:
    """Yield a line if a file of an archive is a compare.json whose verdicts have a gap by kind."""
    if Path(name).name != "compare.json":
        return
    try:
        has_why = take_out(parse_json(bundle.archive.read(name)))
    except (*UNREADABLE, ValueError):
        return  # a fault, which the check of the comparison reports
    if has_why:
        yield f"{name}: `why` was not recalculated, because it rests on profiles, which no archive holds"


def _verdicts(content: Any) -> list[dict[str, Any]]:
    found = content.get("verdicts") if isinstance(content, dict) else None
    return [verdict for verdict in found if isinstance(verdict, dict)] if isinstance(found, list) else []
