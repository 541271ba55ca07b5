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
MOST_COLLECTIVES, MOST_READS = 8, 6
LISTS = ("operators", "collectives", "host_reads", "stages")


def of_rank(config: RunConfig, steps: Steps, stage: int, rank: int) -> dict[str, Any]:
    """Return the account of one rank after its steps: memory at the fullest moment, and the events of a whole step."""
    from train.rehearsal.events import Collective, HostRead, Operator

    rows: dict[type, list[dict[str, Any]]] = {Operator: [], Collective: [], HostRead: []}
    for event, count in steps.events(config).items():
        rows[type(event)].append(asdict(event) | {"count": count})
    rows[Operator].sort(key=lambda row: (row["flops"] * row["count"], row["bytes"] * row["count"]), reverse=True)
    rows[Collective].sort(key=lambda row: row["bytes"] * row["count"], reverse=True)
    return {
        "stage": stage,
        "rank": rank,
        "micro_batches_run": len(steps.segments) - 1,
        "peak_memory_gb": steps.peak_bytes / BYTES_PER_GB,
        "building_peak_memory_gb": steps.build_peak_bytes / BYTES_PER_GB,
        "memory_gb": {kind: size / BYTES_PER_GB for kind, size in steps.peak_by_kind.items()},
        "flops": sum(row["flops"] * row["count"] for row in rows[Operator]),
        "operators": rows[Operator],
        "collectives": rows[Collective],
        "host_reads": rows[HostRead],
    }


def of_job(
    config: RunConfig, framework: str, model: str, ranks: Sequence[Mapping[str, Any]], device: Device | None
) -> dict[str, Any]:
    """Return the content of the JSON from the account of one rank of every pipeline stage."""
    spec, fullest = config.spec(model), max(ranks, key=lambda rank: rank["peak_memory_gb"])
    found, length = estimate(config, framework, spec), config.sequence_length
    tokens = config.gradient_accumulation * config.micro_batch_size * length
    # the tensor-parallel ranks of a stage do the same work; data-parallel ranks have tokens of their own
    ran = config.tensor_parallel_size * config.context_parallel_size * sum(rank["flops"] for rank in ranks)
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
        "estimate_gb": found.total_gb - (found.process_gb or 0.0),
        "estimate_by_kind_gb": {kind: getattr(found, f"{kind}_gb") for kind in ESTIMATED} | {"stage": found.stage},
        "flops_per_token": ran / tokens,
        "flops_per_token_full": spec.flops_per_token(length, causal=False),
        "flops_per_token_causal": spec.flops_per_token(length),
        "host_reads_per_step": sum(read["count"] for read in fullest["host_reads"]),
        **_roofline(ranks, device),
        "micro_batches_run": fullest["micro_batches_run"],
        "stages": [_short(rank, device) for rank in ranks],
        "notes": NOTES,
        "host_reads": fullest["host_reads"],
        "collectives": fullest["collectives"],
        "operators": fullest["operators"],
    }


def work_by_kind(operators: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return count, flops and bytes of a step by kind of operator."""
    kinds: dict[str, Counter[str]] = {}
    for one in operators:
        work = kinds.setdefault(one["kind"], Counter())
        work.update({"count": one["count"], **{key: one[key] * one["count"] for key in ("flops", "bytes")}})
    return {kind: dict(work) for kind, work in kinds.items()}


def _roofline(ranks: Sequence[Mapping[str, Any]], device: Device | None) -> dict[str, Any]:
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


def _short(rank: Mapping[str, Any], device: Device | None) -> dict[str, Any]:
    kept = {key: value for key, value in rank.items() if key not in ("operators", "collectives", "host_reads")}
    reads = sum(read["count"] for read in rank["host_reads"])
    sent = sum(one["bytes"] * one["count"] for one in rank["collectives"])
    work = work_by_kind(rank["operators"])
    seconds = None if device is None else seconds_by_kind(rank["operators"], device)
    figures = {"host_reads_per_step": reads, "collective_bytes": sent, "work_by_kind": work}
    return {**kept, **figures, "roofline_seconds_by_kind": seconds}


def seconds_by_kind(operators: Iterable[Mapping[str, Any]], device: Device) -> dict[str, float]:
    """Return the least seconds of a step for each kind of operator.

    Products of 8-bit floats count at the FP8 peak, all others at the BF16 peak: of float32 the result is a lower bound
    only.
    """
    seconds = dict.fromkeys(COUNTED, 0.0)
    for operator in operators:
        if operator["kind"] in seconds:
            seconds[operator["kind"]] += operator["count"] * _seconds_once(operator, device)
    return seconds


def _seconds_once(operator: Mapping[str, Any], device: Device) -> float:
    is_fp8 = any(dtype.startswith("float8") for dtype in operator["dtypes"])
    tflops = (is_fp8 and device.dense_fp8_tflops) or device.dense_bf16_tflops
    flops = operator["flops"] * (CAUSAL_SHARE if operator["kind"] == "attention" else 1)
    return max(flops / (tflops * 1e12), operator["bytes"] / (device.memory_bandwidth_gb_per_second * 1e9))


def as_json(content: Mapping[str, Any]) -> str:
    """Return the JSON without secrets, with one line for each operator."""
    lines = []
    for key, value in json_value(content).items():
        text = json.dumps(value, allow_nan=False)
        if key in LISTS and value:
            text = "[\n  " + ",\n  ".join(json.dumps(row, allow_nan=False) for row in value) + "\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def as_text(content: Mapping[str, Any]) -> str:
    """Return the report for a terminal."""
    return "\n".join([_title(content), *_memory(content), *_work(content), *_communication(content)]) + "\n"


def _digits(value: float) -> str:
    """Return a number with three decimals, of a small one three digits."""
    return f"{value:,.3f}" if value >= 1 or value == 0 else f"{value:.3g}"


def _title(content: Mapping[str, Any]) -> str:
    asked = content["settings"]
    sizes = " ".join(f"{name.upper()} {asked[name]}" for name in ("tp", "pp", "ep", "dp"))
    batch = (("MBS", "micro_batch_size"), ("SL", "sequence_length"), ("GA", "gradient_accumulation"))
    settings = " ".join(f"{name} {asked[key]}" for name, key in batch)
    kind = "rank" if content["platform"] == "cpu" else "GPU"
    count = asked["num_gpus"]
    devices = f"{count} {content['platform']} {kind}{'s' if count > 1 else ''}"
    layers = ", torch's layers" if reads(content["framework"], "layers") else ""
    layers += ", as many tokens for every expert" if content["experts"] else ""
    return (
        f"{LABEL.capitalize()}: {content['framework']} {content['model']} ({content['model_size']}) on {devices}, "
        f"{sizes}, {settings}, {asked['precision']}{layers}\n"
        f"All figures are of one step and, unless stated otherwise, of rank {content['rank']}, the fullest one."
    )


def _memory(content: Mapping[str, Any]) -> Iterator[str]:
    peak, estimated, kinds = content["peak_memory_gb"], content["estimate_gb"], content["memory_gb"]
    share = round(100 * (estimated / peak - 1), 1) + 0.0  # no -0.0
    yield f"peak memory    {_digits(peak)} GB of tensors; estimate {_digits(estimated)} GB ({share:+.1f} %)"
    yield "               " + ", ".join(f"{kind} {_digits(size)}" for kind, size in kinds.items() if size > 1e-4 * peak)
    if content["building_peak_memory_gb"] > peak:
        building = _digits(content["building_peak_memory_gb"])
        yield f"               before the first step {building} GB: more than in a step"
    if len(content["stages"]) > 1:
        stages = (f"{stage['rank']}: {_digits(stage['peak_memory_gb'])}" for stage in content["stages"])
        yield f"               GB by rank, one of each pipeline stage: {', '.join(stages)}"
    device = content["device"]
    if device is not None:
        yield f"               one {device['name']} has {device['memory_gb']:.1f} GB"


def _work(content: Mapping[str, Any]) -> Iterator[str]:
    ran, full, causal = (_digits(content[f"flops_per_token{end}"] / 1e9) for end in ("", "_full", "_causal"))
    yield f"FLOPs          {ran} GFLOP a token, all ranks; formulas: {full} with full, {causal} with causal attention"
    (shown,) = (stage for stage in content["stages"] if stage["rank"] == content["rank"])
    seconds = shown["roofline_seconds_by_kind"] or {}
    yield f"operators      {len(content['operators'])} different" + ("; least seconds by roofline" if seconds else "")
    for kind, work in sorted(work_by_kind(content["operators"]).items(), key=lambda item: -item[1]["bytes"]):
        time = f" {_digits(seconds[kind]):>8} s" if seconds.get(kind) is not None else ""
        done = f"{_digits(work['flops'] / 1e12):>10} TFLOP {_digits(work['bytes'] / 1e9):>10} GB"
        yield f"  {kind:13}{work['count']:9,} x {done}{time}"
    if seconds:
        least = content["roofline_seconds"]
        of = " of the slowest stage" if len(content["stages"]) > 1 else ""
        name = content["device"]["name"]
        yield f"roofline       {_digits(least)} s a step at least{of} on {name}, without communication"


def _communication(content: Mapping[str, Any]) -> Iterator[str]:
    reads: Sequence[Mapping[str, Any]] = content["host_reads"]
    yield f"host reads     {content['host_reads_per_step']} a step"
    yield from (f"  {one['count']:5} x {one['where']}" for one in reads[:MOST_READS])
    rows: Sequence[Mapping[str, Any]] = content["collectives"]
    yield f"collectives    {sum(row['count'] for row in rows)} a step"
    for row in rows[:MOST_COLLECTIVES]:
        where = f"{row['group'].lower()} of {row['ranks']}" if row["ranks"] else "between stages"
        yield f"  {row['count']:5} x {row['bytes'] / 1e6:12,.3f} MB {row['name']}, {where}"
    if len(rows) > MOST_COLLECTIVES:
        yield f"  and {len(rows) - MOST_COLLECTIVES} smaller kinds"
