"""How often a history raises a false alarm, and finds a true slowdown: the numbers of docs/history.md.

PYTHONPATH=.:tests/support .venv/bin/python -m tests.evaluate.timeline.simulate 1000
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from evaluate.timeline import history, levels
from evaluate.verdict.inference import BAND, LEAST_RUNS

NOISE: dict[str, dict[str, Any]] = {
    "runs 1 %": {"of_run": 0.01},
    "runs 4 %": {"of_run": 0.04},
    "days 2 %, runs 1 %": {"of_run": 0.01, "of_day": 0.02},
    "heavy tails 3 %": {"of_run": 0.03, "heavy": True},
    "days 2 %, neighbours correlated by 0.5": {"of_run": 0.005, "of_day": 0.02, "correlation": 0.5},
}
SHAPES = ((5, 3), (10, 1), (10, 3), (30, 3), (60, 5))
"""Days and runs a day."""
SLOWDOWNS = ((10, 9), (10, 8), (20, 17), (20, 15))
"""Days, and the first slow one (from 0)."""


def days(
    random: np.random.Generator,
    count: int,
    runs: int,
    of_run: float,
    of_day: float = 0.0,
    heavy: bool = False,
    correlation: float = 0.0,
) -> list[list[float]]:
    """Return logarithms of speeds, a list a day, around 0; standard deviations are relative."""
    shifts = [float(random.normal())]
    for _ in range(count - 1):
        shifts.append(correlation * shifts[-1] + math.sqrt(1 - correlation**2) * float(random.normal()))
    draw = (lambda: random.standard_t(3, runs) / math.sqrt(3)) if heavy else (lambda: random.normal(0, 1, runs))
    return [[of_day * shift + of_run * float(value) for value in draw()] for shift in shifts]


def is_alarm(blocks: list[list[float]]) -> bool:
    """Return whether the latest level is slower than the one before, by the rule of evaluate/timeline/history.py."""
    latest = levels.find(blocks, history.LIMITS[history.SPEED]).latest(BAND)
    if latest is None:
        return False
    level, last, difference = latest
    return difference.value < 0 and difference.is_certain and min(last.runs, level.runs) >= LEAST_RUNS


def false_alarms(trials: int, count: int, runs: int, noise: Mapping[str, Any]) -> float:
    """Return the share of the trials without a change that raise an alarm."""
    random = np.random.default_rng([count, runs])
    return sum(is_alarm(days(random, count, runs, **noise)) for _ in range(trials)) / trials


def power(trials: int, count: int, first: int, runs: int, noise: Mapping[str, Any]) -> float:
    """Return the share of the trials with 5 % less speed from day `first` on that raise an alarm."""
    random = np.random.default_rng([count, first, runs])
    found = 0
    for _ in range(trials):
        blocks = days(random, count, runs, **noise)
        slow = [[value + math.log(0.95) for value in block] for block in blocks[first:]]
        found += is_alarm(blocks[:first] + slow)
    return found / trials


def main() -> int:
    """Print both tables."""
    trials = int(sys.argv[1])
    print(f"false alarms in %, {trials} trials: days x runs")
    for name, noise in NOISE.items():
        print(
            f"| {name} |",
            " | ".join(f"{100 * false_alarms(trials, *shape, noise):.1f}" for shape in SHAPES),
            flush=True,
        )
    print("alarms in % with 5 % less speed: runs, and (days, first slow one)")
    for of_run in (0.005, 0.01, 0.02):
        for runs in (1, 3, 5):
            cells = (power(trials, *when, runs, {"of_run": of_run}) for when in SLOWDOWNS)
            print(f"| {of_run:.1%}, {runs} |", " | ".join(f"{100 * cell:.0f}" for cell in cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
