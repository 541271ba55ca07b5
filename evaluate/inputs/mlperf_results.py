"""Runs of MLPerf Training as results of our schema, which are shown and judged like all others.

A log tracks the mean speed of several steps at a time. Each mean counts for the last of its steps; the other steps are
excluded with that reason. Settings that MLPerf leaves free (precision, parallel sizes, software) are null, because no
log holds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evaluate.inputs import sections
from evaluate.inputs.mlperf_logs import DISCLAIMER, MlperfLogError, MlperfRun, System, benchmarks, system
from utils.results import store
from utils.results.performance import summarize
from utils.results.schema import SAMPLES

NOT_IN_LOG = "an MLPerf log does not say it"
OF_SEVERAL = "tracked in the mean of several steps only"
NO_DATA_WAIT = "an MLPerf log does not tell how long it waits for samples"
BENCHMARKS = {"llama31_8b": ("llama", "full")}
VENDORS = {"amd": "amd", "nvidia": "nvd"}


def load(paths: Sequence[Path]) -> tuple[list[tuple[Path, dict[str, Any]]], list[tuple[Path, str]]]:
    """Return the results of all MLPerf logs below the folders among `paths`, and unusable logs with their errors."""
    found: list[tuple[Path, dict[str, Any]]] = []
    unreadable = []
    described = sorted({path.resolve(): path for one in paths for path in one.rglob("system.json")}.values())
    for path in described:
        for logs in benchmarks(path.parent):
            try:
                one = system(path.parent, logs)
                found += [(run.path, result(one, run, number)) for number, run in enumerate(one.runs, 1)]
            except (MlperfLogError, store.ResultError) as error:
                unreadable.append((logs[0].parent, str(error)))
    return found, unreadable


def result(one: System, run: MlperfRun, number: int) -> dict[str, Any]:
    """Return a run of a system as a result; raise MlperfLogError if the log lacks tracked speeds or a known vendor."""
    tracked = [(item.step, item) for item in run.tracked if item.step is not None]
    steps = [step for step, _ in tracked]
    if not steps or sorted(set(steps)) != steps:
        raise MlperfLogError(
            f"{run.path}: got {len(run.tracked)} tracked speeds, wanted some with rising numbers of samples"
        )
    vendor = one.accelerator.split()[0].lower()
    if vendor not in VENDORS:
        raise MlperfLogError(f"{run.path}: accelerator {one.accelerator!r}, wanted one of AMD or NVIDIA")
    times = [one.global_batch_size / item.samples_per_second for _, item in tracked]
    tokens = one.global_batch_size * one.sequence_length
    model, size = BENCHMARKS.get(one.benchmark, (one.benchmark, "unknown"))
    last = max(steps[-1], run.samples // one.global_batch_size)
    known = set(steps)
    config: dict[str, Any] = {
        "max_steps": last,
        "global_batch_size": one.global_batch_size,
        "sequence_length": one.sequence_length,
        "num_gpus": one.gpus,
        "dataset": "C4 of MLPerf" if one.benchmark in BENCHMARKS else None,
    }
    samples: dict[str, Any] = dict.fromkeys(SAMPLES, [None] * len(steps))
    samples |= {"steps": steps, "step_times": times, "loss_values": [item.loss for _, item in tracked]}
    content = {
        "schema_version": store.SCHEMA_VERSION,
        "source": "mlperf",
        "status": "ok",
        "reason": None,
        "warnings": [DISCLAIMER],
        "platform": VENDORS[vendor],
        "framework": "mlperf",
        "model": model,
        "model_size": size,
        "method": "best",
        "label": "",
        "run": number,
        "attempt": 1,
        "identity_sha256": hashlib.sha256(run.path.read_bytes()).hexdigest(),
        "gpu_info": _section("gpu_info", {"device_name": one.accelerator, "device_count": one.gpus}),
        "training_config": _section("training_config", config),
        "resolved_config": _section("resolved_config", config | {"max_steps": None}),  # it ends at its target
        "performance_metrics": sections.filled("performance_metrics", summarize(times, tokens, one.gpus), NO_DATA_WAIT),
        "excluded_steps": {str(step): OF_SEVERAL for step in range(1, last + 1) if step not in known},
        "provenance": _section("provenance", {"host": one.name}),
        **{name: _section(name, {}) for name in ("memory_metrics", "energy_metrics", "fingerprint")},
        **samples,
    }
    store.validate(content, str(run.path))
    return content


def _section(name: str, known: dict[str, Any]) -> dict[str, Any]:
    return sections.filled(name, known, NOT_IN_LOG)
