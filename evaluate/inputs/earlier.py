"""Results of earlier formats of this kind of suite, converted to our schema.

The files are `benchmark_<platform>_<model>.json`, also with a time after the model
(`benchmark_cuda_llama_20250101_120000.json`). They hold the sections gpu_info, training_config, performance_metrics
and memory_metrics, and the list raw_step_times. The speed is computed again from the raw step times; the summary in
the file is kept under `earlier` and checked against them. Everything that such a file cannot prove (data, model,
settings that ran, versions) is null with NOT_THERE as the reason.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from evaluate.inputs import discover, earlier_names as names
from utils.errors import quoted
from utils.input_files import InputFileError, content_of, parse_json
from utils.results import schema, store
from utils.results.performance import summarize, warmup_steps
from utils.results.schema import KNOWN_FROM_A_LOG, SAMPLES
from utils.results.store import SUMMARY_ROUNDING

NOT_THERE = "not in the earlier format"
PATTERN = "benchmark_*.json"
_NAME = re.compile(r"benchmark_(?P<platform>[a-z]+)_(?P<model>.+?)(?P<time>_\d{8}[_-]?\d{6})?(?:_run(?P<run>\d+))?")
SUMMARY_RELATIVE = 0.005
"""Tolerance for earlier summaries: they are rounded (by SUMMARY_ROUNDING seconds too), and exclude between none and a
fifth of the steps as warm-up, so one of these means must match."""
CORE_RATIO = re.compile(r"per_(gpu_)?core|per_cuda_core|per_stream_processor")

Content = Mapping[str, Any]
_section = partial(names.filled, reason=NOT_THERE)


def is_named(path: Path) -> bool:
    """Return whether a file has the name of an earlier result."""
    return path.match(PATTERN)


def read(path: Path) -> dict[str, Any]:
    """Return the result in `path`; raise ResultError, in one line, for a file of no earlier format."""
    try:
        data = content_of(path)
        content = parse_json(data, nan_is_null=True)
    except InputFileError as error:
        raise store.ResultError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(times := names.first(content, names.TIMES), list):
        raise store.ResultError(f"{path}: got no list raw_step_times, wanted an earlier format or a train_*.json")
    result = _result(path, content, times, hashlib.sha256(data).hexdigest())
    store.validate(result, str(path))
    return result


def number_runs(found: Sequence[tuple[Path, dict[str, Any]]]) -> None:
    """Number the runs of equal jobs that have no number, in place and in the order of their paths.

    Two copies of a file under different names are one run.
    """
    runs: dict[tuple[Any, ...], dict[str, int]] = {}
    for path, result in found:
        job = (path.parent, *(result[key] for key in ("platform", "framework", "model", "label")))
        known = runs.setdefault(job, {})
        if result["run"] == 0:
            result["run"] = known.setdefault(result["identity_sha256"], len(known) + 1)


def summary_agrees(result: Mapping[str, Any]) -> list[str]:
    """Return a line for each figure of an earlier summary that does not follow from its raw step times."""
    earlier = result.get("earlier")
    stored = earlier.get("performance_metrics") if isinstance(earlier, dict) else None
    times, config = result["step_times"], result["training_config"]
    if not isinstance(stored, dict) or not stored or not times or min(times) <= 0:
        return []
    tokens = config["global_batch_size"] * config["sequence_length"]
    means = [
        sum(times[skipped:]) / (len(times) - skipped) for skipped in range(max(1, min(len(times), len(times) // 5 + 2)))
    ]
    figures = {
        "avg_step_time_seconds": means,
        "steps_per_second": [1 / mean for mean in means],
        "tokens_per_second": [tokens / mean for mean in means],
        "tokens_per_second_per_gpu": [tokens / mean / config["num_gpus"] for mean in means],
    }
    allowed = SUMMARY_RELATIVE + SUMMARY_ROUNDING / min(means)
    claimed = {key: names.first(stored, names.SUMMARY[key]) for key in figures}
    return [
        f"{key}: the summary says {claimed[key]:g}, raw_step_times give {possible[0]:g} to {possible[-1]:g}"
        for key, possible in figures.items()
        if names.is_number(claimed[key]) and not any(abs(claimed[key] - one) <= allowed * one for one in possible)
    ]


def _result(path: Path, content: Content, times: list[Any], digest: str) -> dict[str, Any]:
    named = _NAME.fullmatch(path.stem)
    config = _training_config(path, content)
    result: dict[str, Any] = {
        "schema_version": schema.SCHEMA_VERSION,
        "source": "earlier",
        "status": "ok" if times else "failed",
        "reason": None if times else "raw_step_times is empty: nothing was measured",
        "platform": _platform(path, content, named["platform"] if named else None),
        "framework": names.framework(content.get("framework")),
        "model": names.model(content.get("model", content.get("model_name")), named["model"] if named else None),
        "model_size": names.UNKNOWN,
        "method": names.UNKNOWN,
        "label": "",
        "run": int(named["run"]) if named and named["run"] else 0,
        "attempt": 1,
        "identity_sha256": digest,
        "gpu_info": _section("gpu_info", names.picked(content.get("gpu_info"), names.GPU_INFO, "gpu_info")),
        "training_config": config,
        "resolved_config": _section("resolved_config", {}),
        "memory_metrics": _memory(content),
        "energy_metrics": _section("energy_metrics", {}),
        "fingerprint": _section("fingerprint", {}),
        "provenance": _section("provenance", {"host": names.text(content.get("hostname", content.get("host")))}),
        "earlier": {"file": path.name, "timestamp": content.get("timestamp"), "performance_metrics": _summary(content)},
    }
    result |= _samples(path, content, times, config["max_steps"])
    if not config["max_steps"]:
        config["max_steps"] = len(times) or None
    return result | {"performance_metrics": _performance(result), "warnings": _warnings(content)}


def _training_config(path: Path, content: Content) -> dict[str, Any]:
    given = content.get("training_config")
    if not isinstance(given, dict):
        raise store.ResultError(f"{path}: got no section training_config, wanted the sizes of the batch and the job")
    nested = given.get("parallelism", {})
    known = names.picked({**(nested if isinstance(nested, dict) else {}), **given}, names.CONFIG, "training_config")
    if not known.get("num_gpus"):
        known["num_gpus"] = names.picked(content.get("gpu_info"), names.GPU_INFO, "gpu_info").get("device_count")
    for key in KNOWN_FROM_A_LOG:
        if not known.get(key) or known[key] <= 0:
            raise store.ResultError(
                f"{path}: training_config.{key}: got {quoted(known.get(key))}, wanted a number above 0; without it "
                "there is no throughput"
            )
    known["precision"] = names.precision(known.get("precision"))
    return _section("training_config", known)


def _platform(path: Path, content: Content, named: str | None) -> str:
    """Return the platform on which file and name agree; there is no default. Raises ResultError otherwise."""
    gpu_info = content.get("gpu_info") or {}
    stated = [content.get("platform"), gpu_info.get("software_stack") if isinstance(gpu_info, dict) else None, named]
    known = {
        names.PLATFORMS[text.lower()] for text in stated if isinstance(text, str) and text.lower() in names.PLATFORMS
    }
    if len(known) != 1:
        got = ", ".join(map(quoted, stated))
        raise store.ResultError(
            f"{path}: platform: got {got} (file, software stack, name), wanted one of {', '.join(names.PLATFORMS)}"
        )
    return known.pop()


def _samples(path: Path, content: Content, times: list[Any], max_steps: int | None) -> dict[str, Any]:
    """Return steps and samples. If one time is missing, it is that of the first step, which these suites left out."""
    first = 2 if max_steps == len(times) + 1 else 1
    samples: dict[str, Any] = {"steps": list(range(first, first + len(times))), "step_times": times}
    for key, alternatives in names.SAMPLES.items():
        values = names.first(content, alternatives)
        if isinstance(values, list) and len(values) == len(times) + first - 1:
            samples[key] = values[first - 1 :]
        elif isinstance(values, list) and values and len(values) != len(times):
            raise store.ResultError(f"{path}: {key}: got {len(values)} values beside {len(times)} step times")
        else:
            samples[key] = values or [None] * len(times)
    excluded = {"1": f"{NOT_THERE}: the first step has no time"} if first == 2 else {}
    return {key: samples[key] for key in SAMPLES} | {"excluded_steps": excluded}


def _performance(result: dict[str, Any]) -> dict[str, Any]:
    times, config = result["step_times"], result["training_config"]
    tokens = config["global_batch_size"] * config["sequence_length"]
    summary: dict[str, Any] = {}
    if times and all(map(names.is_number, times)) and sum(times[warmup_steps(len(times)) :]) > 0:
        summary = dict(summarize(times, tokens, config["num_gpus"]))
    summary["warmup_steps_excluded"] = warmup_steps(len(times)) if times else None
    stored = result["earlier"]["performance_metrics"]
    claims = {key: stored[key] for key in (*names.MFU_CLAIMS, *names.TFLOPS_CLAIMS) if names.is_number(stored.get(key))}
    return _section("performance_metrics", summary) | claims


def _memory(content: Content) -> dict[str, Any]:
    known = names.picked(content.get("memory_metrics"), names.MEMORY, "memory_metrics")
    source = "memory_metrics of the earlier format, which does not say what was read" if known else None
    return _section("memory_metrics", known | {"source": source})


def _summary(content: Content) -> dict[str, Any]:
    given = content.get("performance_metrics")
    return {key: value for key, value in given.items() if names.is_number(value)} if isinstance(given, dict) else {}


def _warnings(content: Content) -> list[str]:
    left_out = ", ".join(key for key in _summary(content) if CORE_RATIO.search(key))
    cores = [f"{left_out}: left out; cores of different vendors are different things"] if left_out else []
    return ["an earlier format: it proves neither data nor model nor the settings that ran", *cores]


# Results that `evaluate.extract --output NAME.json` made from a log, found under any name.

_MARK = re.compile(rb'^ "source": ?"log",?$', re.MULTILINE)
"""The line that evaluate/inputs/from_log.py has written; in all results it comes before the samples."""
_SEARCHED_BYTES = 1 << 16
"""Enough for what comes before: large files of other kinds are not read whole."""


def find_extracted(folders: Iterable[Path]) -> list[Path]:
    """Return the results of logs below the folders that are not named as results are, sorted."""
    return [
        path
        for path in discover.find(folders, "*.json")
        if not path.match(discover.PATTERN) and not is_named(path) and _is_extracted(path)
    ]


def _is_extracted(path: Path) -> bool:
    with suppress(OSError):  # a file that may not be read and has no name of ours is none of ours
        if path.is_file():
            with path.open("rb") as file:
                return _MARK.search(file.read(_SEARCHED_BYTES)) is not None
    return False
