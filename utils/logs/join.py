"""Join iteration lines: remove duplicates, sort, check each line against itself and its neighbours.

Each contradiction becomes a problem in words with its line; nothing is repaired.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

from utils.logs.lines import Fact, IterationLine, Printed

MEAN_OF_TWO = "its time and loss are means over iterations 1 and 2, which core 0.16 and later does not reset between"
SHOWN = 3
"""Problems of one kind that are written out; the others are counted."""
_MAY_DIFFER = ("host", "out_of_memory")
_SAME_ON_EVERY_RANK = ("step_time", "loss", "grad_norm", "learning_rate")


class Joined:
    """The iterations read so far, by number, and their contradictions."""

    def __init__(self) -> None:
        self.by_number: dict[int, IterationLine] = {}
        self.conflicts: list[str] = []
        self.facts: dict[str, Fact] = {}

    def add(self, line: IterationLine) -> None:
        """Add one more line: another iteration, or missing values of a known one."""
        figures = {
            "world_size": line.world_size,
            "total_steps": line.total,
            "global_batch_size": line.global_batch_size,
        }
        for name, value in figures.items():
            if value is not None:
                self.note(name, value, line.where)
        known = self.by_number.setdefault(line.number, line)
        if known is not line:
            self._merge(known, line)

    def note(self, name: str, value: int | float | str, where: str) -> None:
        """Keep a figure of the whole run; a different value later is a conflict."""
        known = self.facts.setdefault(name, Fact(value, where))
        if known.value != value and name not in _MAY_DIFFER:
            words = name.replace("_", " ")
            self.conflicts.append(
                f"{words} is {known.value} at {known.where} and {value} at {where}: is this the log of one run?"
            )

    def _merge(self, known: IterationLine, line: IterationLine) -> None:
        names = _SAME_ON_EVERY_RANK if line.is_from_any_rank else (*_SAME_ON_EVERY_RANK, "tokens")
        for name in names:
            old, new = getattr(known, name), getattr(line, name)
            if old is None:
                setattr(known, name, new)
            elif new is not None and new.value != old.value:
                self.conflicts.append(
                    f"iteration {line.number}: {name.replace('_', ' ')} is {old.value:g} at {known.where} and "
                    f"{new.value:g} at {line.where}: is this the log of one run?"
                )
        if line.is_from_any_rank and known.tokens and line.tokens and line.tokens.value < known.tokens.value:
            known.tokens = line.tokens  # every rank uses its own clock; the slowest rank determines the step
        known.not_finite = known.not_finite or line.not_finite
        known.troubles = known.troubles or line.troubles


def to_steps(iterations: Sequence[IterationLine]) -> tuple[tuple[IterationLine, ...], dict[int, str]]:
    """Return the steps, and the excluded iterations with the reason."""
    reasons = {one.number: MEAN_OF_TWO if one.is_mean_of_two else one.excluded for one in iterations}
    excluded = {number: reason for number, reason in reasons.items() if reason}
    return tuple(one for one in iterations if one.number not in excluded), excluded


def not_finite(iterations: Sequence[IterationLine]) -> list[str]:
    """Return a problem for each iteration whose loss or gradient norm is not finite, or whose loss is missing."""
    found = []
    for one in iterations:
        words = [*one.not_finite]
        if one.loss is None and not any("loss" in text for text in words):
            words.insert(0, "it has no loss, which is how NaN is printed")
        if words:
            found.append(f"iteration {one.number} ({one.where}): {', '.join(words)}")
    return _few(found)


def troubles(iterations: Sequence[IterationLine]) -> list[str]:
    """Return contradictions within iterations and between neighbours."""
    found = [f"iteration {one.number} ({one.where}): {text}" for one in iterations for text in one.troubles]
    empty = [one for one in iterations if 0 in (one.global_batch_size, one.consumed_samples)]
    found += [f"iteration {one.number} ({one.where}): it has trained on zero samples" for one in empty]
    found += [
        f"iteration {one.number} ({one.where}): it took {one.step_time.value:g} s, wanted more than 0"
        for one in iterations
        if one.step_time and not one.step_time.value > 0
    ]
    for one, two in pairwise(iterations):
        size = two.global_batch_size
        if size is None or one.global_batch_size != size or None in (one.consumed_samples, two.consumed_samples):
            continue
        consumed, wanted = (two.consumed_samples or 0) - (one.consumed_samples or 0), size * (two.number - one.number)
        if consumed != wanted:
            found.append(
                f"iteration {two.number} ({two.where}): {consumed} samples since iteration {one.number}, "
                f"wanted global batch size x iterations = {wanted}"
            )
    return _few(found)


def gaps(iterations: Sequence[IterationLine], total: int | None) -> list[str]:
    """Return in words which of the iterations 1 to `total` are missing."""
    numbers = [one.number for one in iterations]
    if not numbers:
        return []
    last = numbers[-1]
    found = []
    if total is None:
        found.append("the log does not say how many iterations were to come; say it if you know")
    elif last != total:
        found.append(f"the log {'stops at' if last < total else 'goes to'} iteration {last} of {total}")
    around = [(one + 1, two - 1) for one, two in pairwise([0, *numbers]) if two - one > 1]
    missing = [f"{first}" if first == last else f"{first} to {last}" for first, last in around]
    if interval := _interval(numbers):
        found.append(f"only every {interval}th iteration was printed, and a time is a mean over {interval} of them")
    elif missing:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        found.append(f"the log has no iteration {', '.join(missing[:SHOWN])}{more}")
    return found


def without_time(steps: Sequence[IterationLine]) -> list[str]:
    """Return a problem for each iteration without a time."""
    return _few([f"iteration {step.number} ({step.where}): it has no time" for step in steps if step.step_time is None])


def fill_times(iterations: Sequence[IterationLine], tokens_of_a_step: float) -> bool:
    """Derive the time of iterations that print only tokens/s/GPU; return True if there was one.

    `tokens_of_a_step` is SL x GBS / GPUs.
    """
    found = [one for one in iterations if one.step_time is None and one.tokens and one.tokens.value > 0]
    for one in found:
        tokens, half_unit, digits = one.tokens or (1.0, 0.0, 1)
        seconds = tokens_of_a_step / tokens
        one.step_time = Printed(seconds, seconds * half_unit / tokens, digits)
    return bool(found)


def tokens_of_a_step(steps: Sequence[IterationLine]) -> tuple[tuple[float, float] | None, list[str]]:
    """Derive the tokens per step and GPU (SL x GBS / GPUs), as smallest and largest value that the rounding allows.

    They are tokens/s/GPU x seconds of each line that holds both (Primus, trainer.py: tokens per GPU = SL x batch /
    elapsed / world). Returns None if no line holds both, and a problem for each line that disagrees with most others.
    """
    known = [_bounds(time, tokens) for _, time, tokens in with_both(steps)]
    if not known:
        return None, []
    middle = statistics.median_low([(low + high) / 2 for low, high in known])
    base = next((low, high) for low, high in known if low <= middle <= high)
    agreeing = [(low, high) for low, high in known if low <= base[1] and high >= base[0]]
    low, high = max(low for low, _ in agreeing), min(high for _, high in agreeing)
    low, high = (low, high) if low <= high else base
    return (low, high), disagreements(steps, low, high)


def disagreements(steps: Sequence[IterationLine], low: float, high: float) -> list[str]:
    """Return a problem for each line whose tokens/s/GPU and time do not give `low` to `high` tokens a step and GPU."""
    found = []
    for step, time, tokens in with_both(steps):
        least, most = _bounds(time, tokens)
        if least > high or most < low:
            wanted = (low + high) / 2 / time.value
            found.append(
                f"iteration {step.number} ({step.where}): {tokens.value:g} tokens/s/GPU do not fit "
                f"{time.value:g} s; SL x GBS / time / GPUs is {wanted:.1f}"
            )
    return _few(found)


def whole_between(low: float, high: float) -> int | None:
    """Return the only integer from low to high; None if there is none or several."""
    candidate = round((low + high) / 2)
    slack = 1e-9 * candidate
    is_only = low - slack <= candidate <= high + slack and candidate - 1 < low and candidate + 1 > high
    return candidate if is_only else None


def derived_sequence_length(facts: Mapping[str, Fact], tokens: tuple[float, float] | None) -> Fact | None:
    """Return SL if tokens/s, times, batch and GPUs of the lines allow only one integer."""
    size, gpus = facts.get("global_batch_size"), facts.get("world_size")
    if tokens is None or size is None or gpus is None or not size.value:
        return None
    factor = float(gpus.value) / float(size.value)
    length = whole_between(tokens[0] * factor, tokens[1] * factor)
    return Fact(length, "tokens/s/GPU x time x GPUs / GBS of its lines") if length else None


def with_both(steps: Sequence[IterationLine]) -> list[tuple[IterationLine, Printed, Printed]]:
    """Return the iterations that have a time and tokens/s/GPU, with both."""
    return [
        (step, step.step_time, step.tokens)
        for step in steps
        if step.step_time and step.tokens and step.step_time.value and step.tokens.value
    ]


def _bounds(time: Printed, tokens: Printed) -> tuple[float, float]:
    low = (time.value - time.half_unit) * (tokens.value - tokens.half_unit)
    return low * (1 - 1e-12), (time.value + time.half_unit) * (tokens.value + tokens.half_unit) * (1 + 1e-12)


def _interval(numbers: Sequence[int]) -> int | None:
    """Return n if exactly every n-th iteration is present (and perhaps the first), at least two of them; else None."""
    regular = numbers[1:] if numbers[0] == 1 and len(numbers) > 2 else numbers
    steps = {two - one for one, two in pairwise(regular)}
    interval = steps.pop() if len(steps) == 1 else 1
    return interval if interval > 1 and regular[0] % interval == 0 else None


def _few(problems: list[str]) -> list[str]:
    if len(problems) <= SHOWN:
        return problems
    return [*problems[:SHOWN], f"and {len(problems) - SHOWN} more like it"]
