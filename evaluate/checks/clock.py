"""Rules of time: the steps of a run fit into the run's own start and end, and fill a believable part of it.

The clock of the machine (`started_utc`, `finished_utc`) and the timer of the steps are two sources of one duration.
A run also starts up, so steps that fill only a part of it are not yet a contradiction; `loop_seconds`, where a result
has it, is the duration of the training loop alone and leaves no such room.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from evaluate.checks.recorded import interval, is_complete, is_recorded
from evaluate.metrics.measured_rate import moment_of
from utils.frameworks import of
from utils.results.schema import Result

CLOCK_SECONDS = 2.0
"""Both times of a run are whole seconds; the clock may also be set while the run lasts."""
CLOCK_SHARE = 0.01
MOST_BETWEEN, SECONDS_BETWEEN = 0.2, 0.02
"""Share of the loop, and seconds a step: between two steps the recorder reads loss and memory and prints a line. On two
busy cores this took 0.1 % of steps of 2 to 4 s."""
ROUNDING_SECONDS = 0.01
"""Of a loop of very short steps: the summary has three decimals, the steps six digits each."""
LINE_SECONDS = 0.5
"""A line of a log arrives so much later than it was printed, at the most."""
LEAST_OF_RUN = 0.36
"""Steps of a third of their true length fill less than this of a run, whatever its start-up took."""
ENOUGH_STEPS = 20
"""Start-up may last longer than fewer steps."""
START_UP_SECONDS = {"cpu": 30.0}
OTHER_START_UP_SECONDS = 60.0
"""Part of a run outside its steps that no rule questions: imports, weights, data, compilation."""


def run_ends_after_its_start(result: Result) -> Iterator[str]:
    """A run ends after it started; times that cannot be read prove nothing."""
    provenance = result["provenance"]
    for key in ("started_utc", "finished_utc"):
        if provenance[key] and moment_of(result, key) is None:
            yield f"{key}: got {provenance[key]!r}, wanted a time like 2026-11-21T00:00:00+00:00"
    times = interval(result)
    if times is not None and times[0] > times[1]:
        yield f"finished_utc: {provenance['finished_utc']} is before started_utc {provenance['started_utc']}"


def steps_fit_into_the_run(result: Result) -> Iterator[str]:
    """All steps together take no longer than the run from its start to its end."""
    wall, steps = _seconds(result)
    # step times in ms that are taken for seconds are far longer than the run
    if wall is not None and steps > wall * (1 + CLOCK_SHARE) + CLOCK_SECONDS:
        yield f"step_times: {steps:,.0f} s in all, and the run took {wall:,.0f} s from started_utc to finished_utc"


def steps_fill_the_loop(result: Result) -> Iterator[str]:
    """The steps fill the training loop, whose duration a second timer measured."""
    loop, steps = loop_seconds(result), math.fsum(result["step_times"])
    if loop is None:
        return
    # a clock that does not wait for the device stops too early, and leaves much of the loop in no step
    most_between = max(MOST_BETWEEN * loop, SECONDS_BETWEEN * len(result["step_times"]))
    most_of_steps = loop * (1 + CLOCK_SHARE) + timer_seconds(result)
    if loop - steps > most_between or steps > most_of_steps:
        yield f"step_times: {steps:,.3g} s in all, and the training loop took {loop:,.3g} s"


def steps_fill_the_run(result: Result) -> Iterator[str]:
    """Steps that leave most of a long run unexplained contradict its start and end."""
    # a framework that starts its ranks is timed by its log, and has no `loop_seconds`;
    # a few short steps are less than their start-up in any honest run
    if not of(result["framework"]).starts_its_ranks and len(result["steps"]) >= ENOUGH_STEPS:
        yield from _little_of_the_run(result, LEAST_OF_RUN)


def little_of_the_run_is_steps(result: Result) -> Iterator[str]:
    """Steps that fill less than half of a run are marked: the rest is start-up, or the step times are too short."""
    # a result that is rejected for it needs no warning as well
    if not list(steps_fill_the_run(result)):
        yield from _little_of_the_run(result, 0.5)


def loop_seconds(result: Result) -> float | None:
    """Return the seconds of the training loop by a second timer, of the recorder or of the reader of a running log.

    None in a result that is not ok, in results of earlier versions and of a log alone.
    """
    if result["status"] != "ok":
        return None
    loop = result["performance_metrics"].get("loop_seconds")
    return None if loop is None or loop <= 0 else float(loop)


def timer_seconds(result: Result) -> float:
    """Return how far both timers of a run may be apart whatever its length."""
    return ROUNDING_SECONDS if is_recorded(result) else LINE_SECONDS


def _little_of_the_run(result: Result, least: float) -> Iterator[str]:
    """Yield a line if the share of a run that is in its steps is below `least`.

    Yields none if its start-up explains the rest, if a second timer has confirmed the steps (`loop_seconds`), or if
    start or end is unknown.
    """
    wall, steps = _seconds(result)
    if wall is None or loop_seconds(result) is not None:
        return
    rest = wall - steps
    if rest > START_UP_SECONDS.get(result["platform"], OTHER_START_UP_SECONDS) and steps / wall < least:
        yield f"step_times: {steps:,.0f} s in all, and the run took {wall:,.0f} s; {rest:,.0f} s are in no step"


def _seconds(result: Result) -> tuple[float | None, float]:
    """Return the seconds from start to end of a complete run, None if unknown, and those of all steps."""
    times, steps = interval(result), math.fsum(result["step_times"])
    if times is None or not is_complete(result) or not result["step_times"]:
        return None, steps
    return (times[1] - times[0]).total_seconds(), steps
