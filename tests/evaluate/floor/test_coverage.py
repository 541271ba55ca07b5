"""The 95 % intervals of hardware and framework cover the truth, in simulated pairs whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from floors_by_hand import job, operator, probe

from evaluate.floor import attribution, floors
from evaluate.floor.floors import Floor
from evaluate.verdict import inference
from evaluate.verdict.inference import Run

TRIALS = 400
CEILINGS = (("matmul", 0.4), ("matmul", 0.2), ("attention", 0.1), ("memory_bound", 0.2), ("optimizer", 0.1))
COUNTS = [1.0] * len(CEILINGS)
RUNS = 4


def measured(draw: np.random.Generator, speed: float, noise: float, *, is_common: bool) -> Floor:
    """Return the floor of a machine by a probe with errors; `is_common`: one error for all operators of a kind."""
    of_kind = {kind: draw.normal() for kind, _ in CEILINGS}
    operators = []
    for kind, ceiling in CEILINGS:
        error = of_kind[kind] if is_common else draw.normal()
        seconds = speed * ceiling * (1 + noise * error)
        operators.append(operator(kind, seconds, seconds, 196 * noise))
    return floors.of_job(probe(operators), job(COUNTS), 1)


def runs(draw: np.random.Generator, step: float, noise: float) -> list[Run]:
    return [Run("one", -math.log(step * (1 + noise * draw.normal()))) for _ in range(RUNS)]


@pytest.mark.parametrize("is_common", [True, False], ids=["one error a kind", "an error an operator"])
@pytest.mark.parametrize(("of_probe", "of_runs"), [(0.01, 0.003), (0.003, 0.02), (0.02, 0.02)])
def test_the_intervals_cover_the_truth_in_nine_of_ten_pairs(of_probe: float, of_runs: float, is_common: bool) -> None:
    draw = np.random.default_rng([18, int(1e4 * of_probe), int(1e4 * of_runs), is_common])
    speeds, steps = (1.0, 1.25), (1.5, 1.6)
    hardware, framework = speeds[0] / speeds[1], (steps[0] / speeds[0]) / (steps[1] / speeds[1])
    covered = np.zeros(2)
    for _ in range(TRIALS):
        a, b = (measured(draw, speed, of_probe, is_common=is_common) for speed in speeds)
        found = inference.estimate(*(runs(draw, step, of_runs) for step in steps))
        both = attribution.factors(found, a, b, a.seconds, b.seconds)
        for place, (factor, truth) in enumerate(zip(both, (hardware, framework), strict=True)):
            assert factor.low is not None and factor.high is not None
            covered[place] += factor.low <= truth <= factor.high
    assert (covered / TRIALS >= 0.90).all(), covered / TRIALS
    if is_common:
        assert covered[0] / TRIALS <= 0.985, "an interval that always covers the truth says nothing"
