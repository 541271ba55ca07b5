"""Synthetic results with known speed, machine and loss, and what the commands of `evaluate` make of them."""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from evaluate import compare, validate
from tests.support.example import example_result, put
from utils.models import NAMES, SIZES, get
from utils.results import performance, schema
from utils.results.performance import RunsRule

Result = dict[str, Any]
Change = Callable[[Result], Any]
"""What a test does to a result; tests/support/changes.py has those that several tests use."""
STEPS = 100
SETTINGS = ("training_config", "resolved_config")
SAMPLES, SECTIONS = schema.SAMPLES, schema.SECTIONS
DEVICES = {
    "nvd": {"device_name": "NVIDIA H100 80GB HBM3", "total_memory_gb": 85.0, "gpu_cores": 16896},
    "amd": {"device_name": "AMD Instinct MI300X", "total_memory_gb": 206.0, "gpu_cores": 19456},
}
STACKS = {"nvd": "cuda", "amd": "rocm"}
EIGHT_GPUS = {"max_steps": STEPS, "num_gpus": 8, "global_batch_size": 64, "micro_batch_size": 1, "dp": 8}
FIRST_START = datetime(2026, 11, 21, tzinfo=timezone.utc)
START_UP_SECONDS = 20


def run(
    platform: str = "nvd", number: int = 1, seconds: float = 1.0, host: str | None = None, **changes: Any
) -> Result:
    """Return an ok result: `seconds` a step with 0.2 % of noise, losses from 8 to 3; `section__key` is replaced.

    Its evidence agrees with itself after the changes: start and end with the step times (the runs of a side follow one
    another), learning rates with the schedule, the shape with the name of the model, memory with the weights.
    """
    random = np.random.default_rng([number, sum(map(ord, platform)), round(1e6 * seconds)])
    result = example_result(platform=platform, run=number)
    put(result, both(**EIGHT_GPUS, precision="bf16"))
    result["gpu_info"] |= DEVICES[platform] | {"device_count": 8, "software_stack": STACKS[platform]}
    result["provenance"]["host"] = host or f"{platform}-1"
    result["steps"] = list(range(1, STEPS + 1))
    effect = 1 + random.normal(0, 0.002)
    result["step_times"] = [round(float(seconds * effect * (1 + random.normal(0, 0.002))), 6) for _ in range(STEPS)]
    result["loss_values"] = [float(3 + 5 * 0.95**step + 1e-4 * random.normal()) for step in range(STEPS)]
    result["loss_values"][0] = 8.0
    result["grad_norms"] = [float(1 + 2 * 0.95**step + 0.01 * random.uniform()) for step in range(STEPS)]
    result["data_wait_seconds"] = [0.0] * STEPS
    make_consistent(put(result, changes), changes)
    return result


def runs(platform: str, seconds: float, count: int = 3, first: int = 1, **changes: Any) -> list[Result]:
    """Return runs of one side; no two have equal samples, losses or numbers."""
    found = [run(platform, number, seconds, **changes) for number in range(first, first + count)]
    for result in found:
        result["loss_values"] = [loss and loss * (1 + 1e-5 * result["run"]) for loss in result["loss_values"]]
    return found


def failed_early(status: str = "oom", reason: str = "out of memory | at step 1", **changes: Any) -> Result:
    """Return the result of a run that failed before it recorded its data, device and host."""
    nothing = {"reasons": {"*": "the run ended before"}}
    unknown = SECTIONS.keys() - {"training_config", "energy_metrics", "conditions"}
    empty = {name: nothing | dict.fromkeys(SECTIONS[name]) for name in unknown}
    return example_result(status=status, reason=reason, **dict.fromkeys(SAMPLES, []) | empty | changes)


def both(**settings: Any) -> dict[str, Any]:
    """Return changes of settings that were requested and ran."""
    return {f"{section}__{key}": value for section in SETTINGS for key, value in settings.items()}


def gpus(count: int) -> dict[str, Any]:
    """Return changes to a training of the same batch on so many GPUs."""
    return both(num_gpus=count, dp=count, gradient_accumulation=64 // count)


def conditions(reason: str = "not looked for", **known: Any) -> dict[str, Any]:
    """Return a section of conditions in which all others are unknown."""
    values = dict.fromkeys(schema.OPTIONAL_SECTIONS["conditions"]) | known
    return values | {"reasons": {key: reason for key, value in values.items() if value is None}}


def summarise(result: Result) -> None:
    """Set the summary that follows from the step times and the settings."""
    config = result["training_config"]
    tokens = config["global_batch_size"] * config["sequence_length"]
    result["performance_metrics"] |= performance.summarize(result["step_times"], tokens, config["num_gpus"])


def make_consistent(result: Result, changes: Collection[str] = ()) -> None:
    """Set what follows from the other values of a result, except the `changes` that a test has made."""
    config = result["training_config"]
    summarise(result)
    if "performance_metrics__loop_seconds" not in changes:
        result["performance_metrics"]["loop_seconds"] = round(1.001 * sum(result["step_times"]), 3)
    if "gpu_info__device_count" not in changes:
        result["gpu_info"]["device_count"] = config["num_gpus"]
    if "learning_rates" not in changes:
        result["learning_rates"] = [schedule(step, config) for step in result["steps"]]
    if not {"provenance", "provenance__started_utc", "provenance__finished_utc"} & set(changes):
        job = "".join(result[key] for key in ("framework", "model", "method", "label"))
        days = 0 if job == "megallamaequal" else crc32(job.encode()) % 3000  # each job on a day of its own
        start_at(result, FIRST_START + timedelta(days, hours=6 * (result["run"] - 1)))
    if result["model"] in NAMES and result["model_size"] in SIZES:
        spec = get(result["model"], result["model_size"])
        widths = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups")
        shape = {key: getattr(spec, key) for key in (*widths, "parameter_count", "vocab_size")}
        result["resolved_config"] |= {k: v for k, v in shape.items() if f"resolved_config__{k}" not in changes}
        if "memory_metrics__peak_memory_allocated_gb" not in changes:
            result["memory_metrics"]["peak_memory_allocated_gb"] = max(1.2, 6e-9 * spec.parameter_count)


def start_at(result: Result, started: datetime, start_up: float = START_UP_SECONDS) -> None:
    """Set start and end of a run, so that its steps fit between them."""
    finished = started + timedelta(seconds=start_up + sum(time for time in result["step_times"] if time > 0))
    found = {"started_utc": started, "finished_utc": finished}
    result["provenance"] |= {key: time.isoformat(timespec="seconds") for key, time in found.items()}


def schedule(step: int, config: dict[str, Any]) -> float:
    """Return the learning rate of a step: warm-up over W steps to LR x W / (W + 1), then a cosine to the least rate."""
    peak, least, warm, last = (config[key] for key in ("lr", "min_lr", "warmup_iters", "max_steps"))
    if step <= warm:
        return float(peak * step / (warm + 1))
    return float(least + (peak - least) * (1 + math.cos(math.pi * (step - warm - 1) / (last - warm))) / 2)


def plan(results: Sequence[Any]) -> None:
    """Set RUNS of each result that says nothing of it to the number of runs of its job: none is missing or added."""

    def job(result: Result) -> tuple[Any, ...]:
        keys = ("platform", "framework", "model", "model_size", "method", "label")
        layout = [result["training_config"][key] for key in ("num_gpus", "micro_batch_size", "tp", "precision")]
        return *(result[key] for key in keys), *layout, result["provenance"]["host"], result["gpu_info"]["device_name"]

    whole = [result for result in results if isinstance(result, dict) and "training_config" in result]
    jobs = Counter(map(job, whole))
    for result in whole:
        result.setdefault("repeats", RunsRule.of(jobs[job(result)]).as_dict())


def write(folder: Path, results: Sequence[Result]) -> Path:
    """Write results as they are, without a check, each under a name of its own; return their folder."""
    plan(results)
    folder.mkdir(parents=True, exist_ok=True)
    for number, result in enumerate(results, len(list(folder.glob("train_*.json")))):
        (folder / f"train_{number:03}.json").write_text(json.dumps(result))
    return folder


def validated(folder: Path, results: Sequence[Result]) -> list[tuple[str, str]]:
    """Return verdict and reason of each result as `evaluate.validate` prints them, the reason without white space."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        validate.main([str(write(folder, results))])
    header, _, *lines = printed.getvalue().splitlines()
    number, word, reason = (header.index(name) for name in ("run", "verdict", "reason"))
    rows: list[list[str]] = []
    for line in lines:
        if line[number : number + 1].strip():
            rows.append([line[number], line[word:].split()[0], "", line[6:9]])
        rows[-1][2] += "".join(line[reason:].split())
    unreadable = {int(row[3]): row for row in rows if row[0] == "-"}  # they come last, with the name of their file
    readable = iter(rows)
    found = [unreadable.get(place) or next(readable) for place in range(len(results))]
    return [(row[1], row[2]) for row in found]


def compared(folder: Path, *options: str, code: int | None = None) -> dict[str, Any]:
    """Return the compare.json that `evaluate.compare` makes of a folder; `code` is the wanted exit code, if any."""
    found = compare.main([str(folder), "--format", "json", *options])
    assert code in (None, found), f"exit code {found}"
    return dict(json.loads((folder / "compare.json").read_text()))


def verdicts(folder: Path, results: Sequence[Result], *options: str, code: int | None = None) -> list[dict[str, Any]]:
    """Return the verdicts of `evaluate.compare` on results that it finds in a folder."""
    return list(compared(write(folder, results), *options, code=code)["verdicts"])


def one_verdict(folder: Path, results: Sequence[Result], *options: str, code: int | None = None) -> dict[str, Any]:
    """Return the only verdict on results."""
    (found,) = verdicts(folder, results, *options, code=code)
    return found


def of_pairs(folder: Path, changes: Mapping[str, tuple[Change, Change]], code: int | None = None) -> dict[str, Any]:
    """Return the verdicts on pairs by name, from the change of each side."""
    results = [result for name, (nvd, amd) in changes.items() for result in pair(name, nvd, amd)]
    return {one["model"]: one for one in verdicts(folder, results, code=code)}


def items(verdict: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the certificate of a verdict, by name."""
    return {one["name"]: one for one in verdict["certificate"]}


def is_bold(verdict: dict[str, Any]) -> bool:
    """Return whether a verdict is a claim without a reservation."""
    return verdict["verdict"] in ("faster", "slower") and verdict["is_decided"] and not verdict["unproven"]


def pair(name: str, nvd: Change, amd: Change, count: int = 3, **changes: Any) -> list[Result]:
    """Return the runs of both vendors in a pair that stands in `model` of its verdict; AMD takes 0.8 of the time."""
    found = []
    for platform, seconds, change in (("nvd", 1.0, nvd), ("amd", 0.8, amd)):
        noise = 1e-6 * (crc32(name.encode()) % 9973)  # no two pairs have equal samples
        for result in runs(platform, seconds + noise, count, host=f"{platform}-{name}", **changes):
            result["model"] = name
            change(result)
            found.append(result)
    return found


FIRST_DAY = datetime(2026, 10, 1, 3, tzinfo=timezone.utc)


def day(
    number: int, seconds: float = 1.0, runs: int = 3, noise: float = 0.004, platform: str = "nvd", **changes: Any
) -> list[Result]:
    """Return the runs of day `number` (from 0), an hour apart, which differ by `noise` and days by 0.2 %."""
    series = "".join(str(changes.get(key, "")) for key in ("host", "framework", "label"))
    random = np.random.default_rng([number, round(1e6 * seconds), runs, crc32(f"{platform}{series}".encode())])
    of_day = 1 + random.normal(0, 0.002 if noise else 0.0)
    found = [
        run(platform, place, seconds * (of_day + random.normal(0, noise)), **changes) for place in range(1, runs + 1)
    ]
    for result in found:
        start_at(result, FIRST_DAY + timedelta(days=number, hours=result["run"]))
    return found


def write_days(
    folder: Path, days: int, of_day: Callable[[int], Mapping[str, Any]] = lambda _: {}, **common: Any
) -> list[Path]:
    """Write a folder for each day, with what `of_day` returns as arguments of `day`; return the folders."""
    of_each = [day(number, **{**common, **of_day(number)}) for number in range(days)]
    return [write(folder / f"day{number:02}", results) for number, results in enumerate(of_each)]


H100, H200, MI300X, MI355X = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "AMD Instinct MI300X", "AMD Instinct MI355X"
BOARDS = {
    H100: ("nvd", 85.0, 16896),
    H200: ("nvd", 150.0, 16896),
    MI300X: ("amd", 206.0, 19456),
    MI355X: ("amd", 309.0, 16384),
}


def on(device: str, seconds: float, count: int = 3, **changes: Any) -> list[Result]:
    """Return the runs of one side on a device of BOARDS, on a machine of its own."""
    platform, memory, cores = BOARDS[device]
    board = {"device_name": device, "total_memory_gb": memory, "gpu_cores": cores}
    named = {f"gpu_info__{key}": value for key, value in board.items()}
    found = runs(platform, seconds, count, host=device.lower().replace(" ", "-"), **named | changes)
    for result in found:  # no two devices compute equal losses
        result["loss_values"] = [loss * (1 + 1e-7 * len(device)) for loss in result["loss_values"]]
    return found
