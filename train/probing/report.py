"""A probe as text: rates, bandwidths, collectives, and figures that cannot be right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from utils.hardware.devices import Device

MOST_COLLECTIVES = 12
TOLERANCE = 1.02
"""A device may run this much above the clock of its datasheet."""
PEAKS = {"bf16": "dense_bf16_tflops", "fp8": "dense_fp8_tflops"}


def as_text(content: Mapping[str, Any]) -> str:
    """Return the lines of a probe's content (utils/results/probe_file.py)."""
    lines = [*_rates(content), *_collectives(content)]
    return "\n".join([*lines, *(f"finding: {line}" for line in content["findings"])]) + "\n"


def impossible(content: Mapping[str, Any], device: Device | None) -> list[str]:
    """Return a sentence for each figure above the datasheet of a known device: such a measurement is wrong."""
    if device is None:
        return []
    found = []
    for precision, rate in content["rates"].items():
        peak = getattr(device, PEAKS[precision], None) if precision in PEAKS else None
        found.append((precision, rate["best_tflops"], peak, "TFLOP/s"))
    for name in ("copy", "triad"):
        if name in content["bandwidth"]:
            rate = content["bandwidth"][name]["gb_per_second"]
            found.append((name, rate, device.memory_bandwidth_gb_per_second, "GB/s"))
    return [
        f"impossible: {name}: {rate:g} {unit} are above the {limit:g} of the datasheet of {device.name}; measure again"
        for name, rate, limit, unit in found
        if limit and rate > TOLERANCE * limit
    ]


def _rates(content: Mapping[str, Any]) -> Iterator[str]:
    for precision, rate in content["rates"].items():
        yield (
            f"{precision}: best {rate['best_tflops']:g}, sustained {rate['sustained_tflops']:g} TFLOP/s, spread "
            f"{rate['spread_percent']:g} % ({content['device_name']})"
        )
    if one := content["attention"]:
        yield f"attention: {one['tflops']:g} TFLOP/s, +-{one['spread_percent']:g} %, causal, bf16, forward"
    for name, one in content["bandwidth"].items():
        yield (
            f"{name.replace('_', ' ')}: {one['gb_per_second']:g} GB/s, +-{one['spread_percent']:g} % "
            f"({one['gb']:g} GB a pass)"
        )


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
