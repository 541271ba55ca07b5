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
        self.note("world_size", line.world_size, line.where)
        self.note("total_steps", line.total, line.where)
        self.note("global_batch_size", line.global_batch_size, line.where)
        known = self.by_number.setdefault(line.number, line)
        if known is not line:
            self._merge(known, line)

    def note(self, name: str, value: int | float | str | None, where: str) -> None:
        """Keep a figure of the whole run, unless it is unknown; a different value later is a conflict."""
        if value is None:
            return
        known = self.facts.setdefault(name, Fact(value, where))
        if known.value != value and name not in _MAY_DIFFER:
            words = name.replace("_", " ")
            self.conflicts.append(
                f"{words} is {known.value} at {known.where} and {value} at {where}: is this the log of one run?"
            )

    def _merge(self, known: IterationLine, line: IterationLine) -> None:
        names = _SAME_ON_EVERY_RANK if line.is_from_any_rank else (*_SAME_ON_EVERY_RANK, "tokens")
        # several ranks, a log and its copy: what one line lacks, another may have
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
    steps = []
    excluded: dict[int, str] = {}
    for iteration in iterations:
        reason = MEAN_OF_TWO if iteration.is_mean_of_two else iteration.excluded
        if reason:
            excluded[iteration.number] = reason
        else:
            steps.append(iteration)
    return tuple(steps), excluded


def not_finite(iterations: Sequence[IterationLine]) -> list[str]:
    """Return a problem for each iteration whose loss or gradient norm is not finite, or whose loss is missing."""
    problems = []
    for iteration in iterations:
        words = ", ".join(iteration.not_finite)
        if iteration.loss is None and "loss" not in words:
            words = f"it has no loss, which is how NaN is printed{', ' if words else ''}{words}"
        if words:
            problems.append(f"{iteration.title}: {words}")
    return _few(problems)


def troubles(iterations: Sequence[IterationLine]) -> list[str]:
    """Return contradictions within iterations and between neighbours."""
    printed, empty, untimed, lost = [], [], [], []
    for iteration in iterations:
        for text in iteration.troubles:
            printed.append(f"{iteration.title}: {text}")
        if 0 in (iteration.global_batch_size, iteration.consumed_samples):
            empty.append(f"{iteration.title}: it has trained on zero samples")
        if iteration.step_time and iteration.step_time.value <= 0:
            untimed.append(f"{iteration.title}: it took {iteration.step_time.value:g} s, wanted more than 0")
    for before, iteration in pairwise(iterations):
        size = iteration.global_batch_size
        if size is None or before.global_batch_size != size:
            continue
        if before.consumed_samples is None or iteration.consumed_samples is None:
            continue
        consumed = iteration.consumed_samples - before.consumed_samples
        wanted = size * (iteration.number - before.number)
        if consumed != wanted:
            lost.append(
                f"{iteration.title}: {consumed} samples since iteration {before.number}, "
                f"wanted global batch size x iterations = {wanted}"
            )
    return _few(printed + empty + untimed + lost)


def gaps(iterations: Sequence[IterationLine], total: Fact | None) -> list[str]:
    """Return in words which of the iterations 1 to `total` are missing."""
    numbers = [iteration.number for iteration in iterations]
    if not numbers:
        return []
    last = numbers[-1]
    problems = []
    if total is None:
        problems.append("the log does not say how many iterations were to come; say it if you know")
    elif last != total.value:
        place = "stops at" if last < int(total.value) else "goes to"
        problems.append(f"the log {place} iteration {last} of {total.value}")
    missing = []
    for before, number in pairwise([0, *numbers]):
        if number == before + 2:
            missing.append(f"{before + 1}")
        elif number > before + 2:
            missing.append(f"{before + 1} to {number - 1}")
    # a hundred gaps of one length are one remark
    interval = _interval(numbers)
    if interval:
        problems.append(f"only every {interval}th iteration was printed, and a time is a mean over {interval} of them")
    elif missing:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        problems.append(f"the log has no iteration {', '.join(missing[:SHOWN])}{more}")
    return problems


def without_time(steps: Sequence[IterationLine]) -> list[str]:
    """Return a problem for each iteration without a time."""
    return _few([f"{step.title}: it has no time" for step in steps if step.step_time is None])


def fill_times(iterations: Sequence[IterationLine], tokens_of_a_step: float) -> bool:
    """Derive the time of iterations that print only tokens/s/GPU; return True if there was one.

    `tokens_of_a_step` is SL x GBS / GPUs.
    """
    is_derived = False
    for iteration in iterations:
        rate = iteration.tokens
        if iteration.step_time is None and rate and rate.value > 0:
            seconds = tokens_of_a_step / rate.value
            # the relative error of the time is that of the rate
            iteration.step_time = Printed(seconds, seconds * rate.half_unit / rate.value, rate.digits)
            is_derived = True
    return is_derived


def tokens_of_a_step(steps: Sequence[IterationLine]) -> tuple[tuple[float, float] | None, list[str]]:
    """Derive the tokens per step and GPU (SL x GBS / GPUs), as smallest and largest value that the rounding allows.

    They are tokens/s/GPU x seconds of each line that holds both (Primus, trainer.py: tokens per GPU = SL x batch /
    elapsed / world). Returns None if no line holds both, and a problem for each line that disagrees with most others.
    """
    known = [_bounds(time, tokens) for _, time, tokens in with_both(steps)]
    if not known:
        return None, []
    # the line in the middle is one of the majority; all lines that overlap with it narrow the range
    middle = statistics.median_low([(low + high) / 2 for low, high in known])
    base_low, base_high = next((low, high) for low, high in known if low <= middle <= high)
    low, high = base_low, base_high
    for other_low, other_high in known:
        if other_low <= base_high and other_high >= base_low:
            low = max(low, other_low)
            high = min(high, other_high)
    if low > high:
        low, high = base_low, base_high
    return (low, high), disagreements(steps, low, high)


def disagreements(steps: Sequence[IterationLine], low: float, high: float) -> list[str]:
    """Return a problem for each line whose tokens/s/GPU and time do not give `low` to `high` tokens a step and GPU."""
    problems = []
    for step, time, tokens in with_both(steps):
        least, most = _bounds(time, tokens)
        if least > high or most < low:
            wanted = (low + high) / 2 / time.value
            problems.append(
                f"{step.title}: {tokens.value:g} tokens/s/GPU do not fit {time.value:g} s; SL x GBS / time / GPUs is "
                f"{wanted:.1f}"
            )
    return _few(problems)


def whole_between(low: float, high: float) -> int | None:
    """Return the only integer from low to high; None if there is none or several."""
    candidate = round((low + high) / 2)
    slack = 1e-9 * candidate  # of the multiplications that led to the bounds
    is_inside = low - slack <= candidate <= high + slack
    if is_inside and high - 1 < candidate < low + 1:
        return candidate
    return None


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
    measured = []
    for step in steps:
        time, tokens = step.step_time, step.tokens
        if time and tokens and time.value and tokens.value:
            measured.append((step, time, tokens))
    return measured


def _bounds(time: Printed, tokens: Printed) -> tuple[float, float]:
    low = (time.value - time.half_unit) * (tokens.value - tokens.half_unit)
    high = (time.value + time.half_unit) * (tokens.value + tokens.half_unit)
    return low * (1 - 1e-12), high * (1 + 1e-12)  # the products are rounded too


def _interval(numbers: Sequence[int]) -> int | None:
    """Return n if exactly every n-th iteration is present (and perhaps the first), at least two of them; else None."""
    # frameworks print the first iteration whatever the interval is
    if numbers[0] == 1 and len(numbers) > 2:
        numbers = numbers[1:]
    distances = {number - before for before, number in pairwise(numbers)}
    if len(distances) != 1:
        return None
    interval = distances.pop()
    return interval if interval > 1 and numbers[0] % interval == 0 else None


def _few(problems: list[str]) -> list[str]:
    if len(problems) <= SHOWN:
        return problems
    return [*problems[:SHOWN], f"and {len(problems) - SHOWN} more like it"]
