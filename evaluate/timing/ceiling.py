"""The share of an operator's rate in the matrix-multiply rate that a probe measured on the same device."""

from __future__ import annotations

from collections.abc import Sequence

from evaluate.timing.breakdown import Breakdown
from evaluate.timing.tables import OperatorRow
from utils.kinds import MATMUL
from utils.results.probe_file import Probe


def probe_of(side: Breakdown, probes: Sequence[Probe]) -> tuple[Probe | None, str]:
    """Return the probe of the device of a trace, and why there is none, empty if there is one or none was given."""
    if not probes:
        return None, ""
    found = [probe for probe in probes if (probe.platform == "cpu") == side.is_of_host]
    if side.is_of_host:
        reason = "the probe is of a GPU, the trace of a CPU"
    elif side.device_name is None:
        found = found if len(found) == 1 else []
        reason = "the trace does not name its device, and the probes are not of one GPU"
    else:
        found = [probe for probe in found if probe.device_name.strip() == side.device_name.strip()]
        reason = f"the probe is of {probes[0].device_name}, the trace of {side.device_name}"
    return (found[0], "") if found else (None, reason)


def share(row: OperatorRow, probe: Probe | None) -> float | None:
    """Return a matrix product's share of the best rate that was measured in its precision; None if one is unknown."""
    rate = None if probe is None or row.work.precision is None else probe.rates.get(row.work.precision)
    if rate is None or row.kind != MATMUL or row.tflops is None:
        return None
    return row.tflops / rate.best_tflops
