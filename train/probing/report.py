"""A probe as text: rates, bandwidths, the operators that weigh most with their share of the best rate, findings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from train.probing import findings
from train.probing.operators import precision_of
from utils.kinds import ATTENTION, MATMUL

MOST_OPERATORS = 12
MOST_COLLECTIVES = 12
WIDTH = 58
"""Characters of the description of an operator."""


def as_text(content: Mapping[str, Any]) -> str:
    """Return the lines of a probe's content (utils/results/probe_file.py)."""
    lines = [*_rates(content), *_memory(content), *_jobs(content), *_operators(content), *_collectives(content)]
    return "\n".join([*lines, *(f"finding: {line}" for line in content["findings"])]) + "\n"


def _rates(content: Mapping[str, Any]) -> Iterator[str]:
    for precision, rate in content["rates"].items():
        yield (
            f"{precision}: best {rate['best_tflops']:g}, sustained {rate['sustained_tflops']:g} TFLOP/s, spread "
            f"{rate['spread_percent']:g} % ({content['device_name']})"
        )


def _memory(content: Mapping[str, Any]) -> Iterator[str]:
    for name, one in content["bandwidth"].items():
        yield (
            f"{name.replace('_', ' ')}: {one['gb_per_second']:g} GB/s, +-{one['spread_percent']:g} % "
            f"({one['gb']:g} GB a pass)"
        )
    if content["loader_samples_per_second"] is not None:
        yield f"data loader: {content['loader_samples_per_second']:,.0f} samples/s for one rank"


def _jobs(content: Mapping[str, Any]) -> Iterator[str]:
    operators = content["operators"]
    for job in content["jobs"]:
        cold = sum(count * operators[place]["seconds"] for place, count in job["calls"])
        least = sum(
            count * min(operators[place]["seconds"], operators[place]["warm_seconds"]) for place, count in job["calls"]
        )
        ran = 100 * (1 - findings.copied_share(operators, job))
        threads = f", {job['threads']} thread{'s' if job['threads'] > 1 else ''}" if job["threads"] else ""
        yield (
            f"{job['framework']} {job['model']} ({job['model_size']}), one of {job['ranks']} rank"
            f"{'s' if job['ranks'] > 1 else ''}{threads}: {len(job['calls'])} operators take {_time(least)} a step at "
            f"least, {_time(cold)} with a cold cache; {ran:.1f} % of it was run, the rest estimated by copies"
        )


def _operators(content: Mapping[str, Any]) -> Iterator[str]:
    operators = content["operators"]
    if not operators:
        return
    shares = findings.shares(operators, content["jobs"])
    order = sorted(range(len(operators)), key=lambda place: -shares[place])[:MOST_OPERATORS]
    yield f"{'operator':{WIDTH}} {'of step':>8} {'us':>10} {'+-':>6} {'rate':>14} {'of best':>8}  variants, us"
    for place in order:
        one = operators[place]
        least = min(one["seconds"], one["warm_seconds"])
        rate, share = _rate(one, least, content)
        described = findings.described(one)
        shown = described if len(described) <= WIDTH else described[: WIDTH - 3] + "..."
        others = " ".join(f"{name} {1e6 * seconds:.4g}" for name, seconds in one["variants"].items())
        yield (
            f"{shown:{WIDTH}} {100 * shares[place]:7.1f}% {1e6 * least:10.4g} {one['spread_percent']:5.1f}% {rate:>14} "
            f"{share:>8}  {others}"
        )
    if len(operators) > len(order):
        yield f"and {len(operators) - len(order)} operators that weigh less"


def _rate(one: Mapping[str, Any], seconds: float, content: Mapping[str, Any]) -> tuple[str, str]:
    """Return the rate of an operator, and its share of the best one that was measured."""
    if one["kind"] in (MATMUL, ATTENTION):
        best = content["rates"].get(precision_of(json.loads(one["dtypes"])), {}).get("best_tflops")
        return _share(one["flops"] / seconds / 1e12, best and best * _part(content), "TFLOP/s")
    moved = (found["gb_per_second"] for name, found in content["bandwidth"].items() if name != "host_to_device")
    return _share(one["bytes"] / seconds / 1e9, max(moved, default=None), "GB/s")


def _part(content: Mapping[str, Any]) -> float:
    """Return the part of the device's threads that the rank of a job has: rates are those of the whole machine."""
    threads = content["jobs"][0]["threads"]
    return min(1.0, threads / content["threads"]) if threads and content["threads"] else 1.0


def _share(rate: float, best: float | None, unit: str) -> tuple[str, str]:
    return f"{rate:.4g} {unit}", f"{100 * rate / best:.0f}%" if best else ""


def _collectives(content: Mapping[str, Any]) -> Iterator[str]:
    rows: Sequence[Mapping[str, Any]] = content["collectives"]
    for one in rows[:MOST_COLLECTIVES]:
        where = f"{one['ranks']} ranks on {one['nodes']} node{'s' if one['nodes'] > 1 else ''}"
        yield (
            f"{one['name'].replace('_', '-')} of {one['bytes'] / 1e6:,.1f} MB, {where}: {_time(one['seconds'])}, bus "
            f"{one['bus_gb_per_second']:g} GB/s"
        )
    if len(rows) > MOST_COLLECTIVES:
        yield f"and {len(rows) - MOST_COLLECTIVES} other collectives"


def _time(seconds: float) -> str:
    return f"{seconds:.4g} s" if seconds >= 1 else f"{1e3 * seconds:.4g} ms"
