"""MLPerf Training logs: minutes to the quality target and tokens/s/GPU of each system, and verdicts between systems.

    python -m evaluate.mlperf FOLDER [--band 0.03] [--output mlperf.json]

FOLDER holds results as MLCommons publishes them: `<submitter>/<system>/{system.json,<benchmark>/result_<n>.txt}` with
`:::MLLOG` lines, and a scaling.json where the reference convergence points ask for one. What is computed here is not
verified by MLCommons, and every output says so.

Minutes are the Olympic mean over the runs (fastest and slowest left out, each once) of run_stop - run_start, times the
scaling factor (training_policies, training_rules.adoc). Throughput is of training alone: all samples times the sequence
length over the time inside blocks, evaluation left out. Precision and batch are free in MLPerf, so a verdict is between
systems, and says their batch sizes.
Exits 0; 1 when a log cannot be believed, 2 for bad input.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics as descriptive
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluate import statistics
from evaluate.tables import plain, text_table

MARK = ":::MLLOG "
DISCLAIMER = "Computed here from published logs; not verified by MLCommons Association."
MINUTE_MS = 60_000.0


class LogError(ValueError):
    """A log or system description that cannot be used; the message names the file."""


@dataclass(frozen=True)
class LogRun:
    """One run of a system."""

    minutes: float
    """From run_start to run_stop."""
    samples: int
    block_seconds: float
    """Time inside training blocks."""


@dataclass(frozen=True)
class System:
    """All runs of one system."""

    name: str
    accelerator: str
    gpus: int
    global_batch_size: int
    sequence_length: int
    scaling: float
    runs: tuple[LogRun, ...]

    @property
    def minutes(self) -> float:
        """Olympic mean of the runs times the scaling factor."""
        values = sorted(run.minutes for run in self.runs)
        kept = values[1:-1] if len(values) > 2 else values
        return descriptive.fmean(kept) * self.scaling

    def tokens_per_second_per_gpu(self, run: LogRun) -> float:
        """Return the training throughput of a run."""
        return run.samples * self.sequence_length / run.block_seconds / self.gpus

    @property
    def throughput(self) -> float:
        """Mean over the runs."""
        return descriptive.fmean(map(self.tokens_per_second_per_gpu, self.runs))


def load(folder: Path) -> list[System]:
    """Return every system below `folder`, by name; raise LogError for what cannot be read or believed."""
    found = [
        _system(path.parent, logs) for path in sorted(folder.rglob("system.json")) for logs in _benchmarks(path.parent)
    ]
    if not found:
        raise LogError(f"{folder}: got no system.json with result_*.txt below it, wanted MLPerf Training results")
    return found


def verdicts(systems: Sequence[System], band: float = statistics.BAND) -> list[dict[str, Any]]:
    """Return the verdict of each accelerator against the first, on tokens/s/GPU; its systems are its machines."""
    sides: dict[str, list[System]] = {}
    for system in systems:
        sides.setdefault(system.accelerator, []).append(system)
    (base_name, base), *others = sides.items()
    estimates = [(name, side, statistics.estimate(_runs(base), _runs(side))) for name, side in others]
    adjusted = statistics.holm([found.p_value for _, _, found in estimates])
    entries = []
    for (name, side, found), p_value in zip(estimates, adjusted, strict=True):
        verdict = statistics.judge(found, p_value, band)
        batches = [", ".join(sorted({str(s.global_batch_size) for s in group})) for group in (base, side)]
        entries.append(
            {
                "a": base_name,
                "b": name,
                "verdict": verdict.word,
                "ratio": found.ratio,
                "interval": [found.low, found.high],
                "runs": list(found.runs),
                "machines": list(found.machines),
                "scope": found.scope,
                "reasons": [
                    *([verdict.reason] if verdict.reason else []),
                    f"global batch {batches[0]} against {batches[1]}, precision free: each submitter's best, "
                    "not equal settings",
                ],
            }
        )
    return entries


def _benchmarks(system: Path) -> Iterator[list[Path]]:
    for folder in sorted(path for path in system.iterdir() if path.is_dir()):
        if logs := sorted(folder.glob("result_*.txt")):
            yield logs


def _system(folder: Path, logs: list[Path]) -> System:
    description = _json(folder / "system.json")
    scaling = logs[0].parent / "scaling.json"
    parsed = [_run(path) for path in logs]
    constants = {(batch, length) for _, batch, length in parsed}
    if len(constants) != 1:
        raise LogError(f"{logs[0].parent}: its runs differ in batch or sequence length: {sorted(constants)}")
    ((batch, length),) = constants
    try:
        gpus = int(description["number_of_nodes"]) * int(description["accelerators_per_node"])
        accelerator = str(description["accelerator_model_name"])
        factor = float(_json(scaling)["scaling_factor"]) if scaling.is_file() else 1.0
    except (KeyError, ValueError, TypeError) as error:
        raise LogError(
            f"{folder}: system.json or scaling.json: {error!r}; wanted nodes, accelerators and a factor"
        ) from error
    runs = tuple(run for run, _, _ in parsed)
    return System(f"{folder.parent.name}/{folder.name}", accelerator, gpus, batch, length, factor, runs)


def _run(path: Path) -> tuple[LogRun, int, int]:
    """Return a run, its global batch and its sequence length."""
    events = list(_events(path))
    first = {event["key"]: event for event in reversed(events)}
    try:
        start, stop = first["run_start"]["time_ms"], first["run_stop"]
        batch, length = int(first["global_batch_size"]["value"]), int(first["max_sequence_length"]["value"])
        status, samples = stop["metadata"]["status"], int(stop["metadata"]["samples_count"])
        block_ms, opened = 0.0, None
        for event in events:
            if event["key"] == "block_start":
                opened = event["time_ms"]
            elif event["key"] == "block_stop" and opened is not None:
                block_ms, opened = block_ms + event["time_ms"] - opened, None
    except (KeyError, ValueError, TypeError) as error:
        raise LogError(
            f"{path}: has no complete run ({error!r}); wanted run_start, run_stop, batch and blocks"
        ) from error
    if status != "success" or samples <= 0 or block_ms <= 0 or stop["time_ms"] <= start:
        raise LogError(f"{path}: the run is no success with samples and time: status {status}, {samples} samples")
    return LogRun((stop["time_ms"] - start) / MINUTE_MS, samples, block_ms / 1000), batch, length


def _events(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            _, mark, text = line.partition(MARK)
            if mark:
                try:
                    yield json.loads(text)
                except ValueError as error:
                    raise LogError(f"{path}:{number}: no JSON behind {MARK.strip()} ({error})") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf8")))
    except (OSError, ValueError, TypeError) as error:
        raise LogError(f"{path}: cannot be read as a JSON object ({error})") from error


def _runs(side: Sequence[System]) -> list[statistics.Run]:
    return [
        statistics.Run(system.name, math.log(system.tokens_per_second_per_gpu(run)))
        for system in side
        for run in system.runs
    ]


def _rows(systems: Sequence[System]) -> Iterator[tuple[str, ...]]:
    for system in systems:
        rates = [system.tokens_per_second_per_gpu(run) for run in system.runs]
        spread = descriptive.stdev(rates) / system.throughput if len(rates) > 1 else 0.0
        yield (
            system.name,
            f"{system.gpus} x {system.accelerator}",
            str(system.global_batch_size),
            str(len(system.runs)),
            f"{system.minutes:.2f}",
            f"{system.throughput:,.0f}",
            f"{spread:.2%}",
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m evaluate.mlperf", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="results as MLCommons publishes them")
    parser.add_argument("--band", type=float, default=statistics.BAND, help="difference that does not matter")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    try:
        systems = load(options.folder)
    except LogError as error:
        print(f"error: {plain(error)}", file=sys.stderr)
        return 1 if options.folder.is_dir() else 2
    header = ("system", "accelerators", "GBS", "runs", "minutes", "tokens/s/GPU", "between runs")
    print(text_table(header, list(_rows(systems)), 160))
    found = verdicts(systems, options.band)
    for entry in found:
        low, high = entry["interval"]
        interval = f"{entry['ratio']:.2f}x ({low:.2f} to {high:.2f})"
        reasons = "; ".join(entry["reasons"])
        said = (
            f"{entry['b']} against {entry['a']}: {entry['verdict']}, {interval}, holds for {entry['scope']}; {reasons}"
        )
        print(plain(said))
    print(DISCLAIMER)
    if options.output:
        content = {"disclaimer": DISCLAIMER, "verdicts": found, "systems": [_as_json(system) for system in systems]}
        options.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")
    return 0


def _as_json(system: System) -> dict[str, Any]:
    runs = [vars(run) | {"tokens_per_second_per_gpu": system.tokens_per_second_per_gpu(run)} for run in system.runs]
    known = {key: getattr(system, key) for key in ("name", "accelerator", "gpus", "global_batch_size", "scaling")}
    return known | {"minutes": system.minutes, "tokens_per_second_per_gpu": system.throughput, "runs": runs}


if __name__ == "__main__":
    sys.exit(main())
