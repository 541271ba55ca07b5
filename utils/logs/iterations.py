"""Iteration lines of the Megatron family: Megatron-LM, Primus in four generations, Megatron Bridge, and NeMo.

All print `iteration I/N | key: value | key: value ...`. A value counts only if a bar closes it, so that a line that was
cut off or mixed with another gives fewer values and no wrong ones.

Formats read in AMD-AGI/Primus v25.9 to v26.5 (trainer.py, print_rank_last_patches.py, training_log_patches.py),
NVIDIA/Megatron-LM core 0.8 to 0.16 (training.py), nemo_toolkit 2.3 (progress_printer.py), megatron-bridge 0.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from utils.logs.lines import Line, Printed, between, number, rounded_to, whole_number
from utils.logs.run_log import GIBIBYTE_IN_GB, IterationLine, Memory

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
        if match := _START.match(text, at):
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
                return number(self.values[key].partition("/")[0].partition(" (avg")[0], power)
        return None

    def not_finite(self, *keys: str) -> list[str]:
        """Return `key is nan` for each key whose value is not finite."""
        return [f"{key} is {self.values[key]}" for key in keys if _NAN.fullmatch(self.values.get(key, ""))]

    def counted(self, key: str) -> list[str]:
        """Return a key and its value in words, if that is a number above 0."""
        return [f"{key}: {self.values[key]}"] if self.whole(key) else []

    def whole(self, key: str) -> int | None:
        """Return the integer of a key."""
        return whole_number(self.values.get(key))


def _megatron(line: Line, head: str, start: re.Match[str], fields: _Fields) -> IterationLine:
    rank, time = _RANK.search(head), _TIME_HEAD.search(head)
    memory = tuple(_device_memory(fields, line.where))
    is_primus = bool(rank or memory or {_TOKENS, _TOKENS_D} & fields.values.keys())
    has_microseconds = bool(time and time[1])
    return IterationLine(
        framework="prim" if is_primus else "mega",
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
    return "Primus A: trainer, GB (up to v25.10)" if "GB" in usage else "Primus A or B: trainer, without memory"


def _megatron_format(time: re.Match[str] | None) -> str:
    if time is None:
        return "Megatron-LM, without time of day"
    return "Megatron-LM, core 0.16 and later" if time[1] else "Megatron-LM, up to core 0.15"


def _device_memory(fields: _Fields, where: str) -> Iterator[Memory]:
    """Yield the memory of a rank's device. "GB" in these lines is bytes / 1024^3, as "GiB" is (191.69 of an MI300X)."""
    pieces = dict(fields.values)
    key, _, value = fields.last.partition(":")
    pieces.setdefault(" ".join(key.split()), value)
    for key, value in pieces.items():
        if "mem usage" not in key or not (match := _USAGE.match(value)):
            continue
        meaning = "hip" if key == _HIP else "rocm-smi" if key == _ROCM else "rocm-smi, fullest rank"
        used, unit, _, total, _ = match.groups()
        for what, text in (("used", used), ("total", total)):
            if printed := number(text):
                yield Memory(f"device {what} ({meaning})", printed.value * GIBIBYTE_IN_GB, f"{text}{unit}", where)


def _nemo(line: Line, start: re.Match[str], fields: _Fields) -> IterationLine:
    def value(key: str) -> Printed | None:
        return rounded_to(NEMO_DIGITS, fields.first(key))

    step = fields.whole("global_step")
    return IterationLine(
        framework="nemo",
        format="NeMo / Lightning, 4 significant digits",
        number=(int(start[1]) if step is None else step) + 1,
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
        if printed := fields.first(key):
            yield Memory(f"{meaning} (rank 0)", printed.value / 1e9, f"{fields.values[key]} bytes", where)
