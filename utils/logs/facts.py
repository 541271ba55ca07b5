"""Facts of the whole run in the lines of a log: GPUs, batch, sequence length, parameters, memory, how it ended.

Names of the facts: those of `training_config` in utils/results/schema.py where there is one (`sequence_length`, `tp`
...), and `world_size`, `total_steps`, `padded_vocab_size`, `parameter_count`, `exit_code`, `out_of_memory`, `host`,
`platform`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from utils.logs.join import whole_between
from utils.logs.lines import MEBIBYTE_IN_GB, Fact, Line, Memory, number, whole_number

Value = int | float | str

# Megatron-LM prints each argument as `  name ....... value` (training/arguments.py).
_ARGUMENT = re.compile(r"(?:^|\s)([a-z][a-z0-9_]+) \.{3,} ?(\S+)\s*$")
_ARGUMENTS = {
    "world_size": "world_size",
    "seq_length": "sequence_length",
    "global_batch_size": "global_batch_size",
    "micro_batch_size": "micro_batch_size",
    "train_iters": "total_steps",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "data_parallel_size": "dp",
    "seed": "seed",
    "lr": "lr",
    "min_lr": "min_lr",
    "lr_warmup_iters": "warmup_iters",
    "weight_decay": "weight_decay",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_eps": "adam_eps",
    "clip_grad": "clip_grad",
    "init_method_std": "init_std",
}
_WHOLE = (
    *("world_size", "sequence_length", "global_batch_size", "micro_batch_size", "total_steps", "tp", "pp", "cp", "dp"),
    *("seed", "warmup_iters"),
)
_SIZES = re.compile(
    r"\b(world|data-parallel|tensor-model-parallel|pipeline-model-parallel|context-parallel) size: (\d{1,9})(?=[,\s]|$)"
)
_SIZE_NAMES = {
    "world": "world_size",
    "data-parallel": "dp",
    "tensor-model-parallel": "tp",
    "pipeline-model-parallel": "pp",
    "context-parallel": "cp",
}
_PARAMETERS = re.compile(
    r"number of parameters on \(tensor, pipeline\) model parallel rank \((\d{1,9}), (\d{1,9})\): (\d{1,15})(?=\s|$)"
)
_BILLIONS = re.compile(r"Total number of parameters in billions: ([\d.]+)(?=\s|$)")
_BY_NAME = (
    re.compile(r"padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (?P<padded_vocab_size>\d{1,15})\)"),
    re.compile(  # torchtitan
        r"local batch size (?P<micro_batch_size>\d{1,9}), global batch size (?P<global_batch_size>\d{1,9}),"
        r".{0,80}? sequence length (?P<sequence_length>\d{1,9}), total steps (?P<total_steps>\d{1,12})(?=[\s(.]|$)"
    ),
)
"""Patterns whose groups have the names of the facts."""
_MESH = re.compile(r"device mesh with parallelism: ((?:\w+=\d{1,9}, )*\w+=\d{1,9})(?!\d)")
_MESH_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
_EXIT = re.compile(r"launcher exited with code (-?\d{1,9})")
_HOST = re.compile(r"\[NODE-\d+\(([^)\s]+)\)\]")
_SUMMARY = re.compile(r"\{'train_runtime': '?([\d.]+)'?,.*?'train_steps_per_second': '?([\d.]+)'?[,}]")
_PLATFORM = re.compile(r"\[(NVIDIA|AMD|CPU)\] Step \d+/\d+ \|")
_PLATFORMS = {"NVIDIA": "nvd", "AMD": "amd", "CPU": "cpu"}
_OUT_OF_MEMORY = re.compile(r"(?:CUDA|HIP) out of memory")
_ALLOCATOR = re.compile(r"\[Rank (\d+)\] \(after (\d+) iterations\) memory \((MB|GB)\) \|(.*)")
_ALLOCATOR_KEYS = {
    **{key: key for key in ("allocated", "max allocated", "reserved", "max reserved")},
    "mem-allocated-gigabytes": "allocated",
    "mem-max-allocated-gigabytes": "max allocated",
    "mem-reserved-gigabytes": "reserved",
    "mem-max-reserved-gigabytes": "max reserved",
}


def facts(line: Line) -> Iterator[tuple[str, Value]]:
    """Yield every fact in a line, by name; of an unfinished last line, only facts that cannot have lost a digit."""
    text = line.text
    if "exited with code" in text and (match := _EXIT.search(text)):
        yield "exit_code", int(match[1])
        if host := _HOST.search(text):
            yield "host", host[1]
    if "ut of memory" in text and _OUT_OF_MEMORY.search(text):
        yield "out_of_memory", "memory ran out"
    if "] Step " in text and (match := _PLATFORM.search(text)):
        yield "platform", _PLATFORMS[match[1]]
    if not line.is_whole:
        return
    if "...." in text and (match := _ARGUMENT.search(text)):
        yield from _argument(match[1], match[2])
    if "size" in text:
        yield from _sizes(text)
    if "parameters" in text:
        yield from _parameters(text)
    if "device mesh" in text and (match := _MESH.search(text)):
        yield from _mesh(match[1])
    if "train_runtime" in text and (match := _SUMMARY.search(text)):
        yield from _summary(match)


def allocator_memory(line: Line) -> Iterator[Memory]:
    """Yield the memory of one rank in a line of Megatron's allocator report.

    Its "MB" are 2^20 bytes (Megatron-LM, training/utils.py report_memory); Megatron Bridge's "gigabytes" are 1e9.
    """
    if "iterations) memory" not in line.text or not (match := _ALLOCATOR.search(line.text)):
        return
    rank, iteration, unit, body = match.groups()
    pieces = body.split("|")
    for piece in pieces if line.is_whole else pieces[:-1]:
        key, _, text = (part.strip() for part in piece.partition(":"))
        if key in _ALLOCATOR_KEYS and (printed := number(text)):
            gb = printed.value * (MEBIBYTE_IN_GB if unit == "MB" else 1.0)
            yield Memory(
                _ALLOCATOR_KEYS[key], gb, f"{text} {unit}, rank {rank} after {iteration} iterations", line.where
            )


def is_bridge(line: Line) -> bool:
    """Return True for a line that only Megatron Bridge prints."""
    return "mem-max-allocated-gigabytes" in line.text or "MODEL_TFLOP/s/GPU" in line.text


def parameter_count(known: Mapping[str, Fact]) -> Fact | None:
    """Return the number of parameters, if those of the printed ranks add up to the printed total in billions."""
    ranks = [fact for name, fact in known.items() if name.startswith("parameters_of_rank_")]
    total = known.get("parameters_in_billions")
    billions = number(str(total.value)) if total else None
    if not ranks or billions is None:
        return None
    count = sum(int(fact.value) for fact in ranks)
    fits = abs(count / 1e9 - billions.value) <= billions.half_unit * (1 + 1e-9)
    return Fact(count, ranks[0].where) if fits else None


def _argument(name: str, text: str) -> Iterator[tuple[str, Value]]:
    if name in ("bf16", "fp16") and text == "True":
        yield "precision", name
    key, printed = _ARGUMENTS.get(name), number(text)
    value = whole_number(text) if key in _WHOLE else printed and printed.value
    if key is not None and value is not None:
        yield key, value


def _sizes(text: str) -> Iterator[tuple[str, Value]]:
    if "world size:" in text:
        for name, value in _SIZES.findall(text):
            yield _SIZE_NAMES[name], int(value)
    for pattern in _BY_NAME:
        if match := pattern.search(text):
            yield from ((name, int(value)) for name, value in match.groupdict().items())


def _parameters(text: str) -> Iterator[tuple[str, Value]]:
    if match := _PARAMETERS.search(text):
        yield f"parameters_of_rank_{match[1]}_{match[2]}", int(match[3])
    if match := _BILLIONS.search(text):
        yield "parameters_in_billions", match[1]


def _mesh(axes: str) -> Iterator[tuple[str, Value]]:
    """Yield the number of GPUs of a torchtitan run and its parallel sizes."""
    sizes = {name: int(size) for name, size in (pair.split("=") for pair in axes.split(", "))}
    if all(axis in sizes for axis in _MESH_AXES):
        yield "world_size", math.prod(sizes[axis] for axis in _MESH_AXES)
        yield from ((name, sizes[name]) for name in ("pp", "cp", "tp"))


def _summary(match: re.Match[str]) -> Iterator[tuple[str, Value]]:
    """Yield the facts of the Hugging Face Trainer's summary; its steps per second are all steps over all seconds."""
    seconds, rate = number(match[1]), number(match[2])
    if seconds is None or rate is None:
        return
    yield "train_runtime_seconds", seconds.value
    low = (seconds.value - seconds.half_unit) * (rate.value - rate.half_unit)
    high = (seconds.value + seconds.half_unit) * (rate.value + rate.half_unit)
    if total := whole_between(low, high):
        yield "total_steps", total
