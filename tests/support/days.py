"""Simulated days for the tests: results of several runs a day with a known speed, noise and versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from reports import save
from sides import run

FIRST_DAY = datetime(2026, 10, 1, 3, tzinfo=timezone.utc)
SECONDS = 1.0
RUN_NOISE, DAY_NOISE = 0.004, 0.002


def day(
    number: int,
    seconds: float = SECONDS,
    runs: int = 3,
    noise: float = RUN_NOISE,
    platform: str = "nvd",
    **changes: Any,
) -> list[dict[str, Any]]:
    """Return the runs of day `number` (from 0), an hour apart, at `seconds` a step; see `sides.run` for `changes`."""
    series = "".join(str(changes.get(key, "")) for key in ("host", "framework", "label"))
    random = np.random.default_rng([number, round(1e6 * seconds), runs, crc32(f"{platform}{series}".encode())])
    of_day = random.normal(0, DAY_NOISE if noise else 0.0)
    found = []
    for place in range(1, runs + 1):
        start = FIRST_DAY + timedelta(days=number, hours=place)
        of_run = seconds * (1 + of_day + random.normal(0, noise))
        result = run(platform, place, of_run, **changes)
        end = start + timedelta(seconds=sum(result["step_times"]) + 20)
        times = {"started_utc": start, "finished_utc": end}
        result["provenance"] |= {key: time.isoformat(timespec="seconds") for key, time in times.items()}
        found.append(result)
    return found


def write_days(
    folder: Path, days: int, of_day: Callable[[int], Mapping[str, Any]] = lambda _: {}, **common: Any
) -> list[Path]:
    """Write a folder for each day, with what `of_day` returns as arguments of `day`; return the folders."""
    folders = []
    for number in range(days):
        place = folder / f"day{number:02}"
        save(place, *day(number, **{**common, **of_day(number)}))
        folders.append(place)
    return folders
