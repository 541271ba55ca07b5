"""Parsers of the step lines of all frameworks: the Megatron family, torchtitan, the Hugging Face Trainer, and our own.

Megatron-LM, Primus in four generations, Megatron Bridge, and NeMo print `iteration I/N | key: value | key: value ...`.
A value counts only if a bar closes it, so that a line that was cut off or mixed with another gives fewer values and no
wrong ones.

Formats read in AMD-AGI/Primus v25.9 to v26.5 (trainer.py, print_rank_last_patches.py, training_log_patches.py),
NVIDIA/Megatron-LM core 0.8 to 0.16 (training.py), nemo_toolkit 2.3 (progress_printer.py), megatron-bridge 0.3.

torchtitan, bare or under Primus, prints `step: N  loss: x  grad_norm: x  memory: xGiB(x%)  tps: n  ...`. `tps` is
tokens per second and device since the line before, so it belongs to one step only if every step is printed; `memory`
is the largest amount that the caching allocator held since then. Every rank may print its own line. Format read in
torchtitan 0.1 and 0.2 (components/metrics.py).

A dict of the Hugging Face Trainer holds neither the step's number nor its time: entries are numbered in their order,
and only the summary at the end holds the number of steps. (transformers 4 and 5, trainer_callback.py.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from utils.logs.lines import (
    GIBIBYTE_IN_GB,
    HF,
    MEGA,
    NEMO,
    OURS,
    PRIM,
    TORCHTITAN,
    IterationLine,
    Line,
    Memory,
    Printed,
    between,
    number,
    rounded_to,
    whole_number,
)
from utils.results.raw_samples import parse_step
from utils.settings.profiling import PROFILED

NEMO_DIGITS = 4
"""NeMo prints its floats as `{:.4}`: 4 significant digits, without trailing zeros."""

_WORD = "iteration"
_START = re.compile(r"iteration\s+(\d{1,12})\s*/\s*(\d{1,12})\s*\|")
_NEMO_HEAD = re.compile(r"Training epoch\s+\d+\s*,\s*$")
_TIME_HEAD = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\]\s*$")
_RANK = re.compile(r"rank-(\d{1,9})/(\d{1,9})(?!\d)")
_USAGE = re.compile(r"\s*([\d.]+)(GB|GiB)/(?:([\d.]+)(?:GB|GiB)/([\d.]+)(?:GB|GiB)/)?([\d.]+)%")
_NAN = re.compile(r"[-+]?(?:nan|inf)", re.IGNORECASE)

_MILLISECONDS = "elapsed time per iteration (ms)"
_TOKENS = "tokens per GPU (tokens/s/GPU)"
_TOKENS_D = "tokens/s/GPU inst/harmonic mean"
_TFLOPS = "throughput per GPU (TFLOP/s/GPU)"
_TFLOPS_D = "compute per GPU (TFLOP/s/GPU)"
_HIP = "hip mem usage/free/total/usage_ratio"
_ROCM = "rocm mem usage/free/total/usage_ratio"
_MEMORY_SOURCES = {_HIP: "hip", _ROCM: "rocm-smi"}


def iterations(line: Line) -> Iterator[IterationLine]:
    """Yield every iteration in a line; there may be several if lines were joined without a newline."""
    for head, start, body, is_last in between(line.text, _starts(line.text)):
        if _NEMO_HEAD.search(head):
            yield _nemo(line, start, _Fields(body, is_closed=line.is_whole and is_last))
        else:
            yield _megatron(line, head, start, _Fields(body, is_closed=False))


def _starts(text: str) -> Iterator[re.Match[str]]:
    """Yield the starts of iterations; searching the word first is many times as fast as the pattern alone."""
    at = text.find(_WORD)
    while at >= 0:
        match = _START.match(text, at)
        if match:
            yield match
        at = text.find(_WORD, at + 1)


class _Fields:
    """The `key: value` pieces between bars; the last one counts only if the line is known to end there."""

    def __init__(self, body: str, *, is_closed: bool) -> None:
        pieces = body.split("|")
        self.last = pieces[-1]
        self.values: dict[str, str] = {}
        self.twice: list[str] = []
        """Contradictions in the line, in words."""
        # a last piece without a bar behind it may have lost its end
        for piece in pieces if is_closed else pieces[:-1]:
            key, colon, value = piece.partition(":")
            key, value = " ".join(key.split()), value.strip()
            if colon and self.values.setdefault(key, value) != value:
                self.twice.append(f"{key} stands twice in one line, with other values")

    def first(self, *keys: str, power: int = 0) -> Printed | None:
        """Return the instantaneous value of the first key that is present, times ten to the `power`.

        That is X of `X/Y` and of `X (avg Y)`.
        """
        for key in keys:
            if key in self.values:
                now = self.values[key].partition("/")[0].partition(" (avg")[0]
                return number(now, power)
        return None

    def not_finite(self, *keys: str) -> list[str]:
        """Return `key is nan` for each key whose value is not finite."""
        return [f"{key} is {self.values[key]}" for key in keys if _NAN.fullmatch(self.values.get(key, ""))]

    def counted(self, key: str) -> list[str]:
        """Return a key and its value in words, if that is a number above 0."""
        if not self.whole(key):
            return []
        return [f"{key}: {self.values[key]}"]

    def whole(self, key: str) -> int | None:
        """Return the integer of a key."""
        return whole_number(self.values.get(key))


def _megatron(line: Line, head: str, start: re.Match[str], fields: _Fields) -> IterationLine:
    rank, time = _RANK.search(head), _TIME_HEAD.search(head)
    memory = tuple(_device_memory(fields, line.where))
    # a log may have lost the prefix with the rank; fields that only Primus prints show it too
    is_primus = bool(rank or memory or {_TOKENS, _TOKENS_D} & fields.values.keys())
    has_microseconds = bool(time and time[1])
    return IterationLine(
        framework=PRIM if is_primus else MEGA,
        format=_primus_format(fields, bool(time)) if is_primus else _megatron_format(time),
        number=int(start[1]),
        total=int(start[2]),
        where=line.where,
        step_time=fields.first(_MILLISECONDS, power=-3),
        loss=fields.first("lm loss"),
        grad_norm=fields.first("grad norm"),
        learning_rate=fields.first("learning rate"),
        tokens=fields.first(_TOKENS, _TOKENS_D),
        tflops=fields.first(_TFLOPS, _TFLOPS_D),
        global_batch_size=fields.whole("global batch size"),
        consumed_samples=fields.whole("consumed samples"),
        world_size=int(rank[2]) if rank else None,
        is_mean_of_two=int(start[1]) == 2 and (has_microseconds or (is_primus and bool(time))),
        not_finite=fields.not_finite("lm loss", "grad norm") + fields.counted("number of nan iterations"),
        troubles=fields.counted("number of skipped iterations") + fields.twice,
        memory=memory,
    )


def _primus_format(fields: _Fields, has_time: bool) -> str:
    if {_TFLOPS_D, _TOKENS_D} & fields.values.keys():
        return "Primus D: core runtime, harmonic mean (v26.5 and later)"
    if has_time:
        return "Primus C: core runtime (v25.11 to v26.4)"
    usage = fields.values.get(_HIP) or fields.values.get(_ROCM, "")
    if "GiB" in usage:
        return "Primus B: trainer, GiB (v25.10 to v26.1)"
    if "GB" in usage:
        return "Primus A: trainer, GB (up to v25.10)"
    return "Primus A or B: trainer, without memory"


def _megatron_format(time: re.Match[str] | None) -> str:
    if time is None:
        return "Megatron-LM, without time of day"
    return "Megatron-LM, core 0.16 and later" if time[1] else "Megatron-LM, up to core 0.15"


def _device_memory(fields: _Fields, where: str) -> Iterator[Memory]:
    """Yield the memory of a rank's device. "GB" in these lines is bytes / 1024^3, as "GiB" is (191.69 of an MI300X)."""
    pieces = dict(fields.values)
    key, _, value = fields.last.partition(":")
    # the last piece is complete if its form is: it ends with a percent sign
    pieces.setdefault(" ".join(key.split()), value)
    for key, value in pieces.items():
        match = _USAGE.match(value)
        if "mem usage" not in key or match is None:
            continue
        source = _MEMORY_SOURCES.get(key, "rocm-smi, fullest rank")
        used, unit, _, total, _ = match.groups()
        for part, text in (("used", used), ("total", total)):
            printed = number(text)
            if printed:
                yield Memory(f"device {part} ({source})", printed.value * GIBIBYTE_IN_GB, f"{text}{unit}", where)


def _nemo(line: Line, start: re.Match[str], fields: _Fields) -> IterationLine:
    def value(key: str) -> Printed | None:
        return rounded_to(NEMO_DIGITS, fields.first(key))

    # both count from 0; the number in front restarts with each epoch
    step = fields.whole("global_step")
    if step is None:
        step = int(start[1])
    return IterationLine(
        framework=NEMO,
        format="NeMo / Lightning, 4 significant digits",
        number=step + 1,
        total=int(start[2]) + 1,
        where=line.where,
        step_time=value("train_step_timing in s"),
        loss=value("reduced_train_loss"),
        grad_norm=value("grad_norm"),
        learning_rate=value("lr"),
        tokens=value("tokens_per_sec_per_gpu"),
        tflops=value("TFLOPS_per_GPU"),
        global_batch_size=fields.whole("global_batch_size"),
        consumed_samples=fields.whole("consumed_samples"),
        not_finite=fields.not_finite("reduced_train_loss", "grad_norm"),
        troubles=fields.twice,
        memory=tuple(_nemo_memory(fields, line.where)),
    )


def _nemo_memory(fields: _Fields, where: str) -> Iterator[Memory]:
    for key, meaning in (("peak_memory_usage", "max reserved"), ("memory_allocated", "allocated")):
        printed = fields.first(key)
        if printed:
            yield Memory(f"{meaning} (rank 0)", printed.value / 1e9, f"{fields.values[key]} bytes", where)


_DICT = re.compile(r"\{'loss':[^{}]*\}")
_PAIR = re.compile(r"'(\w+)':\s*'?([^,'}\s]+)'?\s*[,}]")
_TITAN_STEP = re.compile(r"(?<!validate )\bstep:\s*([\d,]+)\s+(?=loss:)")
_TITAN_FIELD = re.compile(r"(\w+):\s*(\S+)(?=(\s)|$)")
_TITAN_MEMORY = re.compile(r"([\d.]+)GiB\([\d.]+%\)")
_OURS = re.compile(r"\[\w+\] Step \d")


def titan_steps(line: Line) -> Iterator[IterationLine]:
    """Yield every step of torchtitan in a line."""
    if "tps:" not in line.text:
        return
    for _, start, body, is_last in between(line.text, _TITAN_STEP.finditer(line.text)):
        is_closed = is_last and line.is_whole
        values: dict[str, str] = {}
        for field in _TITAN_FIELD.finditer(body):
            if field[3] or is_closed:  # a space behind it shows that the value is whole
                values[field[1]] = field[2]
        step = whole_number(start[1])
        if step is not None and ("tps" in values or "memory" in values):
            yield _titan_iteration(line, step, values)


def _titan_iteration(line: Line, step: int, values: dict[str, str]) -> IterationLine:
    rank = _RANK.search(line.text)
    memory: tuple[Memory, ...] = ()
    reserved = _TITAN_MEMORY.fullmatch(values.get("memory", ""))
    gib = number(reserved[1]) if reserved else None
    if gib:
        memory = (Memory("max reserved", gib.value * GIBIBYTE_IN_GB, f"{gib.value:g} GiB", line.where),)
    return IterationLine(
        framework=PRIM if rank else TORCHTITAN,
        format="torchtitan under Primus" if rank else "torchtitan",
        number=step,
        total=None,
        where=line.where,
        loss=number(values.get("loss")),
        grad_norm=number(values.get("grad_norm")),
        tokens=number(values.get("tps")),
        tflops=number(values.get("tflops")),
        world_size=int(rank[2]) if rank else None,
        is_from_any_rank=True,
        not_finite=_not_finite(values),
        memory=memory,
    )


def _not_finite(values: dict[str, str]) -> list[str]:
    return [f"{key} is {values[key]}" for key in ("loss", "grad_norm") if values.get(key) in ("nan", "inf", "-inf")]


class HuggingFaceDicts:
    """Parser of one log that numbers its dicts; the same dict twice in a row counts once."""

    def __init__(self) -> None:
        self._count = 0
        self._before: dict[str, str] = {}

    def __call__(self, line: Line) -> Iterator[IterationLine]:
        """Yield every logged entry of a line."""
        if "{'loss'" not in line.text:
            return
        for match in _DICT.finditer(line.text):
            values = dict(_PAIR.findall(match[0]))
            # a progress bar and a logger may both print an entry
            if values == self._before:
                continue
            self._before = values
            self._count += 1
            yield IterationLine(
                framework=HF,
                format="Hugging Face Trainer, numbered in the order of its lines",
                number=self._count,
                total=None,
                where=line.where,
                loss=number(values.get("loss")),
                grad_norm=number(values.get("grad_norm")),
                learning_rate=number(values.get("learning_rate")),
                not_finite=_not_finite(values),
            )


def our_steps(line: Line) -> Iterator[IterationLine]:
    """Yield every step of our own progress lines (utils/results/raw_samples.py), with or without a rank's prefix."""
    if "] Step " not in line.text:
        return
    for start in _OURS.finditer(line.text):
        step = parse_step(line.text[start.start() :])
        if step is None:
            continue
        iteration = IterationLine(
            framework=OURS,
            format="our own progress lines",
            number=step.number,
            total=step.total,
            where=line.where,
            loss=number(f"{step.loss:.4f}"),
        )
        if step.seconds is None:
            iteration.excluded = PROFILED  # the only steps that are printed without a time
        else:
            iteration.step_time = number(f"{step.seconds:.3f}")
        if not math.isfinite(step.loss):
            iteration.not_finite.append(f"loss is {step.loss}")
        if math.isfinite(step.memory_gb):
            iteration.memory = (Memory("allocated", step.memory_gb, f"{step.memory_gb:.1f} GB", line.where),)
        yield iteration
