"""Reader of MLPerf Training results as MLCommons publishes them: `:::MLLOG` lines, read into systems with their runs.

Minutes are the Olympic mean over the runs (without the fastest and the slowest one) of run_stop - run_start, times the
scaling factor (training_policies, training_rules.adoc). Throughput is that of training alone: the median of the speeds
that a run tracked in its blocks (`tracked_stats`: samples/s of each block, or the time of each 32nd step), times the
sequence length; a system has the median over its runs. It must agree with the time between block_start and block_stop,
which gives the throughput of a log without tracked speeds.

As a result of our schema, which is shown and judged like all others, a run has one step for each tracked mean: the last
of its steps. The other steps are excluded with that reason. Settings that MLPerf leaves free (precision, parallel
sizes, software) are null, because no log holds them.
"""

from __future__ import annotations

import hashlib
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evaluate.inputs import mlperf_run
from evaluate.inputs.discover import distinct, files_below
from evaluate.inputs.mlperf_run import MlperfLogError, MlperfRun, count
from evaluate.inputs.partly_known import UNKNOWN, filled
from utils.errors import quoted
from utils.input_files import content_of
from utils.results import store
from utils.results.fields import json_in
from utils.results.performance import summarize
from utils.results.schema import LONGEST_NAME, SAMPLES, SCHEMA_VERSION

DISCLAIMER = "Computed here from published logs; not verified by MLCommons Association."
NOT_IN_LOG = "an MLPerf log does not say it"
DESCRIPTION = "system.json"
LEAST_FACTOR = 0.01
BENCHMARKS = {"llama31_8b": ("llama", "full")}
VENDORS = {"amd": "amd", "nvidia": "nvd"}
_section = partial(filled, reason=NOT_IN_LOG)


@dataclass(frozen=True)
class System:
    """All runs of one system."""

    name: str
    benchmark: str
    accelerator: str
    gpus: int
    global_batch_size: int
    sequence_length: int
    scaling: float
    runs: tuple[MlperfRun, ...]

    @property
    def minutes(self) -> float:
        """Olympic mean of the runs times the scaling factor."""
        minutes = sorted(run.minutes for run in self.runs)
        if len(minutes) > 2:
            # training_rules.adoc drops the fastest and the slowest run
            minutes = minutes[1:-1]
        return statistics.fmean(minutes) * self.scaling

    def tokens_per_second_per_gpu(self, run: MlperfRun) -> float:
        """Return the training throughput of a run."""
        return run.samples_per_second * self.sequence_length / self.gpus

    @property
    def throughput(self) -> float:
        """Median over the runs."""
        return statistics.median(map(self.tokens_per_second_per_gpu, self.runs))

    @property
    def spread(self) -> float:
        """Standard deviation between the runs over their mean; 0 for a single run."""
        if len(self.runs) == 1:
            return 0.0
        rates = list(map(self.tokens_per_second_per_gpu, self.runs))
        return statistics.stdev(rates) / statistics.fmean(rates)


def load(folder: Path) -> list[System]:
    """Return every system below `folder`, by name; raise MlperfLogError for an unreadable or inconsistent log."""
    systems = []
    for path in files_below(folder, DESCRIPTION)[0]:
        for logs in benchmarks(path.parent):
            systems.append(system(path.parent, logs))
    if not systems:
        raise MlperfLogError(f"{folder}: got no system.json with result_*.txt below it, wanted MLPerf Training results")
    return systems


def benchmarks(system: Path) -> Iterator[list[Path]]:
    """Yield the logs of each benchmark in the folder of a system; raise MlperfLogError if it cannot be read."""
    try:
        for folder in sorted(filter(Path.is_dir, system.iterdir())):
            logs = sorted(path for path in folder.iterdir() if path.match("result_*.txt"))
            if logs:
                yield logs
    except OSError as error:
        raise MlperfLogError(f"{error.filename}: folder cannot be read: {error.strerror}") from error


def system(folder: Path, logs: list[Path]) -> System:
    """Return the system of a folder with its logs of one benchmark; raise MlperfLogError as `load` does."""
    description = _json(folder / "system.json")
    place = logs[0].parent / "scaling.json"
    scaling = _json(place) if os.path.lexists(place) else {"scaling_factor": 1.0}
    parsed = [mlperf_run.read(path) for path in logs]
    constants = {(batch, length) for _, batch, length in parsed}
    if len(constants) != 1:
        raise MlperfLogError(f"{logs[0].parent}: its runs differ in batch or sequence length: {sorted(constants)}")
    ((batch, length),) = constants
    try:
        gpus = math.prod(count(description[key], key) for key in ("number_of_nodes", "accelerators_per_node"))
        accelerator = description["accelerator_model_name"]
        factor = float(scaling["scaling_factor"])
        if not isinstance(accelerator, str) or not accelerator.strip() or len(accelerator) > LONGEST_NAME:
            raise ValueError(f"accelerator_model_name: got {quoted(accelerator)}, wanted the name of a device")
        if not LEAST_FACTOR <= factor <= 1 / LEAST_FACTOR:
            raise ValueError(f"scaling_factor: got {factor:g}, wanted a number near 1")
    except (KeyError, ValueError, TypeError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else error
        raise MlperfLogError(
            f"{folder}: system.json or scaling.json: {why}; wanted nodes, accelerators and a factor"
        ) from error
    return System(
        name=f"{folder.parent.name}/{folder.name}",
        benchmark=logs[0].parent.name,
        accelerator=accelerator,
        gpus=gpus,
        global_batch_size=batch,
        sequence_length=length,
        scaling=factor,
        runs=tuple(run for run, _, _ in parsed),
    )


def _json(path: Path) -> dict[str, Any]:
    content = json_in(path, MlperfLogError)
    if not isinstance(content, dict):
        raise MlperfLogError(f"{path}: cannot be read as a JSON object (got a {type(content).__name__})")
    return content


def results_of(paths: Sequence[Path]) -> tuple[list[tuple[Path, dict[str, Any]]], list[tuple[Path, str]]]:
    """Return the results of all MLPerf logs below the folders among `paths`, and unusable logs with their errors."""
    results: list[tuple[Path, dict[str, Any]]] = []
    unreadable = []
    described: list[Path] = []
    for path in filter(Path.is_dir, paths):
        described += files_below(path, DESCRIPTION)[0]
    for folder in sorted(path.parent for path in distinct(described)):
        try:
            of_system = list(benchmarks(folder))
        except MlperfLogError as error:
            of_system = []
            unreadable.append((folder, str(error)))
        for logs in of_system:
            try:
                of_logs = system(folder, logs)
                results += [(run.path, result(of_logs, run, number)) for number, run in enumerate(of_logs.runs, 1)]
            except (MlperfLogError, store.ResultError) as error:
                unreadable.append((logs[0].parent, str(error)))
    return results, unreadable


def result(system: System, run: MlperfRun, number: int) -> dict[str, Any]:
    """Return a run of a system as a result; raise MlperfLogError if the log lacks tracked speeds or a known vendor."""
    steps: list[int] = []
    tracked = []
    for speed in run.tracked:
        if speed.step is not None:
            steps.append(speed.step)
            tracked.append(speed)
    if not steps or sorted(set(steps)) != steps:
        raise MlperfLogError(
            f"{run.path}: got {len(run.tracked)} tracked speeds, wanted some with rising numbers of samples"
        )
    vendor = system.accelerator.split()[0].lower()
    if vendor not in VENDORS:
        raise MlperfLogError(f"{run.path}: accelerator {quoted(system.accelerator)}, wanted one of AMD or NVIDIA")
    times = [system.global_batch_size / speed.samples_per_second for speed in tracked]
    model, size = BENCHMARKS.get(system.benchmark, (system.benchmark, UNKNOWN))
    last = max(steps[-1], run.samples // system.global_batch_size)
    config: dict[str, Any] = {
        "max_steps": last,
        "global_batch_size": system.global_batch_size,
        "sequence_length": system.sequence_length,
        "num_gpus": system.gpus,
        "dataset": "C4 of MLPerf" if system.benchmark in BENCHMARKS else None,
    }
    samples: dict[str, Any] = dict.fromkeys(SAMPLES, [None] * len(steps))
    samples |= {"steps": steps, "step_times": times, "loss_values": [speed.loss for speed in tracked]}
    # the samples must say of each step why it has no time
    others = sorted(set(range(1, last + 1)).difference(steps))
    excluded = {str(step): "tracked in the mean of several steps only" for step in others}
    content = {
        "schema_version": SCHEMA_VERSION,
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
        "identity_sha256": hashlib.sha256(content_of(run.path)).hexdigest(),
        "gpu_info": _section("gpu_info", {"device_name": system.accelerator, "device_count": system.gpus}),
        "training_config": _section("training_config", config),
        # it ends at its target
        "resolved_config": _section("resolved_config", config | {"max_steps": None}),
        "performance_metrics": filled(
            "performance_metrics",
            summarize(times, system.global_batch_size * system.sequence_length, system.gpus),
            "an MLPerf log does not tell how long it waits for samples",
        ),
        "excluded_steps": excluded,
        "provenance": _section("provenance", {"host": system.name}),
        "memory_metrics": _section("memory_metrics", {}),
        "energy_metrics": _section("energy_metrics", {}),
        "fingerprint": _section("fingerprint", {}),
        **samples,
    }
    store.validate(content, str(run.path))
    return content
