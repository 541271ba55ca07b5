"""The least time that the operators of a step need on a device: the roofline model, one operator after the other.

Williams, Waterman, Patterson: "Roofline", Communications of the ACM 52(4), 2009: an operator takes at least its
floating-point operations over the peak rate, and at least its bytes over the memory bandwidth. Launch gaps, pipeline
bubbles, and communication, whose bandwidth utils/hardware/devices.py does not have, are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from utils.hardware.devices import Device

CAUSAL_SHARE = 0.5
"""Share of attention's floating-point operations, which count every pair of tokens, that a causal kernel must do."""
COUNTED = ("matmul", "attention", "memory_bound", "optimizer")
NOT_COUNTED = {
    "communication_exposed": "the table of devices has no bandwidth between devices",
    "host_copy": "the table of devices has no bandwidth between host and device",
    "idle": "a rehearsal has no clock",
}
"""Kinds of time without a figure, with the reason."""


def seconds_by_kind(operators: Iterable[Mapping[str, Any]], device: Device) -> dict[str, float]:
    """Return the least seconds of a step for each kind of operator.

    Products of 8-bit floats count at the FP8 peak, all others at the BF16 peak: of float32 the result is a lower bound
    only.
    """
    seconds = dict.fromkeys(COUNTED, 0.0)
    for operator in operators:
        if operator["kind"] in seconds:
            seconds[operator["kind"]] += operator["count"] * _seconds_once(operator, device)
    return seconds


def _seconds_once(operator: Mapping[str, Any], device: Device) -> float:
    is_fp8 = any(dtype.startswith("float8") for dtype in operator["dtypes"])
    tflops = (is_fp8 and device.dense_fp8_tflops) or device.dense_bf16_tflops
    flops = operator["flops"] * (CAUSAL_SHARE if operator["kind"] == "attention" else 1)
    return max(flops / (tflops * 1e12), operator["bytes"] / (device.memory_bandwidth_gb_per_second * 1e9))
