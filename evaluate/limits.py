"""What no device can do: more arithmetic than it has, more memory than it has, energy that disagrees with itself."""

from __future__ import annotations

from evaluate.metrics import metrics
from evaluate.rules import Result

FULL_PERCENT = 100.0
ENERGY_RELATIVE = 0.05
"""Joules and average watts x time of one run agree at least this well, or one of them counts something else."""


def utilisation_is_possible(result: Result) -> list[str]:
    """Return a line where model FLOP/s, attention counted causally, exceed the dense peak or the measured rate."""
    if result["status"] != "ok":
        return []
    found = metrics(result)
    lines = []
    for name, what in (("mfu_causal", "the dense peak"), ("share_of_measured_matmul", "the measured rate")):
        figure = found.get(name)
        if figure is not None and figure.value is not None and figure.value > FULL_PERCENT:
            lines.append(f"model FLOP/s: {figure.value:.0f} % of {what}, which cannot be: {figure.how}")
    return lines


def memory_fits(result: Result) -> list[str]:
    """The peak of a rank is no larger than the memory of its device."""
    peak, total = result["memory_metrics"]["peak_memory_allocated_gb"], result["gpu_info"]["total_memory_gb"]
    if peak is None or total is None or peak <= total:
        return []
    return [f"peak_memory_allocated_gb: got {peak} GB on a device of {total} GB"]


def energy_agrees(result: Result) -> list[str]:
    """Joules follow from average watts and the time of the steps, and joules a token from the tokens."""
    energy, config = result["energy_metrics"], result["training_config"]
    joules, watts, a_token = energy["joules"], energy["avg_watts"], energy["joules_per_token"]
    if joules is None or watts is None or not result["step_times"]:
        return []
    if joules <= 0 or watts <= 0:
        return [f"energy: got {joules} J and {watts} W, wanted more than 0"]
    lines = []
    seconds = joules / watts
    longest = sum(result["step_times"])
    if seconds > longest * (1 + ENERGY_RELATIVE):
        lines.append(f"energy: {joules} J at {watts} W are {seconds:.4g} s, the steps took {longest:.4g} s")
    if a_token:
        tokens = joules / a_token
        trained = len(result["step_times"]) * config["global_batch_size"] * config["sequence_length"]
        if tokens > trained * (1 + ENERGY_RELATIVE):
            lines.append(f"energy: {a_token} J a token make {tokens:,.0f} tokens, {trained:,} were trained")
    return lines


LIMITS = (utilisation_is_possible, memory_fits, energy_agrees)
