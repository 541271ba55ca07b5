"""Reader of training logs: `read_log` reads every format that docs/logs.md names into one form.

A log is read once, line by line; memory use does not grow with its size. Its iterations and facts are then assembled
into one run: figures known from elsewhere, problems, status. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from utils.logs import join
from utils.logs.events import FILE_NAME, event_steps
from utils.logs.facts import allocator_memory, facts_of, parameter_count
from utils.logs.iterations import HuggingFaceDicts, iterations, our_steps, titan_steps
from utils.logs.join import Joined
from utils.logs.lines import (
    BRIDGE,
    FRAMEWORKS,
    HF,
    MEGA,
    PRIM,
    TORCHTITAN,
    Fact,
    IterationLine,
    Line,
    Memory,
    RunLog,
    lines,
)

ASKED = "asked"
"""`where` of a fact that the caller knew and the log does not contain."""
FEW_DIGITS = 4
_OF_BRIDGE = ("mem-max-allocated-gigabytes", "MODEL_TFLOP/s/GPU")
"""Words that only Megatron Bridge prints."""
NO_ITERATION = "no line tells of an iteration"
_OF_TOKENS = ("sequence_length", "global_batch_size", "world_size")


class LogFormatError(ValueError):
    """The files hold no training of the requested framework; the message states what they hold."""


class ContradictionError(LogFormatError):
    """The log contradicts the figures that the caller gave; the message shows both, with the line."""


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
        # what stands before it, such as the time of day, differs between the copies
        content = line.text[max(0, line.text.find("iteration")) :]
        if content == self._before and line.is_whole:
            return
        self._before = content
        for read in self._formats:
            for iteration in read(line):
                self.add(iteration)
        for name, value in facts_of(line):
            self.facts.setdefault((name, value), Fact(value, line.where))
        self._keep_largest(allocator_memory(line))
        self.is_bridge = self.is_bridge or any(word in line.text for word in _OF_BRIDGE)

    def add(self, iteration: IterationLine) -> None:
        """Add an iteration to its family."""
        self.joined.setdefault(_family(iteration), Joined()).add(iteration)
        self._keep_largest(iteration.memory)
        # a million iterations would hold a million figures of which one counts
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

    def _keep_largest(self, figures: Iterable[Memory]) -> None:
        for memory in figures:
            largest = self.memory.get(memory.meaning)
            if largest is None or memory.gb > largest.gb:
                self.memory[memory.meaning] = memory

    def framework(self, family: str) -> str:
        """Return the framework that printed the lines of a family."""
        named = {iteration.framework for iteration in self.joined[family].by_number.values()}
        if PRIM in named:  # a line that lost its prefix and has no field of Primus looks like Megatron's
            return PRIM
        # its iterations are Megatron's; other lines of the log tell it
        if named == {MEGA} and self.is_bridge:
            return BRIDGE
        return named.pop()


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
    for (name, _), fact in reading.facts.items():
        joined.note(name, fact.value, fact.where)
    if framework == "auto":
        framework = reading.framework(family)
    given = {name: value for name, value in (known or {}).items() if value}
    return _assemble(framework, joined, reading.memory, given)


def holds_iterations(path: Path) -> bool:
    """Return True if a file holds an iteration of any format; raise OSError if it cannot be read."""
    reading = _Reading()
    reading.read(path, stop_early=True)
    return bool(reading.joined)


def _family(iteration: IterationLine) -> str:
    if iteration.is_from_any_rank:
        return TORCHTITAN
    return "megatron" if iteration.framework in (MEGA, PRIM) else iteration.framework


def _choose(framework: str, reading: _Reading, names: str) -> str:
    frameworks = {family: reading.framework(family) for family in reading.joined}
    if not frameworks:
        if framework != "auto":
            return framework
        raise LogFormatError(f"{names}: {NO_ITERATION}; is it the log of a training? docs/logs.md names the formats")
    fitting = []
    for family, name in frameworks.items():
        # Bridge prints Megatron's line, and is told apart only where the log holds more of it
        if framework in ("auto", name) or {framework, name} == {MEGA, BRIDGE}:
            fitting.append(family)
    if len(fitting) == 1:
        return fitting[0]
    held = " and ".join(sorted(set(frameworks.values())))
    if fitting:
        raise LogFormatError(f"{names}: iterations of {held} in several formats; say which with --framework")
    raise LogFormatError(f"{names}: no iteration of {framework}, but of {held}; say --framework auto")


def _assemble(framework: str, joined: Joined, memory: dict[str, Memory], known: Mapping[str, int]) -> RunLog:
    """Return the run; raise ContradictionError if the log contradicts `known`."""
    iterations = [joined.by_number[number] for number in sorted(joined.by_number)]
    facts = dict(joined.facts)
    notes = []
    count = parameter_count(facts)
    if count is not None:
        facts["parameter_count"] = count
    _contradict(facts, known)
    for name, value in known.items():
        facts.setdefault(name, Fact(value, ASKED))
    per_gpu = _tokens_per_gpu(facts)
    if per_gpu and join.fill_times(iterations, per_gpu):
        notes.append("step times are worked out from the printed tokens/s/GPU: SL x GBS / GPUs / tokens/s/GPU")
    steps, excluded = join.to_steps(iterations)
    bounds, disagreeing = join.tokens_of_a_step(steps)
    length = join.derived_sequence_length(joined.facts, bounds)
    if length:
        _contradict({"sequence_length": length}, known)
        facts.setdefault("sequence_length", length)
    per_gpu = _tokens_per_gpu(facts)
    if per_gpu and bounds:
        # known figures give one value, where the lines alone give a range
        _check_tokens(bounds, per_gpu, facts, steps)
        disagreeing = join.disagreements(steps, per_gpu, per_gpu)
    nan = join.not_finite(iterations)
    problems = nan + _ends(facts)
    if framework == HF:
        problems += _hugging_face(iterations, facts.get("total_steps"))
    else:
        problems += join.gaps(iterations, facts.get("total_steps"))
    if not iterations:
        problems.append(NO_ITERATION)
    problems += joined.conflicts + join.troubles(iterations) + join.without_time(steps) + disagreeing
    for number, reason in excluded.items():
        notes.append(f"iteration {number} is left out: {reason}")
    digits = [iteration.step_time.digits for iteration in iterations if iteration.step_time]
    if digits and min(digits) <= FEW_DIGITS:
        notes.append(f"step times are known to {min(digits)} significant digits, as the log prints them")
    names = " + ".join(dict.fromkeys(iteration.format for iteration in iterations))
    if framework == BRIDGE:
        names = names.replace("Megatron-LM", "Megatron Bridge")
    if nan:
        status = "nan"
    elif "out_of_memory" in facts:
        status = "oom"
    else:
        status = "failed" if problems else "ok"
    return RunLog(
        framework=framework,
        format=names,
        steps=steps,
        excluded=excluded,
        facts=facts,
        memory=memory,
        problems=tuple(problems),
        notes=tuple(notes),
        status=status,
    )


def _contradict(facts: Mapping[str, Fact], known: Mapping[str, int]) -> None:
    wrong = []
    for name, value in known.items():
        fact = facts.get(name)
        if fact and fact.value != value:
            wrong.append(f"{fact.where}: {name.replace('_', ' ')} is {fact.value} in the log and {value} was said")
    if wrong:
        raise ContradictionError("; ".join(wrong) + "; correct what was said, or name the log of that run")


def _tokens_per_gpu(facts: Mapping[str, Fact]) -> float | None:
    """Return SL x GBS / GPUs if all three are known."""
    if not all(name in facts and facts[name].value for name in _OF_TOKENS):
        return None
    length, size, gpus = (float(facts[name].value) for name in _OF_TOKENS)
    return length * size / gpus


def _check_tokens(
    bounds: tuple[float, float], per_gpu: float, facts: Mapping[str, Fact], steps: Sequence[IterationLine]
) -> None:
    """Raise ContradictionError if the lines agree with each other, but not with the figures that the caller gave."""
    if bounds[0] <= per_gpu <= bounds[1] or ASKED not in {facts[name].where for name in _OF_TOKENS}:
        return
    first, _, _ = join.with_both(steps)[0]
    given = ", ".join(f"{name.replace('_', ' ')} {facts[name].value}" for name in _OF_TOKENS)
    raise ContradictionError(
        f"{first.where}: tokens/s/GPU x time gives {sum(bounds) / 2:.1f} tokens a step and GPU in the log, and {given} "
        f"give {per_gpu:.1f}; correct what was said, or name the log of that run"
    )


def _ends(facts: Mapping[str, Fact]) -> list[str]:
    """Return the problems of a run that ended with an error."""
    problems = []
    if "out_of_memory" in facts:
        out = facts["out_of_memory"]
        problems.append(f"{out.value} ({out.where})")
    code = facts.get("exit_code")
    if code and code.value != 0:
        problems.append(f"the launcher exited with code {code.value} ({code.where})")
    return problems


def _hugging_face(iterations: Sequence[IterationLine], total: Fact | None) -> list[str]:
    problems = ["the Hugging Face Trainer prints no time of a step; run it with our train_hf for that"]
    if total is not None and total.value != len(iterations):
        problems.append(f"{len(iterations)} losses of {total.value} steps: it does not print of which")
    return problems
