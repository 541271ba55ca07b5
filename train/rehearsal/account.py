"""A rehearsal as JSON and text: the account of each rank, and the figures of the whole job made from them.

Every figure stands under the words "rehearsed, not measured".

The least time of a step on a device is that of the roofline model, one operator after the other. Williams, Waterman,
Patterson: "Roofline", Communications of the ACM 52(4), 2009: an operator takes at least its floating-point operations
over the peak rate, and at least its bytes over the memory bandwidth. Launch gaps, pipeline bubbles, and communication,
whose bandwidth utils/hardware/devices.py does not have, are not in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from utils.frameworks import reads
from utils.hardware.devices import BYTES_PER_GB, Device
from utils.memory.estimate import estimate
from utils.own_files import json_with
from utils.redact import json_value
from utils.settings.config import RunConfig

if TYPE_CHECKING:  # the process that reports needs no torch
    from train.rehearsal.one_rank import Steps

Account = Mapping[str, Any]
"""One row or map of the JSON."""
VERSION = 1
LABEL = "rehearsed, not measured"
is_rehearsal = json_with("rehearsal_version", "peak_memory_gb")
"""Recogniser of a rehearsal of any version."""
ESTIMATED = ("weights", "gradients", "optimizer", "activations", "logits", "workspace")
NOTES = {
    "operators": "one step of the fullest rank; flops, bytes: of one call; shapes, dtypes: of its tensor arguments",
    "collectives": "one step of the fullest rank; bytes: of the larger of input and output of one call",
    "flops_per_token": "products of all ranks over the tokens of the step, with what is computed again",
    "flops_per_token_full": "formula, whole model, attention to every token",
    "flops_per_token_causal": "formula, whole model, attention to earlier tokens only",
    "estimate_gb": "tensors only, as in the rehearsal",
    "roofline_seconds": "least time of one device without communication, gaps and pipeline bubbles",
    "experts": "of a layer; each gets as many tokens, and where one gets more, its device needs more memory",
    "not_seen": "context of the driver, buffers of communication, workspaces of libraries, fragmentation",
}
CAUSAL_SHARE = 0.5
"""Share of attention's floating-point operations, which count every pair of tokens, that a causal kernel must do."""
COUNTED = ("matmul", "attention", "memory_bound", "optimizer")
NOT_COUNTED = {
    "communication_exposed": "the table of devices has no bandwidth between devices",
    "host_copy": "the table of devices has no bandwidth between host and device",
    "idle": "a rehearsal has no clock",
}
"""Kinds of time without a figure, with the reason."""
TITLE = {
    "GPUs": "num_gpus",
    "TP": "tp",
    "PP": "pp",
    "EP": "ep",
    "DP": "dp",
    "MBS": "micro_batch_size",
    "SL": "sequence_length",
    "GA": "gradient_accumulation",
}
"""Settings in the title of the text, and their keys."""
MOST_COLLECTIVES, MOST_READS = 8, 6
LISTS = ("operators", "collectives", "host_reads", "stages")


def of_rank(config: RunConfig, steps: Steps, stage: int, rank: int) -> dict[str, Any]:
    """Return the account of one rank after its steps: memory at the fullest moment, and the events of a whole step."""
    from train.rehearsal.events import Collective, HostRead, Operator

    rows: dict[type, list[dict[str, Any]]] = {Operator: [], Collective: [], HostRead: []}
    for event, count in steps.events(config).items():
        rows[type(event)].append(asdict(event) | {"count": count})
    operators, collectives = rows[Operator], rows[Collective]
    # those that cost most come first for a reader
    operators.sort(key=lambda row: (row["flops"] * row["count"], row["bytes"] * row["count"]), reverse=True)
    collectives.sort(key=lambda row: row["bytes"] * row["count"], reverse=True)
    return {
        "stage": stage,
        "rank": rank,
        "micro_batches_run": len(steps.segments) - 1,
        "peak_memory_gb": steps.peak_bytes / BYTES_PER_GB,
        "building_peak_memory_gb": steps.build_peak_bytes / BYTES_PER_GB,
        "memory_gb": {kind: size / BYTES_PER_GB for kind, size in steps.peak_by_kind.items()},
        "flops": _per_step(operators, "flops"),
        "operators": operators,
        "collectives": collectives,
        "host_reads": rows[HostRead],
    }


def _per_step(rows: Iterable[Account], key: str) -> int:
    """Return the sum over all calls of a step."""
    return sum(row[key] * row["count"] for row in rows)


def of_job(
    config: RunConfig, framework: str, model: str, ranks: Sequence[Account], device: Device | None
) -> dict[str, Any]:
    """Return the content of the JSON from the account of one rank of every pipeline stage."""
    spec = config.spec(model)
    # the rank that needs most decides whether a job fits
    fullest = max(ranks, key=lambda rank: rank["peak_memory_gb"])
    estimated = estimate(config, framework, spec)
    length = config.sequence_length
    tokens = config.gradient_accumulation * config.micro_batch_size * length
    # the tensor-parallel ranks of a stage do the same work; data-parallel ranks have tokens of their own
    ran = config.tensor_parallel_size * config.context_parallel_size * sum(rank["flops"] for rank in ranks)
    by_kind: dict[str, Any] = {kind: getattr(estimated, f"{kind}_gb") for kind in ESTIMATED}
    by_kind["stage"] = estimated.stage
    return {
        "rehearsal_version": VERSION,
        "measured": False,
        "label": LABEL,
        "platform": config.platform,
        "framework": framework,
        "model": model,
        "model_size": config.model_size,
        "experts": spec.num_experts,
        "settings": config.asked(),
        "stage": fullest["stage"],
        "rank": fullest["rank"],
        "peak_memory_gb": fullest["peak_memory_gb"],
        "memory_gb": fullest["memory_gb"],
        "building_peak_memory_gb": max(rank["building_peak_memory_gb"] for rank in ranks),
        "estimate_gb": estimated.total_gb - (estimated.process_gb or 0.0),
        "estimate_by_kind_gb": by_kind,
        "flops_per_token": ran / tokens,
        "flops_per_token_full": spec.flops_per_token(length, causal=False),
        "flops_per_token_causal": spec.flops_per_token(length),
        "host_reads_per_step": _count(fullest["host_reads"]),
        **_roofline(ranks, device),
        "micro_batches_run": fullest["micro_batches_run"],
        "stages": [_short(rank, device) for rank in ranks],
        "notes": NOTES,
        "host_reads": fullest["host_reads"],
        "collectives": fullest["collectives"],
        "operators": fullest["operators"],
    }


def work_by_kind(operators: Sequence[Account]) -> dict[str, dict[str, int]]:
    """Return count, flops and bytes of a step by kind of operator."""
    kinds: dict[str, Counter[str]] = {}
    for operator in operators:
        work = kinds.setdefault(operator["kind"], Counter())
        count = operator["count"]
        work.update(count=count, flops=operator["flops"] * count, bytes=operator["bytes"] * count)
    return {kind: dict(work) for kind, work in kinds.items()}


def _count(rows: Iterable[Account]) -> int:
    return sum(row["count"] for row in rows)


def _roofline(ranks: Sequence[Account], device: Device | None) -> dict[str, Any]:
    """Return the figures of the stage that takes longest."""
    if device is None:
        return {"device": None, "roofline_seconds": None, "roofline_seconds_by_kind": None}
    stages = [seconds_by_kind(rank["operators"], device) for rank in ranks]
    slowest = max(stages, key=lambda seconds: sum(seconds.values()))
    described = asdict(device)
    return {
        "device": {key: described[key] for key in ("name", *device.sources)} | {"sources": dict(device.sources)},
        "roofline_seconds": sum(slowest.values()),
        "roofline_seconds_by_kind": slowest | dict.fromkeys(NOT_COUNTED),
        "roofline_reasons": NOT_COUNTED,
    }


def _short(rank: Account, device: Device | None) -> dict[str, Any]:
    figures = {key: value for key, value in rank.items() if key not in ("operators", "collectives", "host_reads")}
    figures["host_reads_per_step"] = _count(rank["host_reads"])
    figures["collective_bytes"] = _per_step(rank["collectives"], "bytes")
    figures["work_by_kind"] = work_by_kind(rank["operators"])
    figures["roofline_seconds_by_kind"] = None
    if device is not None:
        figures["roofline_seconds_by_kind"] = seconds_by_kind(rank["operators"], device)
    return figures


def seconds_by_kind(operators: Iterable[Account], device: Device) -> dict[str, float]:
    """Return the least seconds of a step for each kind of operator.

    Products of 8-bit floats count at the FP8 peak, all others at the BF16 peak: of float32 the result is a lower bound
    only.
    """
    seconds = dict.fromkeys(COUNTED, 0.0)
    for operator in operators:
        if operator["kind"] in seconds:
            seconds[operator["kind"]] += operator["count"] * _seconds_once(operator, device)
    return seconds


def _seconds_once(operator: Account, device: Device) -> float:
    tflops, flops = device.dense_bf16_tflops, operator["flops"]
    if device.dense_fp8_tflops and any(dtype.startswith("float8") for dtype in operator["dtypes"]):
        tflops = device.dense_fp8_tflops
    if operator["kind"] == "attention":
        flops *= CAUSAL_SHARE
    return max(flops / (tflops * 1e12), operator["bytes"] / (device.memory_bandwidth_gb_per_second * 1e9))


def as_json(content: Account) -> str:
    """Return the JSON without secrets, with one line for each operator."""
    lines = []
    # a line for each operator, so that two rehearsals can be compared by diff
    for key, value in json_value(content).items():
        text = json.dumps(value, allow_nan=False)
        if key in LISTS and value:
            text = "[\n  " + ",\n  ".join(json.dumps(row, allow_nan=False) for row in value) + "\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def as_text(content: Account) -> str:
    """Return the report for a terminal."""
    lines = [*_title(content), *_memory(content), *_work(content), *_communication(content)]
    return "\n".join(lines) + "\n"


def _digits(value: float) -> str:
    """Return a number with three decimals, of a small one three digits."""
    return f"{value:,.3f}" if value >= 1 or value == 0 else f"{value:.3g}"


def _title(content: Account) -> Iterator[str]:
    asked = content["settings"]
    settings = ", ".join(f"{name} {asked[key]}" for name, key in TITLE.items())
    job = f"{content['framework']} {content['model']} ({content['model_size']}) on {content['platform']}"
    yield f"{LABEL.capitalize()}: {job}, {settings}, {asked['precision']}"
    if reads(content["framework"], "layers"):
        yield "Layers are torch's, not TransformerEngine's."
    if content["experts"]:
        yield "Simplified: as many tokens for every expert."
    yield f"All figures are of one step and, unless stated otherwise, of rank {content['rank']}, the fullest one."


def _memory(content: Account) -> Iterator[str]:
    peak, estimated = content["peak_memory_gb"], content["estimate_gb"]
    share = round(100 * (estimated / peak - 1), 1) + 0.0  # no -0.0
    yield f"peak memory    {_digits(peak)} GB of tensors; estimate {_digits(estimated)} GB ({share:+.1f} %)"
    kinds = [f"{kind} {_digits(size)}" for kind, size in content["memory_gb"].items() if size > 1e-4 * peak]
    yield f"               {', '.join(kinds)}"
    if content["building_peak_memory_gb"] > peak:
        yield f"               {_digits(content['building_peak_memory_gb'])} GB, more, before the first step"
    if len(content["stages"]) > 1:
        for stage in content["stages"]:
            yield f"  stage {stage['stage']}      {_digits(stage['peak_memory_gb'])} GB, rank {stage['rank']}"
    device = content["device"]
    if device is not None:
        yield f"               one {device['name']} has {device['memory_gb']:.1f} GB"


def _work(content: Account) -> Iterator[str]:
    ran, full, causal = (_digits(content[f"flops_per_token{end}"] / 1e9) for end in ("", "_full", "_causal"))
    yield f"FLOPs          {ran} GFLOP a token, all ranks; formulas: {full} with full, {causal} with causal attention"
    seconds: Mapping[str, float] = {}
    for stage in content["stages"]:
        if stage["rank"] == content["rank"]:
            seconds = stage["roofline_seconds_by_kind"] or {}
    kinds = work_by_kind(content["operators"])
    for kind in sorted(kinds, key=lambda kind: kinds[kind]["bytes"], reverse=True):
        work = kinds[kind]
        done = f"{_digits(work['flops'] / 1e12):>10} TFLOP {_digits(work['bytes'] / 1e9):>10} GB"
        least = f" {_digits(seconds[kind]):>8} s" if kind in seconds else ""
        yield f"  {kind:13}{work['count']:9,} x {done}{least}"
    if seconds:
        least = f"{_digits(content['roofline_seconds'])} s a step at least"
        yield f"roofline       {least} on {content['device']['name']}, without communication"


def _communication(content: Account) -> Iterator[str]:
    reads: Sequence[Account] = content["host_reads"]
    yield f"host reads     {_count(reads)} a step"
    for read in reads[:MOST_READS]:
        yield f"  {read['count']:5} x {read['where']}"
    collectives: Sequence[Account] = content["collectives"]
    yield f"collectives    {_count(collectives)} a step"
    for row in collectives[:MOST_COLLECTIVES]:
        # stages send and receive without a group
        where = f"{row['group'].lower()} of {row['ranks']}" if row["ranks"] else "between stages"
        yield f"  {row['count']:5} x {row['bytes'] / 1e6:12,.3f} MB {row['name']}, {where}"
    if len(collectives) > MOST_COLLECTIVES:
        yield f"  and {len(collectives) - MOST_COLLECTIVES} smaller kinds"
