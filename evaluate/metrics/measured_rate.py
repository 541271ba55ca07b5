"""The measured matrix-multiply rate for a result: of the same machine, device and precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from evaluate.metrics.figures import Figure, unknown
from evaluate.metrics.partition import UNIT, format_of
from evaluate.metrics.profile_file import Profile
from utils.results.probe_file import Probe
from utils.results.schema import Result, time_of

Dated = TypeVar("Dated", Probe, Profile)
LONGEST_APART = timedelta(days=7)
"""A rate of another week does not apply to a run, because drivers, clocks and caps change."""
MEMORY_TOLERANCE = 0.01
NONE_MEASURED = "no matrix-multiply rate was measured on this device; measure it: python -m train.probe"


@dataclass(frozen=True)
class Probes:
    """All probes that were found, and the errors of files that could not be read as probes."""

    found: tuple[Probe, ...] = ()
    errors: tuple[str, ...] = ()

    def joined(self, other: Probes) -> Probes:
        """Return the probes of both."""
        return Probes((*self.found, *other.found), (*self.errors, *other.errors))

    def rate_of(self, result: Result) -> Figure:
        """Return the best measured rate for one rank of a result, in TFLOP/s, or unknown with the reason."""
        precision = str(format_of(result))
        probe = self.nearest(result, precision)
        if probe is None:
            reasons = []
            for other in self.found:
                # probes of other machines are no news
                if other.host == result["provenance"]["host"]:
                    reasons.append(str(mismatch(other, result, precision)))
            return unknown(UNIT, "; ".join([*reasons, *self.errors]) or NONE_MEASURED)
        how = f"best of {probe.path.name}, measured {probe.started:%Y-%m-%d %H:%M} UTC"
        ranks = sharing(result)
        if ranks > 1:
            how += f", shared by {ranks} ranks"
        return Figure(probe.rates[precision].best_tflops / ranks, UNIT, how)

    def nearest(self, result: Result, precision: str | None = None) -> Probe | None:
        """Return the probe that applies to a result and is nearest in time; None if none does.

        If a precision is named, the probe must have measured its rate.
        """
        return nearest(result, [one for one in self.found if mismatch(one, result, precision) is None])


def nearest(result: Result, found: Sequence[Dated]) -> Dated | None:
    """Return the probe or profile that is nearest in time to a result; None without any."""
    began = moment_of(result)
    if began is None:
        return found[0] if found else None
    return min(found, key=lambda one: abs(one.started - began), default=None)


def sharing(result: Result) -> int:
    """Return the number of ranks that share the device of a probe: a CPU has one for all."""
    return int(result["training_config"]["num_gpus"]) if result["platform"] == "cpu" else 1


def attach(result: dict[str, Any], probes: Probes) -> None:
    """Store the measured rate that a result is compared with in the result, where `measured_rate` reads it."""
    rate = probes.rate_of(result)
    result["probe"] = {"matmul_tflops": rate.value, "how": rate.how}


def measured_rate(result: Result) -> Figure:
    """Return the measured rate that `attach` stored, in TFLOP/s for one rank, or unknown with the reason."""
    attached = result.get("probe") or {}
    return Figure(attached.get("matmul_tflops"), UNIT, attached.get("how") or NONE_MEASURED)


def mismatch(probe: Probe, result: Result, precision: str | None = None) -> str | None:
    """Return the reason why a probe does not apply to a result, or lacks a rate; None if it applies."""
    name, other_device, began = probe.path.name, _other_device(probe, result), moment_of(result)
    if other_device:
        return f"{name} is of another device: {other_device}"
    # a device may lack the precision, and says why
    if precision is not None and precision not in probe.rates:
        return f"{name} has no rate of {precision}: {probe.reasons.get(precision, 'not measured')}"
    # a busy device reaches less than it can
    if probe.other_work:
        return f"{name} was measured while {probe.other_work}; measure again"
    if began is None:
        return "the result does not say when it was started"
    away = abs(probe.started - began)
    if away > LONGEST_APART:
        return f"{name} was measured {away.days} days from the run, wanted {LONGEST_APART.days} at most"
    return None


def _other_device(probe: Probe, result: Result) -> str:
    """Return in what a probe's device is another than that of a result; empty if it is the same."""
    info = result["gpu_info"]
    rows = (
        ("platform", probe.platform, result["platform"]),
        ("machine", probe.host, result["provenance"]["host"]),
        ("device", probe.device_name, info["device_name"]),
    )
    apart = [f"{name} {ours!r}, the result's is {theirs!r}" for name, ours, theirs in rows if ours != theirs]
    memory = info["total_memory_gb"]
    if probe.total_memory_gb and memory and abs(probe.total_memory_gb / memory - 1) > MEMORY_TOLERANCE:
        apart.append(f"memory {probe.total_memory_gb:g} GB, the result's is {memory:g} GB")
    return "; ".join(apart)


def moment_of(result: Result, key: str = "started_utc") -> datetime | None:
    """Return the start of a run, or another time of `provenance`; None if it is unknown or no time."""
    try:
        return time_of(result["provenance"][key])
    except ValueError:
        return None


@dataclass(frozen=True)
class Profiles:
    """All profiles that were found, and the errors of files that could not be read as profiles."""

    found: tuple[Profile, ...] = ()
    errors: tuple[str, ...] = ()
