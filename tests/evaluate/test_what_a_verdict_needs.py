"""Through the command line: sides that do not differ are never called different, with few runs or with enough.

Each model of one comparison is one trial, so that a single call of evaluate.compare judges all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sides import Result, run, verdicts

MODELS = 4
Side = tuple[int, ...]
"""Runs on each machine."""


def side(platform: str, machines: Side, seconds: float, noise: float, random: Any, **changes: Any) -> list[Result]:
    """Return the runs of one side: `noise` is the relative spread between restarts."""
    hosts = [f"{platform}-{machine}" for machine, count in enumerate(machines) for _ in range(count)]
    times = [seconds * float(np.exp(random.normal(0, noise))) for _ in hosts]
    return [run(platform, number, *one, **changes) for number, one in enumerate(zip(times, hosts, strict=True), 1)]


def trials(folder: Path, a: Side, b: Side, noise: float) -> list[dict[str, Any]]:
    """Return the verdicts on MODELS pairs with the same truth, with the default band and then with none."""
    random, results = np.random.default_rng([sum(a), sum(b), round(1000 * noise)]), []
    for number in range(MODELS):
        results += side("nvd", a, 1.0, noise, random, model=f"m{number}")
        results += side("amd", b, 1.0, noise, random, model=f"m{number}")
    return [found for band in ("0.03", "0") for found in verdicts(folder, results, "--band", band, code=0)]


@pytest.mark.parametrize(
    ("a", "b", "noise"),
    [((1,), (1,), 0.03), ((5,), (1,), 0.02), ((5,), (1, 1), 0.02), ((2,), (10,), 0.02), ((5,), (5,), 0.003)],
)
def test_equal_sides_are_never_called_different(tmp_path: Path, a: Side, b: Side, noise: float) -> None:
    found = trials(tmp_path, a, b, noise)
    assert len(found) == 2 * MODELS
    assert "tie" not in {one["verdict"] for one in found[MODELS:]}, "with a band of 0 nothing lies inside"
    for one in found:
        assert one["verdict"] in ("undecided", "tie"), one["sentence"]
        assert (one["interval"] is None) == (1 in (sum(a), sum(b)))
        assert one["verdict"] == "tie" or one["would_decide"] in one["sentence"]
        assert one["interval"] is None or one["interval"][0] < one["ratio"] < one["interval"][1]
