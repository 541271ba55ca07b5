"""Rules of consistency: a result's numbers follow from its raw samples, and the requested settings are those that ran.

Each rule is one small function. It takes a result that satisfies the schema and returns its findings as lines of text.
Most rules also check results that are not ok, as far as those have values. evaluate/checks/limits.py checks memory,
energy and utilisation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any

from evaluate.metrics.steady import SHORTEST_STEP_SECONDS
from utils.results.performance import DATA_WAIT, data_wait_fraction, data_wait_warning, warmup_steps
from utils.results.schema import Result
from utils.results.store import SAMPLE_ROUNDING, SHARE_ROUNDING, SUMMARY_ROUNDING

Rule = Callable[[Result], list[str]]

FLOAT32_RELATIVE = 1e-6
"""Tolerance for a setting that its framework keeps as float32 (2**-24 = 6e-8 relative)."""
WARN_EPOCHS, MAX_EPOCHS = 1, 4
"""Above the first the loss is no longer that of unseen data; above the second a small corpus is being memorised."""
OWN_WEIGHTS_ONLY = ("prim",)
"""Frameworks that draw their own initial weights and ignore INIT (settings map, row `initial weights`)."""
REPEATS_IN_A_ROW = 3
LARGEST_NUMBER = 1e18
"""Far above every quantity of a result; arithmetic beyond it overflows."""


def steps_are_complete(result: Result) -> list[str]:
    """An ok result has each step from 1 to max_steps, except those of `excluded_steps`: profiled, or without a time in
    the log."""
    wanted = result["training_config"]["max_steps"]
    excluded = {int(step) for step in result.get("excluded_steps", {})}
    found = {*result["steps"], *excluded}
    if result["status"] != "ok" or (len(found) == wanted and min(found) == 1 and max(found) == wanted):
        return []
    return [f"steps: got {len(result['steps'])} steps, wanted each of 1 to {wanted}"]


def steps_take_time(result: Result) -> list[str]:
    """Every step time is above zero."""
    wrong = [time for time in result["step_times"] if time < SHORTEST_STEP_SECONDS]
    return [f"step_times: got {wrong[0]} s, wanted more than 0"] if wrong else []


def losses_are_positive(result: Result) -> list[str]:
    """A cross entropy over a vocabulary is above zero."""
    wrong = [loss for loss in result["loss_values"] if loss is not None and not loss > 0]
    return [f"loss_values: got {wrong[0]} nats per token, wanted more than 0"] if wrong else []


def warmup_is_excluded(result: Result) -> list[str]:
    """The summary excludes at least the steps of `utils.results.performance.warmup_steps`, but not all steps."""
    excluded, count = result["performance_metrics"]["warmup_steps_excluded"], len(result["steps"])
    if excluded is None:
        return ["warmup_steps_excluded: missing in a result that says ok"] if result["status"] == "ok" else []
    if count and not warmup_steps(count) <= excluded < count:
        return [f"warmup_steps_excluded: got {excluded} of {count} steps, wanted {warmup_steps(count)}"]
    return []


def step_times_agree(result: Result) -> list[str]:
    """Average, extremes and standard deviation follow from the raw step times."""
    times = _summarised(result)
    if not times:
        return []
    stored = result["performance_metrics"]
    found: list[str] = []
    mean = statistics.fmean(times)
    for name, value in (("avg", mean), ("min", min(times)), ("max", max(times))):
        key = f"{name}_step_time_seconds"
        found += _disagreement(key, stored[key], value, _summary_tolerance(value))
    deviation = math.dist(times, [mean] * len(times)) / math.sqrt(len(times) - 1) if len(times) > 1 else 0.0
    tolerance = _summary_tolerance(max(times))  # rounding follows the size of a sample, not the smaller deviation
    return found + _disagreement("std_step_time_seconds", stored["std_step_time_seconds"], deviation, tolerance)


def throughput_agrees(result: Result) -> list[str]:
    """tokens/s = global batch x sequence length / average step time; per GPU and steps/s likewise."""
    times, config, stored = _summarised(result), result["training_config"], result["performance_metrics"]
    if not times:
        return []
    steps_per_second = 1 / statistics.fmean(times)
    tokens_per_second = config["global_batch_size"] * config["sequence_length"] * steps_per_second
    expected = {"tokens_per_second": tokens_per_second, "steps_per_second": steps_per_second}
    if config["num_gpus"] > 0:
        expected["tokens_per_second_per_gpu"] = tokens_per_second / config["num_gpus"]
    found: list[str] = []
    for key, value in expected.items():
        found += _disagreement(key, stored[key], value, _summary_tolerance(value))
    return found


def data_wait_agrees(result: Result) -> list[str]:
    """The share of a step spent waiting for samples follows from the raw waits; it is None if a wait is unknown."""
    waits, stored = result["data_wait_seconds"], result["performance_metrics"]["data_wait_fraction"]
    negative = [wait for wait in waits if wait is not None and wait < 0]
    if negative:
        return [f"data_wait_seconds: got {negative[0]} s, wanted 0 or more"]
    times = _summarised(result)
    if not times:
        return []
    expected = data_wait_fraction(times, waits[-len(times) :])
    if expected is None or stored is None:
        return [] if expected is stored else [f"data_wait_fraction: stored {stored}, the raw samples give {expected}"]
    tolerance = (SHARE_ROUNDING + 2 * SAMPLE_ROUNDING) * expected
    return _disagreement("data_wait_fraction", stored, expected, tolerance)


def long_data_wait_has_warning(result: Result) -> list[str]:
    """A result whose steps waited for samples longer than the limit has the warning."""
    waiting = result["performance_metrics"]["data_wait_fraction"]
    if data_wait_warning(waiting) is None or any(text.startswith(DATA_WAIT) for text in result["warnings"]):
        return []
    return [f"warnings: a data_wait_fraction of {waiting:g} is above the limit and none says so"]


def batch_adds_up(result: Result) -> list[str]:
    """GBS = MBS x DP x GA and GPUs = DP x TP x PP x CP, all above zero; not checked if a log leaves one unknown."""
    c = result["training_config"]
    found = []
    if any(c[key] is None for key in ("micro_batch_size", "gradient_accumulation", "dp", "tp", "pp", "cp")):
        return []
    batch = c["micro_batch_size"] * c["dp"] * c["gradient_accumulation"]
    if c["global_batch_size"] != batch or batch <= 0:
        factors = f"{c['micro_batch_size']} x {c['dp']} x {c['gradient_accumulation']}"
        found.append(f"global_batch_size: got {c['global_batch_size']}, wanted MBS x DP x GA = {factors} = {batch}")
    gpus = c["dp"] * c["tp"] * c["pp"] * c["cp"]
    if c["num_gpus"] != gpus or gpus <= 0:
        factors = f"{c['dp']} x {c['tp']} x {c['pp']} x {c['cp']}"
        found.append(f"num_gpus: got {c['num_gpus']}, wanted DP x TP x PP x CP = {factors} = {gpus}")
    return found


def requested_settings_ran(result: Result) -> list[str]:
    """Every setting that was read back from the framework has the requested value."""
    asked, ran = result["training_config"], result["resolved_config"]
    cannot = {"reasons", "init"} if result["framework"] in OWN_WEIGHTS_ONLY else {"reasons"}
    return [
        f"{key}: asked {asked[key]!r}, ran {ran[key]!r}"
        for key in asked
        if key not in cannot and ran.get(key) is not None and not _is_same(asked[key], ran[key])
    ]


def data_is_not_memorised(result: Result) -> list[str]:
    """A training passes over its data MAX_EPOCHS times at most, unless allow_repeat is set."""
    epochs = result["fingerprint"]["epochs"]
    if epochs is None or epochs <= MAX_EPOCHS or result["training_config"].get("allow_repeat") is True:
        return []
    return [f"epochs: got {epochs:g}, wanted at most {MAX_EPOCHS}; the data is being memorised"]


def data_is_seen_once(result: Result) -> list[str]:
    """A training passes over its data once; more passes, or an unknown number, give a warning."""
    epochs = result["fingerprint"]["epochs"]
    if epochs is None:
        return ["epochs: unknown; repeated data cannot be ruled out"] if result["status"] == "ok" else []
    if epochs <= WARN_EPOCHS:
        return []
    return [f"epochs: {epochs:g} passes over the data; the loss is not one of unseen data"]


def trainer_warnings(result: Result) -> list[str]:
    """Return the warnings of the trainer."""
    return list(result["warnings"])


def summary_leaves_out_the_first_steps_alone(result: Result) -> list[str]:
    """The summary leaves out as many first steps as the rule; figures here follow the rule whatever a file claims."""
    excluded, count = result["performance_metrics"]["warmup_steps_excluded"], len(result["steps"])
    if not excluded or excluded <= warmup_steps(count):
        return []
    return [
        f"warmup_steps_excluded: the stored summary leaves out {excluded} of {count} steps, the rule is "
        f"{warmup_steps(count)}; the figures here follow the rule and the raw step times"
    ]


def settings_were_read_back(result: Result) -> list[str]:
    """Every setting was read back from the framework; one that was not may differ from the one that ran."""
    asked, ran = result["training_config"], result["resolved_config"]
    readable = [key for key in asked if key in ran and key != "reasons"]
    unknown = [key for key in readable if ran[key] is None]
    if result["status"] == "ok" and unknown == readable:
        return ["no setting was read back from the framework: what ran may be something else"]
    return [f"not read back from the framework: {', '.join(unknown)}"] if unknown and result["status"] == "ok" else []


def step_times_vary(result: Result) -> list[str]:
    """Step times do not repeat to the last digit, as copied or averaged times do and measured ones hardly ever."""
    longest = max((len(list(same)) for _, same in groupby(result["step_times"])), default=0)
    return [f"step times repeat exactly, {longest} in a row"] if longest >= REPEATS_IN_A_ROW else []


REJECTING_RULES: tuple[Rule, ...] = (
    steps_are_complete,
    steps_take_time,
    losses_are_positive,
    warmup_is_excluded,
    step_times_agree,
    throughput_agrees,
    data_wait_agrees,
    long_data_wait_has_warning,
    batch_adds_up,
    requested_settings_ran,
    data_is_not_memorised,
)
WARNING_RULES: tuple[Rule, ...] = (
    trainer_warnings,
    data_is_seen_once,
    settings_were_read_back,
    step_times_vary,
    summary_leaves_out_the_first_steps_alone,
)


def too_large(value: Any, where: str = "") -> Iterator[str]:
    """Yield a line for every number in a result that the other rules cannot handle."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from too_large(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list) and not _are_all_small(value):
        for inner in value:
            yield from too_large(inner, where)
    elif isinstance(value, (int, float)) and abs(value) > LARGEST_NUMBER:
        yield f"{where}: got a number beyond {LARGEST_NUMBER:g}, which no measurement or setting is"


def _are_all_small(values: list[Any]) -> bool:
    """Return whether a list has numbers only, none too large. Fast, because it runs on all samples of a run."""
    try:
        return not values or -LARGEST_NUMBER <= min(values) <= max(values) <= LARGEST_NUMBER
    except TypeError:  # not all are numbers
        return False


def _summarised(result: Result) -> list[float]:
    """Return the step times behind the stored summary: those after its first `warmup_steps_excluded`, in seconds.

    They serve to check that summary alone; every figure of a report has the steps of evaluate/metrics/steady.py. Empty
    if the number is impossible.
    """
    times, excluded = result["step_times"], result["performance_metrics"]["warmup_steps_excluded"]
    if excluded is None or not 0 <= excluded < len(times) or min(times) < SHORTEST_STEP_SECONDS:
        return []
    return list(times[excluded:])


def _summary_tolerance(value: float) -> float:
    """Return the sum of both roundings; that of the samples counts twice, as a standard deviation can move that far."""
    return SUMMARY_ROUNDING + 2 * SAMPLE_ROUNDING * abs(value)


def _disagreement(key: str, stored: float | None, expected: float, tolerance: float) -> list[str]:
    if stored is None or abs(stored - expected) <= tolerance:
        return []
    return [f"{key}: stored {stored:.7g}, the raw samples give {expected:.7g}"]


def _is_same(asked: Any, ran: Any) -> bool:
    if isinstance(asked, float) and isinstance(ran, (int, float)) and not isinstance(ran, bool):
        return math.isclose(asked, ran, rel_tol=FLOAT32_RELATIVE)
    return bool(asked == ran)
