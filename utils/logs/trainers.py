"""Parsers of step lines outside the Megatron family: torchtitan, the Hugging Face Trainer, and our own progress lines.

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

from utils.logs.lines import Line, between, number, whole_number
from utils.logs.run_log import GIBIBYTE_IN_GB, IterationLine, Memory
from utils.results.step_line import parse_step
from utils.settings.profiling import PROFILED

_DICT = re.compile(r"\{'loss':[^{}]*\}")
_PAIR = re.compile(r"'(\w+)':\s*'?([^,'}\s]+)'?\s*[,}]")
_TITAN_STEP = re.compile(r"(?<!validate )\bstep:\s*([\d,]+)\s+(?=loss:)")
_TITAN_FIELD = re.compile(r"(\w+):\s*(\S+)(?=(\s)|$)")
_TITAN_MEMORY = re.compile(r"([\d.]+)GiB\([\d.]+%\)")
_PRIMUS_RANK = re.compile(r"rank-\d{1,9}/(\d{1,9})(?!\d)")
_OURS = re.compile(r"\[\w+\] Step \d")
_NAN = ("nan", "inf", "-inf")


def titan_steps(line: Line) -> Iterator[IterationLine]:
    """Yield every step of torchtitan in a line."""
    if "tps:" not in line.text:
        return
    for _, start, body, is_last in between(line.text, _TITAN_STEP.finditer(line.text)):
        is_closed = is_last and line.is_whole
        values = {match[1]: match[2] for match in _TITAN_FIELD.finditer(body) if match[3] or is_closed}
        step = whole_number(start[1])
        if step is not None and ("tps" in values or "memory" in values):
            yield _titan_iteration(line, step, values)


def _titan_iteration(line: Line, step: int, values: dict[str, str]) -> IterationLine:
    rank = _PRIMUS_RANK.search(line.text)
    memory = _TITAN_MEMORY.fullmatch(values.get("memory", ""))
    gib = number(memory[1]) if memory else None
    return IterationLine(
        framework="prim" if rank else "torchtitan",
        format="torchtitan under Primus" if rank else "torchtitan",
        number=step,
        total=None,
        where=line.where,
        loss=number(values.get("loss")),
        grad_norm=number(values.get("grad_norm")),
        tokens=number(values.get("tps")),
        tflops=number(values.get("tflops")),
        world_size=int(rank[1]) if rank else None,
        is_from_any_rank=True,
        not_finite=[f"{key} is {values[key]}" for key in ("loss", "grad_norm") if values.get(key) in _NAN],
        memory=(Memory("max reserved", gib.value * GIBIBYTE_IN_GB, f"{gib.value:g} GiB", line.where),) if gib else (),
    )


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
            if values == self._before:
                continue
            self._before = values
            self._count += 1
            yield IterationLine(
                framework="hf",
                format="Hugging Face Trainer, numbered in the order of its lines",
                number=self._count,
                total=None,
                where=line.where,
                loss=number(values.get("loss")),
                grad_norm=number(values.get("grad_norm")),
                learning_rate=number(values.get("learning_rate")),
                not_finite=[f"{key} is {values[key]}" for key in ("loss", "grad_norm") if values.get(key) in _NAN],
            )


def our_steps(line: Line) -> Iterator[IterationLine]:
    """Yield every step of our own progress lines (utils/results/step_line.py), with or without a rank's prefix."""
    if "] Step " not in line.text:
        return
    for start in _OURS.finditer(line.text):
        step = parse_step(line.text[start.start() :])
        if step is None:
            continue
        memory = Memory("allocated", step.memory_gb, f"{step.memory_gb:.1f} GB", line.where)
        yield IterationLine(
            framework="ours",
            format="our own progress lines",
            number=step.number,
            total=step.total,
            where=line.where,
            step_time=None if step.seconds is None else number(f"{step.seconds:.3f}"),
            excluded=PROFILED if step.seconds is None else "",
            loss=number(f"{step.loss:.4f}"),
            not_finite=[] if math.isfinite(step.loss) else [f"loss is {step.loss}"],
            memory=(memory,) if math.isfinite(step.memory_gb) else (),
        )
