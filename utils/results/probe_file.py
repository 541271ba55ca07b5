"""The file of a probe, `probe_<platform>_<host>.json`: what a machine's device and its libraries can do, measured.

`python -m train.probe` writes it into OUTPUT_DIR; evaluate/metrics/measured_rate.py compares results with its rates. A
file of version 1 has the matrix-multiply rates only; its other parts are empty. Files of earlier suites also have other
keys (`operators`, `jobs`, `machine`, `loader_samples_per_second`), which are ignored. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from utils.errors import quoted
from utils.own_files import json_with
from utils.results.fields import ABOVE_ZERO, FROM_ZERO, LIST, OBJECT, TEXT, TIME, Wanted, checked, is_whole, json_in

VERSION = 2
WITH_RATES_ONLY = 1
"""Version without bandwidth and collectives."""
PRECISIONS = ("bf16", "fp8", "fp32")
IDENTITY = ("platform", "host", "device_name", "started_utc", "pytorch_version")
MAX_BUSY_PERCENT = 20.0
"""The limit of train/preflight/job_checks.py."""
MOST_RANKS = 1 << 20
NAME = re.compile(r"probe_(?:amd|nvd|cpu)_[A-Za-z0-9._-]+\.json")


is_probe = json_with("probe_version", "rates")
"""Recogniser of a probe of any version."""


class ProbeError(ValueError):
    """The file is not a valid probe; the message names file, key, value and what was wanted."""


@dataclass(frozen=True)
class Rate:
    """Measured rates of one precision, in TFLOP/s."""

    best_tflops: float
    """Highest of all rounds of all sizes."""
    sustained_tflops: float
    """Mean over the second half of the longest measurement, when the device is warm."""
    spread_percent: float
    """Standard deviation between the rounds of that half over their mean."""


@dataclass(frozen=True)
class CollectiveTime:
    """One collective of one size between `ranks` ranks on `nodes` nodes; seconds are those of one call, of one rank."""

    name: str
    bytes: float
    ranks: int
    nodes: int
    seconds: float
    """Median of the slowest rank."""
    spread_percent: float
    bus_gb_per_second: float
    """As nccl-tests defines it (train/probing/collectives.py)."""


@dataclass(frozen=True)
class Bandwidth:
    """Measured bandwidth, bytes counted as STREAM counts them."""

    gb_per_second: float
    spread_percent: float
    gb: float
    """Bytes of one pass, in 1e9."""


@dataclass(frozen=True)
class Probe:
    """Measurements of one device; on the cpu platform the device is the whole machine."""

    path: Path
    platform: str
    host: str
    device_name: str
    total_memory_gb: float | None
    started: datetime
    rates: Mapping[str, Rate]
    """By precision; those that could not be measured are missing."""
    reasons: Mapping[str, str]
    """Reason of each measurement that is missing, by its name: a precision, `collectives`, `host_to_device`, ..."""
    other_work: str = ""
    """Other work during the measurement, which makes the rate too low; empty if there was none."""
    collectives: tuple[CollectiveTime, ...] = ()
    bandwidth: Mapping[str, Bandwidth] = field(default_factory=dict)
    """`copy` and `triad` of the device's memory, `host_to_device`."""
    attention_tflops: float | None = None
    """Rate of causal attention in bf16, forward; None where it was not measured."""
    findings: tuple[str, ...] = ()
    """Sentences about measurements that cannot be right."""


def name(platform: str, host: str) -> str:
    """Return the name of the file; characters of a host name that a file name may not hold become dashes."""
    return f"probe_{platform}_{re.sub(r'[^A-Za-z0-9._-]', '-', host)}.json"


def read(path: Path) -> Probe:
    """Return the probe in a file; raise ProbeError for anything else."""
    return parse(json_in(path, ProbeError), path)


def parse(content: Any, path: Path) -> Probe:
    """Return the probe in the content of a file; raise ProbeError for anything else."""
    version = content.get("probe_version") if isinstance(content, dict) else None
    # True equals 1
    if isinstance(version, bool) or version not in (VERSION, WITH_RATES_ONLY):
        raise ProbeError(f"{path}: no probe of version {VERSION} or 1; measure again: python -m train.probe")
    keys = _KEYS if version == WITH_RATES_ONLY else _KEYS | _LATER_KEYS
    fields = checked({"reasons": {}, "attention": None} | content, str(path), ProbeError, keys)
    memory = content.get("total_memory_gb")
    rates = {name: _rate(rate, f"{path}: {name}") for name, rate in fields["rates"].items()}
    collectives = []
    for place, collective in enumerate(fields.get("collectives", ())):
        where = f"{path}: collectives[{place}]"
        collectives.append(CollectiveTime(**checked(collective, where, ProbeError, _COLLECTIVE)))
    bandwidth = {}
    for name, measured in fields.get("bandwidth", {}).items():
        where = f"{path}: bandwidth of {quoted(name)}"
        bandwidth[name] = Bandwidth(**checked(measured, where, ProbeError, _BANDWIDTH))
    attention = fields.get("attention")
    if attention is not None:
        attention = checked(attention, f"{path}: attention", ProbeError, _ATTENTION)["tflops"]
    return Probe(
        path=path,
        platform=fields["platform"],
        host=fields["host"],
        device_name=fields["device_name"],
        total_memory_gb=float(memory) if isinstance(memory, int | float) else None,
        started=fields["started_utc"],
        rates=rates,
        reasons={str(key): str(reason) for key, reason in fields["reasons"].items()},
        other_work=_other_work(fields["platform"], content.get("conditions")),
        collectives=tuple(collectives),
        bandwidth=bandwidth,
        attention_tflops=attention,
        findings=tuple(fields.get("findings", ())),
    )


def _other_work(platform: str, conditions: Any) -> str:
    """Read the conditions (train/machine/conditions.py); load of the cores matters on the cpu platform only."""
    if not isinstance(conditions, dict):
        return ""
    processes, busy = conditions.get("other_processes"), conditions.get("busy_before_percent")
    if isinstance(processes, int) and processes > 0:
        return f"{processes} other processes on the GPU"
    # on a GPU the cores only start the kernels
    if platform == "cpu" and isinstance(busy, int | float) and busy > MAX_BUSY_PERCENT:
        return f"{busy:.0f} % of the cores' time went to other work"
    return ""


def _rate(content: Any, where: str) -> Rate:
    rate = Rate(**checked(content, where, ProbeError, _RATE))
    if not 0 < rate.sustained_tflops <= rate.best_tflops:
        raise ProbeError(f"{where}: got {rate}, wanted 0 < sustained <= best")
    return rate


def _is_map_of_precisions(value: Any) -> bool:
    return isinstance(value, dict) and set(value) <= set(PRECISIONS)


def _is_object_or_none(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def _is_number_of_ranks(value: Any) -> bool:
    return is_whole(value, 1, MOST_RANKS)


_KEYS = dict.fromkeys(IDENTITY, TEXT) | {
    "started_utc": TIME,
    "rates": Wanted(_is_map_of_precisions, f"a map of {', '.join(PRECISIONS)}"),
    "reasons": OBJECT,
}
_LATER_KEYS = {
    "collectives": LIST,
    "bandwidth": OBJECT,
    "attention": Wanted(_is_object_or_none, "an object or null"),
    "findings": Wanted(_is_list_of_texts, "a list of texts"),
}
"""Keys that version 2 added."""
_RATE = {"best_tflops": FROM_ZERO, "sustained_tflops": FROM_ZERO, "spread_percent": FROM_ZERO}
_RANKS = Wanted(_is_number_of_ranks, "a whole number from 1")
_COLLECTIVE = {
    "name": TEXT,
    "bytes": FROM_ZERO,
    "ranks": _RANKS,
    "nodes": _RANKS,
    "seconds": ABOVE_ZERO,
    "spread_percent": FROM_ZERO,
    "bus_gb_per_second": ABOVE_ZERO,
}
_BANDWIDTH = {"gb_per_second": ABOVE_ZERO, "spread_percent": FROM_ZERO, "gb": ABOVE_ZERO}
_ATTENTION = {"tflops": ABOVE_ZERO}
