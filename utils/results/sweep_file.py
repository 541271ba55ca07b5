"""The file of a sweep, `sweeps/<name>.json` in OUTPUT_DIR: its axes, and the state of each of its points.

The sweep writes it after every point; the evaluation reads it. The figures of a point are not in it: they are in the
results of the point, in the folder of its label. Standard library only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from utils.own_files import json_with

VERSION = 1
FOLDER = "sweeps"
"""Folder of the files of all sweeps in OUTPUT_DIR."""
WAITING, RUNNING, OK, FAILED = "waiting", "running", "ok", "failed"
DOES_NOT_FIT, IMPOSSIBLE = "does not fit", "impossible"
STATES = (WAITING, RUNNING, OK, FAILED, DOES_NOT_FIT, IMPOSSIBLE)
"""Does not fit: not started, because the estimate of its memory exceeds the device. Impossible: settings refused."""
is_sweep = json_with("sweep_version", "axes", "points")
"""Recogniser of the file of any version."""


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
