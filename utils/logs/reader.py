"""Reader of training logs: `read_log` reads every format that docs/logs.md names into one form.

A log is read once, line by line; memory use does not grow with its size. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from utils.logs.assemble import ASKED, NO_ITERATION, ContradictionError, LogFormatError, assemble_run
from utils.logs.events import FILE_NAME, event_steps
from utils.logs.facts import allocator_memory, facts, is_bridge
from utils.logs.iterations import iterations
from utils.logs.join import Joined
from utils.logs.lines import Line, lines
from utils.logs.run_log import Fact, IterationLine, Memory, RunLog, Step
from utils.logs.trainers import HuggingFaceDicts, our_steps, titan_steps

__all__ = [
    "ASKED",
    "FRAMEWORKS",
    "ContradictionError",
    "Fact",
    "LogFormatError",
    "Memory",
    "RunLog",
    "Step",
    "holds_iterations",
    "read_log",
]

FRAMEWORKS = ("prim", "nemo", "mega", "bridge", "torchtitan", "hf", "ours")


class _Reading:
    """Iterations by the family of their format, facts and memory of all lines read so far."""

    def __init__(self) -> None:
        self._formats: tuple[Callable[[Line], Iterator[IterationLine]], ...] = (
            iterations,
            titan_steps,
            HuggingFaceDicts(),
            our_steps,
        )
        self.joined: dict[str, Joined] = {}
        self.facts: dict[tuple[str, int | float | str], Fact] = {}
        self.memory: dict[str, Memory] = {}
        self.is_bridge = False
        self._before = ""

    def take(self, line: Line) -> None:
        """Parse a line; one with the same content as the line before is skipped (Primus prints twice)."""
        content = line.text[max(0, line.text.find("iteration")) :]
        if content == self._before and line.is_whole:
            return
        self._before = content
        for read in self._formats:
            for iteration in read(line):
                self.add(iteration)
        for name, value in facts(line):
            self.facts.setdefault((name, value), Fact(value, line.where))
        self._keep_largest(allocator_memory(line))
        self.is_bridge = self.is_bridge or is_bridge(line)

    def add(self, iteration: IterationLine) -> None:
        """Add an iteration to its family."""
        self.joined.setdefault(_family(iteration), Joined()).add(iteration)
        self._keep_largest(iteration.memory)
        iteration.memory = ()

    def read(self, path: Path, *, stop_early: bool = False) -> None:
        """Parse a file; with `stop_early` up to its first iteration."""
        if path.name.startswith(FILE_NAME):
            for iteration in event_steps(path):
                self.add(iteration)
            return
        for line in lines(path):
            self.take(line)
            if stop_early and self.joined:
                return

    def _keep_largest(self, found: Iterable[Memory]) -> None:
        for one in found:
            known = self.memory.get(one.meaning)
            if known is None or one.gb > known.gb:
                self.memory[one.meaning] = one

    def framework(self, family: str) -> str:
        """Return the framework that printed the lines of a family."""
        named = {iteration.framework for iteration in self.joined[family].by_number.values()}
        if "prim" in named:  # a line that lost its prefix and has no field of Primus looks like Megatron's
            return "prim"
        return "bridge" if named == {"mega"} and self.is_bridge else named.pop()


def read_log(paths: Sequence[Path], framework: str = "auto", known: Mapping[str, int | None] | None = None) -> RunLog:
    """Return the training in the log files, which may be parts of one log (rotated, one per node) in any order.

    `framework` is one of FRAMEWORKS, or `auto`: detected from the lines. `known` holds figures from elsewhere, used if
    the log does not contain them: `world_size`, `global_batch_size`, `sequence_length`, `total_steps`.
    Iterations keep the instantaneous value of an `X/Y` pair. Lines that are printed twice count once. `problems` lists
    the faults of the run: an iteration without a loss, values that contradict each other, a run that stops early. With
    a named `framework`, a log without any iteration is such a run too.
    Raises LogFormatError if the framework cannot be detected, ContradictionError if the log contradicts `known`, and
    OSError if a file cannot be read.
    """
    if framework not in ("auto", *FRAMEWORKS):
        raise LogFormatError(f"framework: got {framework!r}, wanted auto or one of {', '.join(FRAMEWORKS)}")
    reading = _Reading()
    for path in dict.fromkeys(paths):
        reading.read(path)
    names = ", ".join(path.name for path in paths)
    family = _choose(framework, reading, names)
    joined = reading.joined.get(family, Joined())
    for name, value in reading.facts:
        joined.note(name, value, reading.facts[name, value].where)
    chosen = framework if framework != "auto" else reading.framework(family)
    return assemble_run(chosen, joined, reading.memory, {name: value for name, value in (known or {}).items() if value})


def holds_iterations(path: Path) -> bool:
    """Return True if a file holds an iteration of any format; raise OSError if it cannot be read."""
    reading = _Reading()
    reading.read(path, stop_early=True)
    return bool(reading.joined)


def _family(iteration: IterationLine) -> str:
    if iteration.is_from_any_rank:
        return "torchtitan"
    return "megatron" if iteration.framework in ("mega", "prim") else iteration.framework


def _choose(framework: str, reading: _Reading, names: str) -> str:
    found = {family: reading.framework(family) for family in reading.joined}
    if framework == "auto" and len(found) == 1:
        return next(iter(found))
    same = ("mega", "bridge")  # Bridge prints Megatron's line
    fitting = [family for family, name in found.items() if name == framework or (name in same and framework in same)]
    if len(fitting) == 1:
        return fitting[0]
    if not found and framework != "auto":
        return framework
    if not found:
        raise LogFormatError(f"{names}: {NO_ITERATION}; is it the log of a training? docs/logs.md names the formats")
    held = " and ".join(sorted(set(found.values())))
    if framework == "auto" or fitting:
        raise LogFormatError(f"{names}: iterations of {held} in several formats; say which with --framework")
    raise LogFormatError(f"{names}: no iteration of {framework}, but of {held}; say --framework auto")
