"""The file of a probe, `probe_<platform>_<host>.json`: what a machine's device and its libraries can do, measured.

`python -m train.probe` writes it into OUTPUT_DIR; evaluate/metrics/measured_rate.py compares results with its rates. A
file of version 1 has the matrix-multiply rates only; its other parts are empty. Files of earlier suites also have
`operators` and `jobs`, which are ignored. Standard library only.
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
from utils.results import probe_parts
from utils.results.probe_parts import Bandwidth, CollectiveTime, PartError
from utils.results.schema import time_of

__all__ = ["Bandwidth", "CollectiveTime", "Probe", "ProbeError", "Rate"]

VERSION = 2
WITH_RATES_ONLY = 1
"""Version without bandwidth, collectives and state of the machine."""
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
    loader_samples_per_second: float | None = None
    """Samples that the data loader gives one rank."""
    findings: tuple[str, ...] = ()
    """Sentences about measurements that cannot be right."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """What a result must have in common with the probe: versions, power cap, clocks, threads."""


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
    version = content.get("probe_version") if isinstance(content, dict) else None
    if isinstance(version, bool) or version not in (VERSION, WITH_RATES_ONLY):
        raise ProbeError(f"{path}: no probe of version {VERSION} or 1; measure again: python -m train.probe")
    for key in IDENTITY:
        if not isinstance(content.get(key), str) or not content[key]:
            raise ProbeError(f"{path}: {key}: got {quoted(content.get(key))}, wanted a text")
    measured, reasons = content.get("rates"), content.get("reasons", {})
    if not isinstance(measured, dict) or not set(measured) <= set(PRECISIONS) or not isinstance(reasons, dict):
        raise ProbeError(f"{path}: rates: got {quoted(measured)}, wanted a map of {', '.join(PRECISIONS)}")
    try:
        started = time_of(content["started_utc"])
    except ValueError as error:
        raise ProbeError(f"{path}: started_utc: got {quoted(content['started_utc'])}, wanted a UTC time") from error
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
        **({} if version == WITH_RATES_ONLY else _parts(content, path)),
    )


def _parts(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the parts that version 2 added, as the fields of Probe."""
    loader, findings, machine = (content.get(key) for key in ("loader_samples_per_second", "findings", "machine"))
    is_rate = isinstance(loader, int | float) and not isinstance(loader, bool) and loader > 0
    if loader is not None and not is_rate:
        raise ProbeError(f"{path}: loader_samples_per_second: got {quoted(loader)}, wanted a number above 0 or null")
    if not isinstance(findings, list) or not all(isinstance(one, str) for one in findings):
        raise ProbeError(f"{path}: findings: got {quoted(findings)}, wanted a list of texts")
    if not isinstance(machine, dict):
        raise ProbeError(f"{path}: machine: got {quoted(machine)}, wanted an object")
    try:
        return {
            "collectives": probe_parts.collectives(content.get("collectives")),
            "bandwidth": probe_parts.bandwidths(content.get("bandwidth")),
            "loader_samples_per_second": None if loader is None else float(loader),
            "findings": tuple(findings),
            "machine": machine,
        }
    except PartError as error:
        raise ProbeError(f"{path}: {error}") from error


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
