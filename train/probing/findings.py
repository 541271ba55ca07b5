"""Sentences about what a probe shows: software that is slower than it need be, and figures that cannot be right."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from train.probing.replay import BANDWIDTH
from utils.hardware.devices import Device
from utils.kinds import MATMUL

APART = 1.10
"""Ratio of `torch.matmul` and `F.linear` above which one of them is reported."""
LEAST_SHARE = 0.01
"""Share of a step that an operator must have to be reported."""
MOST_COPIED = 0.05
"""Share of a step that may be estimated by copies without a remark."""
TOLERANCE = 1.02
"""A device may run this much above the clock of its datasheet."""
PAIR = ("matmul", "linear")
WORDS = {"matmul": "torch.matmul", "linear": "F.linear"}
PEAKS = {"bf16": "dense_bf16_tflops", "fp8": "dense_fp8_tflops"}


def shares(operators: Sequence[Mapping[str, Any]], jobs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return for each operator the largest share that its calls have of the operators' seconds of a job's step."""
    seconds = [min(one["seconds"], one["warm_seconds"]) for one in operators]
    found = [0.0] * len(operators)
    for job in jobs:
        total = sum(seconds[place] * count for place, count in job["calls"])
        for place, count in job["calls"]:
            found[place] = max(found[place], seconds[place] * count / total)
    return found


def of_software(operators: Sequence[Mapping[str, Any]], jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each product whose two ways are apart, the weightiest first.

    Both medians, with a cold and with a warm cache, must be more than 10 % apart, and their 95 % intervals as well.
    """
    weighed = zip(shares(operators, jobs), operators, strict=True)
    ordered = sorted(weighed, key=lambda pair: -pair[0])
    return [
        line for share, one in ordered if share >= LEAST_SHARE and one["kind"] == MATMUL for line in _apart(one, share)
    ]


def _apart(one: Mapping[str, Any], share: float) -> Iterator[str]:
    if not set(PAIR) <= set(one["variants"]):
        return
    slow = max(PAIR, key=lambda name: one["variants"][name])
    (fast,) = set(PAIR) - {slow}
    ratio = one["variants"][slow] / one["variants"][fast]
    # cold and warm; an interval is [low, high]
    above = (slower[0] > APART * faster[1] for slower, faster in zip(*_intervals(one, slow, fast), strict=True))
    if ratio > APART and all(above):
        times = [f"{1e6 * one['variants'][name]:.4g}" for name in (slow, fast)]
        yield (
            f"{described(one)}: {WORDS[slow]} takes {ratio:.2f}x the time of {WORDS[fast]}, {times[0]} us against "
            f"{times[1]} us; {100 * share:.1f} % of a step are in this operator"
        )


def _intervals(one: Mapping[str, Any], *names: str) -> list[Any]:
    return [one["intervals"][name] for name in names]


def described(one: Mapping[str, Any]) -> str:
    """Return name, shapes and dtype of an operator of the file in a few words."""
    shapes, dtypes = json.loads(one["shapes"]), json.loads(one["dtypes"])
    shown = " x ".join("(" + ", ".join(map(str, shape)) + ")" for shape in shapes[:3])
    more = f" and {len(shapes) - 3} more" if len(shapes) > 3 else ""
    return f"{one['name']} {shown}{more} {'/'.join(dict.fromkeys(dtypes))}".replace("  ", " ").strip()


def of_physics(content: Mapping[str, Any], device: Device | None) -> list[str]:
    """Return a sentence for each figure above the datasheet of a known device: such a measurement is wrong."""
    if device is None:
        return []
    found = []
    for precision, rate in content["rates"].items():
        peak = getattr(device, PEAKS[precision], None) if precision in PEAKS else None
        if peak and rate["best_tflops"] > TOLERANCE * peak:
            found.append(
                f"{precision}: {rate['best_tflops']:g} TFLOP/s are above the {peak:g} of the datasheet of {device.name}"
            )
    limit = device.memory_bandwidth_gb_per_second
    for name in ("copy", "triad"):
        measured = content["bandwidth"].get(name)
        if limit and measured and measured["gb_per_second"] > TOLERANCE * limit:
            found.append(
                f"{name}: {measured['gb_per_second']:g} GB/s are above the {limit:g} of the datasheet of {device.name}"
            )
    for one in content["operators"]:
        peak = device.dense_fp8_tflops if "float8" in one["dtypes"] else device.dense_bf16_tflops
        reached = one["flops"] / min(one["seconds"], one["warm_seconds"]) / 1e12
        if peak and one["kind"] == MATMUL and reached > TOLERANCE * peak:
            found.append(f"{described(one)}: {reached:.4g} TFLOP/s are above the {peak:g} of the datasheet")
    return [f"impossible: {line}; measure again" for line in found]


def of_coverage(operators: Sequence[Mapping[str, Any]], jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each job of which more than a twentieth was estimated by copies."""
    found = []
    for job in jobs:
        copied = copied_share(operators, job)
        if copied > MOST_COPIED:
            found.append(
                f"{job['framework']} {job['model']}: {100 * copied:.0f} % of the step's operators were not run, but "
                "estimated by copies of as many bytes"
            )
    return found


def copied_share(operators: Sequence[Mapping[str, Any]], job: Mapping[str, Any]) -> float:
    """Return the share of a job's step, by the seconds of its operators, that was estimated by copies."""
    seconds = {True: 0.0, False: 0.0}
    for place, count in job["calls"]:
        one = operators[place]
        seconds[one["method"] == BANDWIDTH] += count * min(one["seconds"], one["warm_seconds"])
    return seconds[True] / (sum(seconds.values()) or 1.0)
