"""Logs of other people's trainings, read into one form: `read_log` knows every format that docs/logs.md names.

A log is read once, line by line, in memory that does not grow with it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from utils.logs.events import FILE_NAME, event_steps
from utils.logs.facts import allocator_memory, facts, is_bridge
from utils.logs.iterations import iterations
from utils.logs.join import Joined
from utils.logs.lines import Line, lines
from utils.logs.run_log import Fact, Memory, RunLog, Seen, Step
from utils.logs.titan import titan_steps
from utils.logs.trainers import HuggingFaceDicts, our_steps
from utils.logs.whole import ASKED, NO_ITERATION, ContradictionError, LogFormatError, whole_run

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
    """All that the lines of the files have said so far, by the family of their format."""

    def __init__(self) -> None:
        self._formats: tuple[Callable[[Line], Iterator[Seen]], ...] = (
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
        """Take what a line says; one that says the same as the line before is passed over (Primus prints twice)."""
        said = line.text[max(0, line.text.find("iteration")) :]
        if said == self._before and line.is_whole:
            return
        self._before = said
        for read in self._formats:
            for seen in read(line):
                self.add(seen)
        for name, value in facts(line):
            self.facts.setdefault((name, value), Fact(value, line.where))
        self._keep_largest(allocator_memory(line))
        self.is_bridge = self.is_bridge or is_bridge(line)

    def add(self, seen: Seen) -> None:
        """Take an iteration."""
        self.joined.setdefault(_family(seen), Joined()).add(seen)
        self._keep_largest(seen.memory)
        seen.memory = ()

    def read(self, path: Path, *, only_look: bool = False) -> None:
        """Take what a file says; with `only_look` up to its first iteration."""
        if path.name.startswith(FILE_NAME):
            for seen in event_steps(path):
                self.add(seen)
            return
        for line in lines(path):
            self.take(line)
            if only_look and self.joined:
                return

    def _keep_largest(self, found: Iterable[Memory]) -> None:
        for one in found:
            known = self.memory.get(one.meaning)
            if known is None or one.gb > known.gb:
                self.memory[one.meaning] = one

    def framework(self, family: str) -> str:
        """Return the framework whose lines a family are."""
        named = {seen.framework for seen in self.joined[family].by_number.values()}
        if "prim" in named:  # of a line that lost its prefix and has no field of Primus, nobody can tell
            return "prim"
        return "bridge" if named == {"mega"} and self.is_bridge else named.pop()


def read_log(paths: Sequence[Path], framework: str = "auto", known: Mapping[str, int | None] | None = None) -> RunLog:
    """Return the training that the log files tell of; they may be parts (rotated, one a node) in any order.

    `framework` is one of FRAMEWORKS, or `auto`: told from the lines. `known` is what the caller knows of the run:
    `world_size`, `global_batch_size`, `sequence_length`, `total_steps`; it fills in what the log does not say.
    Iterations keep the instantaneous value of an `X/Y` pair. Lines that are printed twice count once. What speaks
    against the run is in `problems`: an iteration without a loss, values that contradict each other, a run that stops
    early. With a `framework` that was said, a log without any iteration is such a run too.
    Raises LogFormatError where it cannot be told whose log it is, ContradictionError where the log says otherwise than
    `known`, and OSError where a file cannot be read.
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
    return whole_run(chosen, joined, reading.memory, {name: value for name, value in (known or {}).items() if value})


def holds_iterations(path: Path) -> bool:
    """Tell whether a file holds an iteration of any format; raises OSError where it cannot be read."""
    reading = _Reading()
    reading.read(path, only_look=True)
    return bool(reading.joined)


def _family(seen: Seen) -> str:
    if seen.is_from_any_rank:
        return "torchtitan"
    return "megatron" if seen.framework in ("mega", "prim") else seen.framework


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
