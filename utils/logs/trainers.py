"""Lines of trainers that print one object or sentence a step: the Hugging Face Trainer's dicts, and our own progress.

A dict of the Hugging Face Trainer holds neither the step's number nor its time: entries are numbered in their order,
and only the summary at the end knows how many steps there were. (transformers 4 and 5, trainer_callback.py.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from utils.logs.lines import Line, number
from utils.logs.run_log import Memory, Seen
from utils.results.step_line import parse_step

_DICT = re.compile(r"\{'loss':[^{}]*\}")
_PAIR = re.compile(r"'(\w+)':\s*'?([^,'}\s]+)'?\s*[,}]")
_OURS = re.compile(r"\[\w+\] Step \d")


class HuggingFaceDicts:
    """Numbers the dicts of one log; the same dict twice in a row is one."""

    def __init__(self) -> None:
        self._count = 0
        self._before: dict[str, str] = {}

    def __call__(self, line: Line) -> Iterator[Seen]:
        """Yield every logged entry of a line."""
        if "{'loss'" not in line.text:
            return
        for match in _DICT.finditer(line.text):
            values = dict(_PAIR.findall(match[0]))
            if values == self._before:
                continue
            self._before = values
            self._count += 1
            yield Seen(
                framework="hf",
                format="Hugging Face Trainer, numbered in the order of its lines",
                number=self._count,
                total=None,
                where=line.where,
                loss=number(values.get("loss")),
                grad_norm=number(values.get("grad_norm")),
                learning_rate=number(values.get("learning_rate")),
                not_finite=[f"{key} is {values[key]}" for key in ("loss", "grad_norm") if _is_nan(values.get(key))],
            )


def our_steps(line: Line) -> Iterator[Seen]:
    """Yield every step of our own progress lines (utils/results/step_line.py); other ranks' prefixes may stand before
    them.
    """
    if "] Step " not in line.text:
        return
    for start in _OURS.finditer(line.text):
        step = parse_step(line.text[start.start() :])
        if step is None:
            continue
        memory = Memory("allocated", step.memory_gb, f"{step.memory_gb:.1f} GB", line.where)
        yield Seen(
            framework="ours",
            format="our own progress lines",
            number=step.number,
            total=step.total,
            where=line.where,
            step_time=number(f"{step.seconds:.3f}"),
            loss=number(f"{step.loss:.4f}"),
            not_finite=[] if math.isfinite(step.loss) else [f"loss is {step.loss}"],
            memory=(memory,) if math.isfinite(step.memory_gb) else (),
        )


def _is_nan(text: str | None) -> bool:
    return text in ("nan", "inf", "-inf")
