"""The file of a probe, `probe_<platform>_<host>.json`: the matrix-multiply rates measured on a machine's device.

`python -m train.probe` writes it into OUTPUT_DIR; evaluate/metrics/measured_rate.py compares results with it. Standard
library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from utils.errors import quoted
from utils.input_files import InputFileError, json_of
from utils.own_files import json_with

VERSION = 2
VERSIONS = (1, VERSION)
PRECISIONS = ("bf16", "fp8", "fp32")
IDENTITY = ("platform", "host", "device_name", "started_utc", "pytorch_version")
MAX_BUSY_PERCENT = 20.0
"""The limit of train/preflight/job_checks.py."""
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
class OperatorTime:
    """One distinct call of a rehearsal, measured."""

    name: str
    shapes: str
    dtypes: str
    phase: str
    kind: str
    flops: float
    bytes: float
    seconds: float
    warm_seconds: float
    spread_percent: float
    method: str
    reason: str
    variants: Mapping[str, float]


@dataclass(frozen=True)
class JobOperators:
    """The operators and collectives of a step of one job."""

    framework: str
    model: str
    model_size: str
    settings: Mapping[str, Any]
    calls: tuple[tuple[int, float], ...]
    collectives: tuple[Mapping[str, Any], ...]
    ranks: int
    threads: int | None


@dataclass(frozen=True)
class CollectiveTime:
    """One collective, measured."""

    name: str
    bytes: float
    ranks: int
    nodes: int
    seconds: float
    spread_percent: float
    bus_gb_per_second: float


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
    """Reason of each missing precision."""
    other_work: str = ""
    """Other work during the measurement, which makes the rate too low; empty if there was none."""
    operators: tuple[OperatorTime, ...] = ()
    jobs: tuple[JobOperators, ...] = ()
    collectives: tuple[CollectiveTime, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)


def name(platform: str, host: str) -> str:
    """Return the name of the file; characters of a host name that a file name may not hold become dashes."""
    return f"probe_{platform}_{re.sub(r'[^A-Za-z0-9._-]', '-', host)}.json"


def read(path: Path) -> Probe:
    """Return the probe in a file; raise ProbeError for anything else."""
    try:
        content = json_of(path)
    except InputFileError as error:
        raise ProbeError(f"{path}: cannot be read as JSON: {error}") from error
    return parse(content, path)


def parse(content: Any, path: Path) -> Probe:
    """Return the probe in the content of a file; raise ProbeError for anything else."""
    if not isinstance(content, dict) or content.get("probe_version") not in VERSIONS:
        raise ProbeError(f"{path}: no probe of version {VERSION}; measure again: python -m train.probe")
    for key in IDENTITY:
        if not isinstance(content.get(key), str) or not content[key]:
            raise ProbeError(f"{path}: {key}: got {quoted(content.get(key))}, wanted a text")
    measured, reasons = content.get("rates"), content.get("reasons", {})
    if not isinstance(measured, dict) or not set(measured) <= set(PRECISIONS) or not isinstance(reasons, dict):
        raise ProbeError(f"{path}: rates: got {quoted(measured)}, wanted a map of {', '.join(PRECISIONS)}")
    wrong_time = f"got {quoted(content['started_utc'])}, wanted a time with its zone"
    try:
        started = datetime.fromisoformat(content["started_utc"])
    except ValueError as error:
        raise ProbeError(f"{path}: started_utc: {wrong_time}") from error
    if started.tzinfo is None:
        raise ProbeError(f"{path}: started_utc: {wrong_time}")
    memory = content.get("total_memory_gb")
    return Probe(
        path=path,
        platform=content["platform"],
        host=content["host"],
        device_name=content["device_name"],
        total_memory_gb=float(memory) if isinstance(memory, int | float) else None,
        started=started,
        rates={precision: _rate(found, f"{path}: {precision}") for precision, found in measured.items()},
        reasons={str(key): str(reason) for key, reason in reasons.items()},
        other_work=_other_work(content["platform"], content.get("conditions")),
        operators=tuple(OperatorTime(**one) for one in content.get("operators", ())),
        jobs=tuple(_job(one) for one in content.get("jobs", ())),
        collectives=tuple(CollectiveTime(**one) for one in content.get("collectives", ())),
        machine=content.get("machine", {}),
    )


def _job(found: Mapping[str, Any]) -> JobOperators:
    calls = tuple((place, count) for place, count in found["calls"])
    return JobOperators(**{**found, "calls": calls, "collectives": tuple(found["collectives"])})


def _other_work(platform: str, conditions: Any) -> str:
    """Read the conditions (train/machine/conditions.py); load of the cores matters on the cpu platform only."""
    if not isinstance(conditions, dict):
        return ""
    processes, busy = conditions.get("other_processes"), conditions.get("busy_before_percent")
    if isinstance(processes, int) and processes > 0:
        return f"{processes} other processes on the GPU"
    if platform == "cpu" and isinstance(busy, int | float) and busy > MAX_BUSY_PERCENT:
        return f"{busy:.0f} % of the cores' time went to other work"
    return ""


def _rate(found: Any, where: str) -> Rate:
    values = [found.get(key) if isinstance(found, dict) else None for key in Rate.__dataclass_fields__]
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) != len(values) or not all(math.isfinite(value) and value >= 0 for value in numbers):
        raise ProbeError(f"{where}: got {quoted(found)}, wanted {', '.join(Rate.__dataclass_fields__)} as numbers")
    rate = Rate(*map(float, numbers))
    if not 0 < rate.sustained_tflops <= rate.best_tflops:
        raise ProbeError(f"{where}: got {rate}, wanted 0 < sustained <= best")
    return rate
