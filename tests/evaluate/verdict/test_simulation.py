"""Intervals cover the truth in 93 to 98 % of trials, and chance is called a difference in at most 5 % of them.

A smaller form of simulate.py, which prints the table of docs/compare.md: every layout with one process, at a noise of
1 %. The bounds are widened by three standard errors of a share of this many trials, by four where all cells are judged.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from evaluate.verdict.inference import PRODUCTS, Run, estimate
from tests.evaluate.verdict import simulate
from tests.evaluate.verdict.simulate import LAYOUTS, PROCESSES, Array, Cell, Side
from utils.results.performance import LEAST_RUNS, MOST_RUNS, TARGET, RunsRule

TRIALS = 1000


def limit(share: float, errors: int) -> float:
    return share + errors * math.sqrt(share * (1 - share) / TRIALS)


@pytest.fixture(scope="module")
def pools() -> dict[str, Array]:
    return simulate.pools(15, 20_000)


def judge(cell: Cell, pools: dict[str, Array], errors: int) -> None:
    found = simulate.simulate(cell, pools[cell.process], TRIALS, 15)
    assert found.coverage >= limit(0.93, -errors), cell
    assert found.coverage <= limit(0.98, errors) or simulate.is_conservative(cell), cell
    assert max(found.false, found.false_beyond_band) <= limit(0.05, errors), cell
    assert found.false == 0 or min(sum(cell.a) or 3, sum(cell.b) or 3) >= 3, "fewer runs decide nothing"


@pytest.mark.parametrize("place", range(len(LAYOUTS)), ids=[simulate.title(*layout) for layout in LAYOUTS])
def test_intervals_cover_the_truth_and_chance_is_no_difference(place: int, pools: dict[str, Array]) -> None:
    process = list(PROCESSES)[place % len(PROCESSES)]
    for cell in simulate.cells([LAYOUTS[place]]):
        if (cell.process, cell.noise) == (process, 0.01):
            judge(cell, pools, 3)


@pytest.mark.full("all 3,300 cells of the simulation, about 40 s")
def test_every_cell_of_the_simulation_keeps_its_bounds(pools: dict[str, Array]) -> None:
    for cell in simulate.cells():
        judge(cell, pools, 4)


@pytest.mark.parametrize(("a", "b"), [((3,), (5,)), ((5,), (1, 1, 1)), ((5,), (3, 2)), ((5, 3, 1), (2, 2, 2))])
def test_the_simulated_intervals_are_those_of_a_verdict(a: Side, b: Side, pools: dict[str, Array]) -> None:
    random = np.random.default_rng(3)
    cell = Cell(a, b, "independent", 0.01, (1.0, 1.0), (0.0, 0.02))
    runs = [[random.normal(0, 0.01, (1, count)) + random.normal(0, 0.02) for count in side] for side in (a, b)]
    summaries = [simulate.summary(side, is_general=cell.is_general) for side in runs]
    found = estimate(*([Run(str(place), float(x)) for place, one in enumerate(side) for x in one[0]] for side in runs))
    assert (found.scope == PRODUCTS) == cell.is_general
    for (mean, variance, degrees, count), spread, total in zip(summaries, found.spreads, found.runs, strict=True):
        assert spread is not None and np.isfinite(mean[0])
        assert (variance[0], degrees[0], count[0]) == pytest.approx((spread.variance, spread.degrees, total))
    assert summaries[1][0][0] - summaries[0][0][0] == pytest.approx(math.log(found.ratio))


def test_the_simulated_auto_is_that_of_the_suite() -> None:
    assert (simulate.AUTO_LEAST, simulate.AUTO_MOST, simulate.AUTO_TARGET) == (LEAST_RUNS, MOST_RUNS, TARGET)
    random, rule, counts = np.random.default_rng(5), RunsRule.of(None), set()
    runs = random.normal(0, 0.008, (60, MOST_RUNS))
    stopped = simulate.auto(runs)[3]
    for logs, count in zip(runs, stopped, strict=True):
        n = 1
        while rule.decide([math.exp(log) for log in logs[:n]]).goes_on:
            n += 1
        assert n == count
        counts.add(n)
    assert len(counts) > 4, "some stop early and some late"


def test_the_rows_of_the_docs_are_layouts_of_the_simulation() -> None:
    rows = [
        line.split("|")[1].strip()
        for line in (Path(__file__).parents[3] / "docs/compare.md").read_text().splitlines()
        if " x " in line and " against " in line and line.startswith("| ") and line[2].isdigit()
    ]
    assert rows and set(rows) <= {simulate.title(*layout) for layout in (((1,), (1,)), *LAYOUTS)}


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize(("least", "most"), [(3, 10), (5, 10), (3, 20)])
def test_runs_that_are_added_until_a_difference_is_found_find_few_that_are_not_there(
    process: str, least: int, most: int, pools: dict[str, Array]
) -> None:
    for spreads in simulate.SPREADS:
        cell = Cell((least,), (least,), process, 0.01, spreads)
        false, coverage = simulate.added(cell, pools[process], TRIALS, 15, most)
        assert false <= limit(0.05, 3) and coverage >= limit(0.94, -3), (cell, false, coverage)
