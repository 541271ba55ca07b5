"""The file of a sweep, `sweeps/<name>.json` in OUTPUT_DIR: its axes, and the state of each of its points.

The sweep writes it after every point; the evaluation reads it. The figures of a point are not in it: they are in the
results of the point, in the folder of its label. Standard library only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from utils.own_files import json_with
from utils.results.fields import LIST, OBJECT, Wanted, checked, json_in

VERSION = 1
FOLDER = "sweeps"
"""Folder of the files of all sweeps in OUTPUT_DIR."""
WAITING, RUNNING, OK, FAILED = "waiting", "running", "ok", "failed"
DOES_NOT_FIT, IMPOSSIBLE = "does not fit", "impossible"
STATES = (WAITING, RUNNING, OK, FAILED, DOES_NOT_FIT, IMPOSSIBLE)
"""Does not fit: not started, because the estimate of its memory exceeds the device. Impossible: settings refused."""
is_sweep = json_with("sweep_version", "axes", "points")
"""Recogniser of the file of any version."""


class SweepError(ValueError):
    """A file is not that of a sweep; the message states the file, what is wrong and what to do."""


@dataclass
class Point:
    """One combination of values."""

    settings: dict[str, str]
    """Value of each axis, as text."""
    label: str
    """LABEL of its results: their folder in OUTPUT_DIR."""
    state: str = WAITING
    reason: str | None = None
    """Reason of a point without an ok result; None for the others."""

    @property
    def name(self) -> str:
        """The values as `KEY=VALUE KEY=VALUE`."""
        return " ".join(f"{key}={value}" for key, value in self.settings.items())


@dataclass
class Sweep:
    """Axes and points of a sweep, and the settings that all points share."""

    name: str
    platform: str
    axes: dict[str, list[str]]
    """Values of each axis by setting, at least two."""
    fixed: dict[str, str]
    """Other settings that the command line gave."""
    points: list[Point] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {"sweep_version": VERSION, **asdict(self)}


def path_of(output_dir: Path, name: str) -> Path:
    """Return the file of a sweep."""
    return output_dir / FOLDER / f"{name}.json"


def read(path: Path) -> Sweep:
    """Return the sweep in a file; raise SweepError for anything else."""
    advice = f"; name the .json of a sweep in OUTPUT_DIR/{FOLDER}"
    found = checked(json_in(path, SweepError, advice), str(path), SweepError, _KEYS, advice)
    axes = list(found["axes"])
    rules = _POINT | {
        "settings": Wanted(lambda one: isinstance(one, dict) and list(one) == axes, "a value of each axis")
    }
    points = [
        Point(**checked(one, f"{path}: points[{place}]", SweepError, rules, advice))
        for place, one in enumerate(found["points"])
    ]
    return Sweep(**{key: found[key] for key in ("name", "platform", "axes", "fixed")}, points=points)


_KEYS = {
    "sweep_version": Wanted(lambda one: one == VERSION, str(VERSION)),
    **dict.fromkeys(("name", "platform"), Wanted(lambda one: isinstance(one, str), "a text")),
    **dict.fromkeys(("axes", "fixed"), OBJECT),
    "points": LIST,
}
_POINT = {
    "label": Wanted(lambda one: isinstance(one, str) and "/" not in one, "the name of a folder"),
    "state": Wanted(lambda one: one in STATES, ", ".join(STATES)),
    "reason": Wanted(lambda one: one is None or isinstance(one, str), "a text or null"),
}
