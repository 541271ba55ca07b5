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
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluate.inputs import sections
from utils.results import store
from utils.results.performance import summarize
from utils.results.schema import SAMPLES, SCHEMA_VERSION

DISCLAIMER = "Computed here from published logs; not verified by MLCommons Association."
MARK = ":::MLLOG "
MINUTE_MS = 60_000.0
TRACKED_RELATIVE = 0.05
"""Largest difference of tracked speed and time of the blocks: a block also contains pauses between steps."""
NOT_IN_LOG = "an MLPerf log does not say it"
OF_SEVERAL = "tracked in the mean of several steps only"
NO_DATA_WAIT = "an MLPerf log does not tell how long it waits for samples"
BENCHMARKS = {"llama31_8b": ("llama", "full")}
VENDORS = {"amd": "amd", "nvidia": "nvd"}


class MlperfLogError(ValueError):
    """A log or system description is unusable; the message names the file."""


@dataclass(frozen=True)
class TrackedSpeed:
    """A speed that a run tracked: the mean over the steps since the speed before."""

    step: int | None
    """The last of those steps; None for the mean of a whole block, and if the log does not contain it."""
    samples_per_second: float
    loss: float | None


@dataclass(frozen=True)
class MlperfRun:
    """One run of a system."""

    minutes: float
    """Minutes from run_start to run_stop."""
    samples: int
    block_seconds: float
    """Time inside training blocks."""
    samples_per_second: float
    """Median of the tracked speeds; samples / block_seconds if the run tracked none."""
    path: Path
    tracked: tuple[TrackedSpeed, ...] = ()


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
        values = sorted(run.minutes for run in self.runs)
        kept = values[1:-1] if len(values) > 2 else values
        return statistics.fmean(kept) * self.scaling

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
        rates = [self.tokens_per_second_per_gpu(run) for run in self.runs]
        return statistics.stdev(rates) / statistics.fmean(rates) if len(rates) > 1 else 0.0


def load(folder: Path) -> list[System]:
    """Return every system below `folder`, by name; raise MlperfLogError for an unreadable or inconsistent log."""
    found = [
        system(path.parent, logs) for path in sorted(folder.rglob("system.json")) for logs in benchmarks(path.parent)
    ]
    if not found:
        raise MlperfLogError(f"{folder}: got no system.json with result_*.txt below it, wanted MLPerf Training results")
    return found


def benchmarks(system: Path) -> Iterator[list[Path]]:
    """Yield the logs of each benchmark in the folder of a system."""
    for folder in sorted(path for path in system.iterdir() if path.is_dir()):
        if logs := sorted(folder.glob("result_*.txt")):
            yield logs


def system(folder: Path, logs: list[Path]) -> System:
    """Return the system of a folder with its logs of one benchmark; raise MlperfLogError as `load` does."""
    description = _json(folder / "system.json")
    scaling = logs[0].parent / "scaling.json"
    parsed = [_run(path) for path in logs]
    constants = {(batch, length) for _, batch, length in parsed}
    if len(constants) != 1:
        raise MlperfLogError(f"{logs[0].parent}: its runs differ in batch or sequence length: {sorted(constants)}")
    ((batch, length),) = constants
    try:
        gpus = int(description["number_of_nodes"]) * int(description["accelerators_per_node"])
        accelerator = str(description["accelerator_model_name"])
        factor = float(_json(scaling)["scaling_factor"]) if scaling.is_file() else 1.0
    except (KeyError, ValueError, TypeError) as error:
        raise MlperfLogError(
            f"{folder}: system.json or scaling.json: {error!r}; wanted nodes, accelerators and a factor"
        ) from error
    runs = tuple(run for run, _, _ in parsed)
    name, benchmark = f"{folder.parent.name}/{folder.name}", logs[0].parent.name
    return System(name, benchmark, accelerator, gpus, batch, length, factor, runs)


def _run(path: Path) -> tuple[MlperfRun, int, int]:
    """Return a run, its global batch and its sequence length."""
    events = list(_events(path))
    first = {event["key"]: event for event in reversed(events)}
    try:
        start, stop = first["run_start"]["time_ms"], first["run_stop"]
        batch, length = int(first["global_batch_size"]["value"]), int(first["max_sequence_length"]["value"])
        status, samples = stop["metadata"]["status"], int(stop["metadata"]["samples_count"] or 0)
        block_ms, opened = 0.0, None
        for event in events:
            if event["key"] == "block_start":
                opened = event["time_ms"]
            elif event["key"] == "block_stop" and opened is not None:
                block_ms, opened = block_ms + event["time_ms"] - opened, None
        tracked = tuple(_tracked(events, batch))
    except (KeyError, ValueError, TypeError, ZeroDivisionError) as error:
        raise MlperfLogError(
            f"{path}: has no complete run ({error!r}); wanted run_start, run_stop, batch and blocks"
        ) from error
    if status != "success" or samples <= 0 or block_ms <= 0 or stop["time_ms"] <= start:
        raise MlperfLogError(f"{path}: the run is no success with samples and time: status {status}, {samples} samples")
    in_blocks = samples / block_ms * 1000
    rate = statistics.median(one.samples_per_second for one in tracked) if tracked else in_blocks
    if abs(rate / in_blocks - 1) > TRACKED_RELATIVE:
        raise MlperfLogError(
            f"{path}: it tracked {rate:.4g} samples/s, and its blocks hold {in_blocks:.4g}; one is wrong"
        )
    run = MlperfRun((stop["time_ms"] - start) / MINUTE_MS, samples, block_ms / 1000, rate, path, tracked)
    return run, batch, length


def _tracked(events: Sequence[dict[str, Any]], batch: int) -> Iterator[TrackedSpeed]:
    """Yield the speeds that a run tracked: samples/s of a block, or the time of a step of `batch` samples.

    The log gives their positions in samples: `step` beside a throughput, `samples_count` (and a `step`) beside a step
    time.
    """
    for event in events:
        value = event["value"] if event["key"] == "tracked_stats" else None
        if isinstance(value, dict) and {"throughput", "train_step_time"} & value.keys():
            is_block = "throughput" in value
            rate = float(value["throughput"]) if is_block else batch / float(value["train_step_time"])
            step = event["metadata"].get("step")
            done = step if step is None or is_block else event["metadata"].get("samples_count")
            yield TrackedSpeed(None if done is None else round(done / batch), rate, value.get("reduced_train_loss"))


def _events(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            _, mark, text = line.partition(MARK)
            if mark:
                try:
                    yield json.loads(text)
                except ValueError as error:
                    raise MlperfLogError(f"{path}:{number}: no JSON behind {MARK.strip()} ({error})") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf8")))
    except (OSError, ValueError, TypeError) as error:
        raise MlperfLogError(f"{path}: cannot be read as a JSON object ({error})") from error


def results_of(paths: Sequence[Path]) -> tuple[list[tuple[Path, dict[str, Any]]], list[tuple[Path, str]]]:
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
