"""The dense peak that a run is measured against: that of its device and of the precision of its matrix multiplies.

A run with PRECISION=fp8 and a recipe of 4 bits computes at the rate of FP4. Over the FP8 peak its utilisation would be
twice what it is.
"""

from __future__ import annotations

from evaluate.metrics.figures import Figure, unknown
from utils.hardware.devices import Device
from utils.results.schema import Result

UNIT = "TFLOP/s"
FOUR_BITS = ("nvfp4", "mxfp4", "fp4")
KEPT = ("bf16", "fp8", "fp4")


def format_of(result: Result) -> str | None:
    """Return the precision of the matrix multiplies of a run: its recipe if that is one of 4 bits, else its precision.

    The recipe that was read back comes before the one that was asked for.
    """
    asked, resolved = result["training_config"], result["resolved_config"]
    recipe, precision = resolved.get("fp8_recipe") or asked.get("fp8_recipe"), asked["precision"]
    return str(recipe) if precision == "fp8" and recipe in FOUR_BITS else precision


def dense_peak(result: Result, device: Device | None) -> Figure:
    """Return the dense peak of one device for a run, in TFLOP/s; unknown, with the reason, where the table has none."""
    if device is None:
        name = result["gpu_info"]["device_name"] or "the device"
        return unknown(UNIT, f"{name} is not known here, so it has no peak; no other chip's is taken")
    found = format_of(result)
    precision = "fp4" if found in FOUR_BITS else found
    if precision not in KEPT:
        return unknown(UNIT, f"no dense peak of {found} is kept")
    key = f"dense_{precision}_tflops"
    peak: float | None = getattr(device, key)
    if peak is None:
        return unknown(UNIT, f"{device.name} has no {precision}")
    return Figure(peak, UNIT, f"dense {precision} peak of {device.name}: {device.sources[key]}")
