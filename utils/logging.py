"""Logs of other people's trainings, read into one form: `read_log` knows every format that docs/logs.md names.

A log is read once, line by line, in memory that does not grow with it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from utils.log_iterations import iterations
from utils.log_join import (
    Joined,
    derived_sequence_length,
    gaps,
    not_finite,
    to_steps,
    tokens_of_a_step,
    troubles,
    without_time,
)
from utils.log_lines import Line, lines
from utils.log_run import Fact, RunLog, Step
from utils.log_seen import Memory, Seen

__all__ = ["FRAMEWORKS", "Fact", "LogFormatError", "Memory", "RunLog", "Step", "read_log"]

FRAMEWORKS = ("prim", "nemo", "mega", "bridge", "torchtitan", "hf", "ours")
FEW_DIGITS = 4
FORMATS: tuple[Callable[[Line], Iterator[Seen]], ...] = (iterations,)


class LogFormatError(ValueError):
    """Files that hold no training of the framework that was asked for; the message says what they do hold."""


def read_log(paths: Sequence[Path], framework: str = "auto") -> RunLog:
    """Return the training that the log files tell of; they may be parts (rotated, one a node) in any order.

    `framework` is one of FRAMEWORKS, or `auto`: told from the lines. Its iterations keep the instantaneous value of an
    `X/Y` pair. Lines that are printed twice count once. What speaks against the run is in `problems`: an iteration
    without a loss, values that contradict each other, a run that stops early.
    Raises LogFormatError where no line tells of an iteration, or lines of several frameworks do, and OSError where a
    file cannot be read.
    """
    if framework not in ("auto", *FRAMEWORKS):
        raise LogFormatError(f"framework: got {framework!r}, wanted auto or one of {', '.join(FRAMEWORKS)}")
    names = ", ".join(str(path) for path in paths)
    joined: dict[str, Joined] = {}
    formats: dict[str, dict[str, None]] = {}
    memory: dict[str, dict[str, Memory]] = {}
    for path in paths:
        for line in lines(path):
            for read in FORMATS:
                for seen in read(line):
                    joined.setdefault(seen.framework, Joined()).add(seen)
                    formats.setdefault(seen.framework, {})[seen.format] = None
                    _keep_largest(memory.setdefault(seen.framework, {}), seen.memory)
    chosen = _choose(framework, list(joined), names)
    return _run(chosen, " + ".join(formats[chosen]), joined[chosen], memory[chosen])


def _choose(framework: str, found: list[str], names: str) -> str:
    if framework == "auto" and len(found) == 1:
        return found[0]
    if framework in found:
        return framework
    if not found:
        raise LogFormatError(f"{names}: no line tells of an iteration; is it the log of a training? See docs/logs.md")
    if framework == "auto":
        raise LogFormatError(f"{names}: iterations of {' and '.join(found)}; say which with --framework")
    raise LogFormatError(f"{names}: no iteration of {framework}, but of {' and '.join(found)}; leave out --framework")


def _keep_largest(largest: dict[str, Memory], found: Sequence[Memory]) -> None:
    for one in found:
        if one.meaning not in largest or one.gb > largest[one.meaning].gb:
            largest[one.meaning] = one


def _run(framework: str, format_name: str, joined: Joined, memory: dict[str, Memory]) -> RunLog:
    seen = joined.seen()
    steps, excluded = to_steps(seen)
    tokens, disagreeing = tokens_of_a_step(steps)
    facts = dict(joined.facts)
    if "sequence_length" not in facts and (length := derived_sequence_length(facts, tokens)):
        facts["sequence_length"] = length
    total = facts.get("total_steps")
    nan = not_finite(seen)
    problems = [
        *nan,
        *gaps(seen, int(total.value) if total else None),
        *joined.conflicts,
        *troubles(seen),
        *without_time(steps),
        *disagreeing,
    ]
    digits = min((one.step_time.digits for one in seen if one.step_time), default=None)
    notes = [f"iteration {number} is left out: {why}" for number, why in excluded.items()]
    if digits is not None and digits <= FEW_DIGITS:
        notes.append(f"step times are known to {digits} significant digits, as the log prints them")
    return RunLog(
        framework=framework,
        format=format_name,
        steps=steps,
        excluded=excluded,
        facts=facts,
        memory=memory,
        problems=tuple(problems),
        notes=tuple(notes),
        status="nan" if nan else "failed" if problems else "ok",
        step_time_digits=digits,
    )
