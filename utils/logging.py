"""Logs of other people's trainings, read into one form: `read_log` knows every format that docs/logs.md names.

A log is read once, line by line, in memory that does not grow with it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from utils import log_join
from utils.log_events import FILE_NAME, event_steps
from utils.log_facts import allocator_memory, facts, is_bridge, parameter_count
from utils.log_iterations import iterations
from utils.log_join import Joined
from utils.log_lines import Line, lines
from utils.log_run import Fact, RunLog, Step
from utils.log_seen import Memory, Seen
from utils.log_titan import titan_steps
from utils.log_trainers import HuggingFaceDicts, our_steps

__all__ = [
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
ASKED = "asked"
"""Where a fact stands that the caller knew and the log does not say."""
FEW_DIGITS = 4
NO_ITERATION = "no line tells of an iteration"


class LogFormatError(ValueError):
    """Files that hold no training, or not one of the framework that was asked for; the message says what they hold."""


class ContradictionError(LogFormatError):
    """A log that says otherwise than its reader; the message shows both, with the line."""


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
    return _run(chosen, joined, reading.memory, {name: value for name, value in (known or {}).items() if value})


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


def _run(framework: str, joined: Joined, memory: dict[str, Memory], known: Mapping[str, int]) -> RunLog:
    seen = joined.seen()
    found, notes = dict(joined.facts), []
    if (count := parameter_count(found)) is not None:
        found["parameter_count"] = count
    _contradict(found, known)
    for name, value in known.items():
        found.setdefault(name, Fact(value, ASKED))
    per_gpu = _tokens_per_gpu(found)
    if per_gpu and log_join.fill_times(seen, per_gpu):
        notes.append("step times are worked out from the printed tokens/s/GPU: SL x GBS / GPUs / tokens/s/GPU")
    steps, excluded = log_join.to_steps(seen)
    bounds, disagreeing = log_join.tokens_of_a_step(steps)
    if derived := log_join.derived_sequence_length(joined.facts, bounds):
        _contradict({"sequence_length": derived}, known)
        found.setdefault("sequence_length", derived)
    per_gpu = _tokens_per_gpu(found)
    if per_gpu and bounds:
        _check_tokens(bounds, per_gpu, found, steps)
        disagreeing = log_join.disagreements(steps, per_gpu, per_gpu)
    nan = log_join.not_finite(seen)
    total = found.get("total_steps")
    problems = [
        *nan,
        *_ends(found),
        *(
            _hugging_face(seen, total)
            if framework == "hf"
            else log_join.gaps(seen, int(total.value) if total else None)
        ),
        *([] if seen else [NO_ITERATION]),
        *joined.conflicts,
        *log_join.troubles(seen),
        *log_join.without_time(steps),
        *disagreeing,
    ]
    digits = min((one.step_time.digits for one in seen if one.step_time), default=None)
    notes += [f"iteration {number} is left out: {why}" for number, why in excluded.items()]
    if digits is not None and digits <= FEW_DIGITS:
        notes.append(f"step times are known to {digits} significant digits, as the log prints them")
    return RunLog(
        framework=framework,
        format=_format(framework, seen),
        steps=steps,
        excluded=excluded,
        facts=found,
        memory=memory,
        problems=tuple(problems),
        notes=tuple(notes),
        status="nan" if nan else "oom" if "out_of_memory" in found else "failed" if problems else "ok",
        step_time_digits=digits,
    )


def _format(framework: str, seen: Sequence[Seen]) -> str:
    names = " + ".join(dict.fromkeys(one.format for one in seen))
    return names.replace("Megatron-LM", "Megatron Bridge") if framework == "bridge" else names


def _contradict(found: Mapping[str, Fact], known: Mapping[str, int]) -> None:
    wrong = [
        f"{found[name].where}: {name.replace('_', ' ')} is {found[name].value} in the log and {value} was said"
        for name, value in known.items()
        if name in found and found[name].value != value
    ]
    if wrong:
        raise ContradictionError("; ".join(wrong) + "; correct what was said, or name the log of that run")


def _tokens_per_gpu(found: Mapping[str, Fact]) -> float | None:
    """Return SL x GBS / GPUs where all three are known."""
    facts_of_it = [found.get(name) for name in ("sequence_length", "global_batch_size", "world_size")]
    length, size, gpus = (float(fact.value) if fact else 0.0 for fact in facts_of_it)
    return length * size / gpus if length and size and gpus else None


def _check_tokens(
    bounds: tuple[float, float], per_gpu: float, found: Mapping[str, Fact], steps: Sequence[Step]
) -> None:
    """Raise ContradictionError where the lines agree with each other, but not with what was said beside them."""
    if bounds[0] <= per_gpu <= bounds[1] or ASKED not in {found[name].where for name in _OF_TOKENS}:
        return
    first = next(step for step in steps if step.step_time_seconds and step.tokens_per_second_per_gpu)
    said = ", ".join(f"{name.replace('_', ' ')} {found[name].value}" for name in _OF_TOKENS)
    raise ContradictionError(
        f"{first.where}: tokens/s/GPU x time gives {sum(bounds) / 2:.1f} tokens a step and GPU in the log, and {said} "
        f"give {per_gpu:.1f}; correct what was said, or name the log of that run"
    )


_OF_TOKENS = ("sequence_length", "global_batch_size", "world_size")


def _ends(found: Mapping[str, Fact]) -> list[str]:
    """Return what the log says of a bad end."""
    problems = []
    if out := found.get("out_of_memory"):
        problems.append(f"{out.value} ({out.where})")
    if (code := found.get("exit_code")) and code.value != 0:
        problems.append(f"the launcher exited with code {code.value} ({code.where})")
    return problems


def _hugging_face(seen: Sequence[Seen], total: Fact | None) -> list[str]:
    problems = ["the Hugging Face Trainer prints no time of a step; run it with our train_hf for that"]
    if total is not None and total.value != len(seen):
        problems.append(f"{len(seen)} losses of {total.value} steps: it does not print of which")
    return problems
