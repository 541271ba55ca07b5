"""The attributions (`why`) in a compare.json of an archive: those that rest on profiles cannot be recalculated.

Profiles have traces of up to gigabytes, which no archive holds. Probes are in it, so an attribution without a profile
is recalculated like everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluate.bundle.archive import UNREADABLE, Bundle
from evaluate.floor.parts import NOT_USED
from utils.input_files import parse_json


def from_profiles(content: Any) -> bool:
    """Return whether an attribution in the content of a compare.json rests on a profile, or mentions one."""
    whys = [verdict.get("why") for verdict in _verdicts(content)]
    sides = [why.get(side) for why in whys if isinstance(why, dict) for side in ("a", "b")]
    return any(isinstance(side, dict) and (side.get("profile") or _has_unused(side)) for side in sides)


def adapt(stored: Any, wanted: Any, *, without: bool) -> None:
    """Give the verdicts of an earlier version their key, and remove all attributions if `without`."""
    for verdict in _verdicts(stored):
        verdict.setdefault("why", None)
    if without:
        for verdict in (*_verdicts(stored), *_verdicts(wanted)):
            verdict["why"] = None


def notes(bundle: Bundle, name: str) -> Iterator[str]:
    """Yield a line if a file of an archive is a compare.json with attributions that rest on profiles."""
    if Path(name).name != "compare.json":
        return
    try:
        is_from_profiles = from_profiles(parse_json(bundle.archive.read(name)))
    except (*UNREADABLE, ValueError):
        return  # a fault, which the check of the comparison reports
    if is_from_profiles:
        yield f"{name}: `why` was not recalculated, because it rests on profiles, which no archive holds"


def _verdicts(content: Any) -> list[dict[str, Any]]:
    found = content.get("verdicts") if isinstance(content, dict) else None
    return [verdict for verdict in found if isinstance(verdict, dict)] if isinstance(found, list) else []


def _has_unused(side: dict[str, Any]) -> bool:
    remarks = side.get("remarks")
    return isinstance(remarks, list) and any(str(remark).startswith(NOT_USED) for remark in remarks)
