"""Facts of the whole run in the lines of a log: GPUs, batch, sequence length, parameters, memory, how it ended.

Names of the facts: those of `training_config` in utils/results/schema.py where there is one (`sequence_length`, `tp`
...), and `world_size`, `total_steps`, `padded_vocab_size`, `parameter_count`, `exit_code`, `out_of_memory`, `host`,
`platform`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from utils.logs.join import whole_between
from utils.logs.lines import MEBIBYTE_IN_GB, Fact, Line, Memory, number, whole_number

Value = int | float | str
Found = Iterable[tuple[str, Value]]

# Megatron-LM prints each argument as `  name ....... value` (training/arguments.py).
_WHOLE_ARGUMENTS = {
    "world_size": "world_size",
    "seq_length": "sequence_length",
    "global_batch_size": "global_batch_size",
    "micro_batch_size": "micro_batch_size",
    "train_iters": "total_steps",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "data_parallel_size": "dp",
    "seed": "seed",
    "lr_warmup_iters": "warmup_iters",
}
_ARGUMENTS = {
    "lr": "lr",
    "min_lr": "min_lr",
    "weight_decay": "weight_decay",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_eps": "adam_eps",
    "clip_grad": "clip_grad",
    "init_method_std": "init_std",
}
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
_MESH_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
_HOST = re.compile(r"\[NODE-\d+\(([^)\s]+)\)\]")
_PLATFORMS = {"NVIDIA": "nvd", "AMD": "amd", "CPU": "cpu"}
_ALLOCATOR = re.compile(r"\[Rank (\d+)\] \(after (\d+) iterations\) memory \((MB|GB)\) \|(.*)")
_ALLOCATOR_KEYS = {
    "allocated": "allocated",
    "max allocated": "max allocated",
    "reserved": "reserved",
    "max reserved": "max reserved",
    "mem-allocated-gigabytes": "allocated",
    "mem-max-allocated-gigabytes": "max allocated",
    "mem-reserved-gigabytes": "reserved",
    "mem-max-reserved-gigabytes": "max reserved",
}


def _end(match: re.Match[str]) -> Found:
    yield "exit_code", int(match[1])
    if host := _HOST.search(match.string):
        yield "host", host[1]


def _argument(match: re.Match[str]) -> Found:
    name, text = match.groups()
    # a flag of its own for each precision
    if name in ("bf16", "fp16") and text == "True":
        yield "precision", name
    if name in _WHOLE_ARGUMENTS:
        count = whole_number(text)
        if count is not None:
            yield _WHOLE_ARGUMENTS[name], count
    elif name in _ARGUMENTS:
        printed = number(text)
        if printed is not None:
            yield _ARGUMENTS[name], printed.value


def _by_name(match: re.Match[str]) -> Found:
    return ((name, int(value)) for name, value in match.groupdict().items())


def _mesh(match: re.Match[str]) -> Found:
    """Yield the number of GPUs of a torchtitan run and its parallel sizes."""
    sizes: dict[str, int] = {}
    for pair in match[1].split(", "):
        name, _, size = pair.partition("=")
        sizes[name] = int(size)
    if not sizes.keys() >= set(_MESH_AXES):
        return
    # torchtitan prints the mesh and no number of GPUs
    yield "world_size", math.prod(sizes[axis] for axis in _MESH_AXES)
    for name in ("pp", "cp", "tp", "ep"):
        if name in sizes:
            yield name, sizes[name]


def _summary(match: re.Match[str]) -> Found:
    """Yield the facts of the Hugging Face Trainer's summary; its steps per second are all steps over all seconds."""
    seconds, rate = number(match[1]), number(match[2])
    if seconds is None or rate is None:
        return
    yield "train_runtime_seconds", seconds.value
    # both were rounded when they were printed, so the number of steps is one of several
    low = (seconds.value - seconds.half_unit) * (rate.value - rate.half_unit)
    high = (seconds.value + seconds.half_unit) * (rate.value + rate.half_unit)
    total = whole_between(low, high)
    if total:
        yield "total_steps", total


def _world_sizes(match: re.Match[str]) -> Found:
    """Yield the sizes in a line of Megatron, which may hold several of them."""
    for name, size in _SIZES.findall(match.string):
        yield _SIZE_NAMES[name], int(size)


def _parameters_of_rank(match: re.Match[str]) -> Found:
    yield f"parameters_of_rank_{match[1]}_{match[2]}", int(match[3])


def _platform(match: re.Match[str]) -> Found:
    yield "platform", _PLATFORMS[match[1]]


def _out_of_memory(_: re.Match[str]) -> Found:
    yield "out_of_memory", "memory ran out"


def _parameters_in_billions(match: re.Match[str]) -> Found:
    yield "parameters_in_billions", match[1]  # as text: its digits tell how far it was rounded


_FORMS: tuple[tuple[str, str, Callable[[re.Match[str]], Found]], ...] = (
    ("exited with code", r"launcher exited with code (-?\d{1,9})", _end),
    ("ut of memory", r"(?:CUDA|HIP) out of memory", _out_of_memory),
    ("] Step ", r"\[(NVIDIA|AMD|CPU)\] Step \d+/\d+ \|", _platform),
    ("....", r"(?:^|\s)([a-z][a-z0-9_]+) \.{3,} ?(\S+)\s*$", _argument),
    ("world size:", _SIZES.pattern, _world_sizes),
    (
        "padded vocab",
        r"padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (?P<padded_vocab_size>\d{1,15})\)",
        _by_name,
    ),
    (  # torchtitan
        "local batch size",
        r"local batch size (?P<micro_batch_size>\d{1,9}), global batch size (?P<global_batch_size>\d{1,9}),"
        r".{0,80}? sequence length (?P<sequence_length>\d{1,9}), total steps (?P<total_steps>\d{1,12})(?=[\s(.]|$)",
        _by_name,
    ),
    (
        "of parameters on",
        r"number of parameters on \(tensor, pipeline\) model parallel rank "
        r"\((\d{1,9}), (\d{1,9})\): (\d{1,15})(?=\s|$)",
        _parameters_of_rank,
    ),
    (
        "parameters in billions",
        r"Total number of parameters in billions: ([\d.]+)(?=\s|$)",
        _parameters_in_billions,
    ),
    ("device mesh", r"device mesh with parallelism: ((?:\w+=\d{1,9}, )*\w+=\d{1,9})(?!\d)", _mesh),
    (
        "train_runtime",
        r"\{'train_runtime': '?([\d.]+)'?,.*?'train_steps_per_second': '?([\d.]+)'?[,}]",
        _summary,
    ),
)
"""Word that is searched first, pattern, and the facts in its first match."""
_EVEN_IF_CUT_OFF = _FORMS[:3]
"""Forms whose facts cannot have lost a digit in an unfinished last line."""


def facts_of(line: Line) -> Iterator[tuple[str, Value]]:
    """Yield every fact in a line, by name; of an unfinished last line, only facts that cannot have lost a digit."""
    for word, pattern, facts_in in _FORMS if line.is_whole else _EVEN_IF_CUT_OFF:
        if word not in line.text:
            continue
        match = re.search(pattern, line.text)
        if match:
            yield from facts_in(match)


def allocator_memory(line: Line) -> Iterator[Memory]:
    """Yield the memory of one rank in a line of Megatron's allocator report.

    Its "MB" are 2^20 bytes (Megatron-LM, training/utils.py report_memory); Megatron Bridge's "gigabytes" are 1e9.
    """
    if "iterations) memory" not in line.text:
        return
    match = _ALLOCATOR.search(line.text)
    if match is None:
        return
    rank, iteration, unit, body = match.groups()
    pieces = body.split("|")
    if not line.is_whole:
        pieces.pop()
    for piece in pieces:
        key, _, text = (part.strip() for part in piece.partition(":"))
        printed = number(text)
        if key in _ALLOCATOR_KEYS and printed:
            gb = printed.value * MEBIBYTE_IN_GB if unit == "MB" else printed.value
            shown = f"{text} {unit}, rank {rank} after {iteration} iterations"
            yield Memory(_ALLOCATOR_KEYS[key], gb, shown, line.where)


def parameter_count(known: Mapping[str, Fact]) -> Fact | None:
    """Return the number of parameters, if those of the printed ranks add up to the printed total in billions."""
    ranks = [fact for name, fact in known.items() if name.startswith("parameters_of_rank_")]
    total = known.get("parameters_in_billions")
    billions = number(str(total.value)) if total else None
    if not ranks or billions is None:
        return None
    count = sum(int(fact.value) for fact in ranks)
    # a log may hold the lines of some ranks only
    if abs(count / 1e9 - billions.value) > billions.half_unit * (1 + 1e-9):
        return None
    return Fact(count, ranks[0].where)
