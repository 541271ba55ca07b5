"""Results of suites before this one, `benchmark_<platform>_<model>[_<time>][_run<n>].json`, converted to our schema.

They hold the sections gpu_info, training_config, performance_metrics and memory_metrics, and the list raw_step_times.
The speed is computed again from the raw step times; the summary in the file is kept under `earlier` and checked against
them. Everything that such a file cannot prove (data, model, settings that ran, versions) is null with NOT_THERE as the
reason.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluate.inputs.partly_known import UNKNOWN, filled, is_number, named_in
from utils.errors import quoted
from utils.frameworks import FRAMEWORKS
from utils.input_files import InputFileError, content_of, parse_json
from utils.results import schema, store
from utils.results.performance import summarize, warmup_steps
from utils.results.schema import KNOWN_FROM_A_LOG, SAMPLES, SECTIONS
from utils.results.store import SUMMARY_ROUNDING

NOT_THERE = "not in the earlier format"
PATTERN = "benchmark_*.json"
_NAME = re.compile(r"benchmark_(?P<platform>[a-z]+)_(?P<model>.+?)(?:_\d{8}[_-]?\d{6})?(?:_run(?P<run>\d+))?")
SUMMARY_RELATIVE = 0.005
"""Tolerance of a summary, which is rounded to SUMMARY_ROUNDING seconds too."""
MFU_CLAIMS = ("mfu", "mfu_percent", "model_flops_utilization", "model_flops_utilization_percent")
TFLOPS_CLAIMS = ("tflops_per_gpu", "tflops_per_second_per_gpu", "model_tflops_per_gpu", "achieved_tflops_per_gpu")
"""Keys of a utilisation (as a share or in %) and of model TFLOP/s in `performance_metrics`."""
PLATFORMS = {"cuda": "nvd", "nvidia": "nvd", "nvd": "nvd", "rocm": "amd", "hip": "amd", "amd": "amd", "cpu": "cpu"}
PRECISIONS = {"bfloat16": "bf16", "bf16-mixed": "bf16", "float16": "fp16", "fp16-mixed": "fp16", "float32": "fp32"}
OURS = {
    "train_iters": "max_steps",
    "seq_length": "sequence_length",
    "seq_len": "sequence_length",
    "world_size": "num_gpus",
    "gradient_accumulation_steps": "gradient_accumulation",
    "tensor_parallel_size": "tp",
    "tensor_model_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "data_parallel_size": "dp",
    "learning_rate": "lr",
    "min_learning_rate": "min_lr",
    "warmup_steps": "warmup_iters",
    "cuda_version": "software_version",
    "rocm_version": "software_version",
    "torch_version": "pytorch_version",
    "max_memory_allocated_gb": "peak_memory_allocated_gb",
    "max_memory_reserved_gb": "peak_memory_reserved_gb",
    "raw_loss_values": "loss_values",
    "raw_losses": "loss_values",
    "losses": "loss_values",
    "raw_learning_rates": "learning_rates",
}
"""Our keys of values that have another name there. All other names are ours already."""

Content = Mapping[str, Any]


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
    times = content.get("raw_step_times", content.get("step_times")) if isinstance(content, dict) else None
    if not isinstance(times, list):
        raise store.ResultError(f"{path}: got no list raw_step_times, wanted an earlier format or a train_*.json")
    result = _result(path, content, times, hashlib.sha256(data).hexdigest())
    store.validate(result, str(path))
    return result


def number_runs(results: Sequence[tuple[Path, dict[str, Any]]]) -> None:
    """Number the runs of equal jobs that have no number, in place and in the order of their paths.

    Two copies of a file under different names are one run.
    """
    runs: dict[tuple[Any, ...], dict[str, int]] = {}
    for path, result in results:
        job = (path.parent, *(result[key] for key in ("platform", "framework", "model", "label")))
        numbers = runs.setdefault(job, {})
        if result["run"] == 0:
            # the digest of the file is the same for its copies
            result["run"] = numbers.setdefault(result["identity_sha256"], len(numbers) + 1)


def summary_agrees(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each figure of an earlier summary that does not follow from its raw step times.

    A summary may leave out up to a fifth of the steps as warm-up, and does not say how many it left out.
    """
    earlier = result.get("earlier")
    summary = earlier.get("performance_metrics") if isinstance(earlier, dict) else None
    times, config = result["step_times"], result["training_config"]
    if not isinstance(summary, dict) or not times or min(times) <= 0:
        return
    tokens = config["global_batch_size"] * config["sequence_length"]
    # at least one step remains
    most_skipped = min(len(times) - 1, len(times) // 5 + 1)
    means = [sum(times[skipped:]) / (len(times) - skipped) for skipped in range(most_skipped + 1)]
    allowed = SUMMARY_RELATIVE + SUMMARY_ROUNDING / min(means)
    for key, figures in (
        ("avg_step_time_seconds", means),
        ("steps_per_second", [1 / mean for mean in means]),
        ("tokens_per_second", [tokens / mean for mean in means]),
        ("tokens_per_second_per_gpu", [tokens / mean / config["num_gpus"] for mean in means]),
    ):
        stated = summary.get(key)
        if is_number(stated) and not any(abs(stated - figure) <= allowed * figure for figure in figures):
            span = f"{figures[0]:g} to {figures[-1]:g}"
            yield f"{key}: the summary says {stated:g}, raw_step_times give {span}"


def _result(path: Path, content: Content, times: list[Any], digest: str) -> dict[str, Any]:
    name = _NAME.fullmatch(path.stem)
    config = _training_config(path, content)
    memory = _known("memory_metrics", content.get("memory_metrics"))
    if memory:
        memory["source"] = "memory_metrics of the earlier format, which does not say what was read"
    summary = {}
    if isinstance(content.get("performance_metrics"), dict):
        summary = {key: value for key, value in content["performance_metrics"].items() if is_number(value)}
    samples = _samples(path, content, times, config["max_steps"])
    # a result needs it; these suites wrote every step that they ran
    if not config["max_steps"]:
        config["max_steps"] = len(times) or None
    return {
        "schema_version": schema.SCHEMA_VERSION,
        "source": "earlier",
        "status": "ok" if times else "failed",
        "reason": None if times else "raw_step_times is empty: nothing was measured",
        "platform": _platform(path, content, name["platform"] if name else None),
        "framework": _framework(content),
        "model": _model(content, name["model"] if name else None),
        "model_size": UNKNOWN,
        "method": UNKNOWN,
        "label": "",
        "run": int(name["run"]) if name and name["run"] else 0,
        "attempt": 1,
        "identity_sha256": digest,
        "gpu_info": filled("gpu_info", _known("gpu_info", content.get("gpu_info")), NOT_THERE),
        "training_config": config,
        "resolved_config": filled("resolved_config", {}, NOT_THERE),
        "memory_metrics": filled("memory_metrics", memory, NOT_THERE),
        "energy_metrics": filled("energy_metrics", {}, NOT_THERE),
        "fingerprint": filled("fingerprint", {}, NOT_THERE),
        "provenance": filled("provenance", {"host": _text(content.get("hostname"))}, NOT_THERE),
        "earlier": {"file": path.name, "timestamp": content.get("timestamp"), "performance_metrics": summary},
        "performance_metrics": _performance(times, config, summary),
        "warnings": ["an earlier format: it proves neither data nor model nor the settings that ran"],
        **samples,
    }


def _known(section: str, given: Any) -> dict[str, Any]:
    """Return the values of an earlier section that have our types, by our keys; "N/A" for a number is unknown."""
    known: dict[str, Any] = {}
    if not isinstance(given, dict):
        return known
    for name, value in given.items():
        key = OURS.get(name, str(name))
        kind = SECTIONS[section].get(key)
        # some suites wrote whole numbers as 8.0
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if kind is not None and isinstance(value, kind) and (isinstance(value, str) or is_number(value)):
            known.setdefault(key, value)
    return known


def _training_config(path: Path, content: Content) -> dict[str, Any]:
    given = content.get("training_config")
    if not isinstance(given, dict):
        raise store.ResultError(f"{path}: got no section training_config, wanted the sizes of the batch and the job")
    known = _known("training_config", given)
    # a suite that used all GPUs did not say how many
    if not known.get("num_gpus"):
        known["num_gpus"] = _known("gpu_info", content.get("gpu_info")).get("device_count")
    for key in KNOWN_FROM_A_LOG:
        if not known.get(key) or known[key] <= 0:
            raise store.ResultError(
                f"{path}: training_config.{key}: got {quoted(known.get(key))}, wanted a number above 0; without it "
                "there is no throughput"
            )
    precision = _text(known.get("precision") or given.get("dtype"))
    if precision:
        known["precision"] = PRECISIONS.get(precision.lower(), precision.lower())
    return filled("training_config", known, NOT_THERE)


def _platform(path: Path, content: Content, named: str | None) -> str:
    """Return the platform on which file and name agree; there is no default. Raises ResultError otherwise."""
    gpu_info = content.get("gpu_info")
    stack = gpu_info.get("software_stack") if isinstance(gpu_info, dict) else None
    stated = [content.get("platform"), stack, named]
    platforms = {PLATFORMS.get(text.lower()) for text in stated if isinstance(text, str)} - {None}
    if len(platforms) != 1:
        got = ", ".join(map(quoted, stated))
        raise store.ResultError(
            f"{path}: platform: got {got} (file, software stack, name), wanted one of {', '.join(PLATFORMS)}"
        )
    return str(platforms.pop())


def _framework(content: Content) -> str:
    """Return our name of the framework in the file; the name itself if it is none of ours."""
    name = _text(content.get("framework")) or UNKNOWN
    for framework in FRAMEWORKS.values():
        if name.lower() in (framework.name, *framework.other_names):
            return framework.name
    return name


def _model(content: Content, named: str | None) -> str:
    """Return our name of the model in the file or the file name; the name itself if it is none of our models."""
    name = _text(content.get("model", content.get("model_name"))) or named or UNKNOWN
    ours = named_in(name)
    return ours[0] if len(ours) == 1 else name


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _samples(path: Path, content: Content, times: list[Any], max_steps: int | None) -> dict[str, Any]:
    """Return steps and samples. If one time is missing, it is that of the first step, which these suites left out."""
    # one time is missing
    first = 2 if max_steps == len(times) + 1 else 1
    samples: dict[str, Any] = {key: [None] * len(times) for key in SAMPLES}
    samples |= {"steps": list(range(first, first + len(times))), "step_times": times, "excluded_steps": {}}
    if first == 2:
        samples["excluded_steps"] = {"1": f"{NOT_THERE}: the first step has no time"}
    for name, values in content.items():
        key = OURS.get(name, name)
        if key not in ("loss_values", "learning_rates") or not values:
            continue
        if isinstance(values, list) and len(values) != len(times):
            # the step without a time may have a loss all the same
            if len(values) != len(times) + first - 1:
                raise store.ResultError(f"{path}: {key}: got {len(values)} values beside {len(times)} step times")
            values = values[first - 1 :]
        samples[key] = values
    return samples


def _performance(times: list[Any], config: dict[str, Any], stated: dict[str, Any]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    warmup = warmup_steps(len(times)) if times else None
    if times and all(map(is_number, times)) and sum(times[warmup:]) > 0:
        tokens = config["global_batch_size"] * config["sequence_length"]
        summary = dict(summarize(times, tokens, config["num_gpus"]))
    summary["warmup_steps_excluded"] = warmup
    claims = {key: value for key, value in stated.items() if key in (*MFU_CLAIMS, *TFLOPS_CLAIMS)}
    return filled("performance_metrics", summary, NOT_THERE) | claims
