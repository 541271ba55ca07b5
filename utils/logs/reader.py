"""Reader of training logs: `read_log` reads every format that docs/logs.md names into one form.

A log is read once, line by line; memory use does not grow with its size. Its iterations and facts are then assembled
into one run: figures known from elsewhere, problems, status. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from utils.logs import join
from utils.logs.events import FILE_NAME, event_steps
from utils.logs.facts import allocator_memory, facts, parameter_count
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
_SAME = {MEGA, BRIDGE}
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
        self.is_bridge = self.is_bridge or any(word in line.text for word in _OF_BRIDGE)

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
            self.memory[one.meaning] = max(self.memory.get(one.meaning, one), one, key=lambda memory: memory.gb)

    def framework(self, family: str) -> str:
        """Return the framework that printed the lines of a family."""
        named = {iteration.framework for iteration in self.joined[family].by_number.values()}
        if PRIM in named:  # a line that lost its prefix and has no field of Primus looks like Megatron's
            return PRIM
        return BRIDGE if named == {MEGA} and self.is_bridge else named.pop()


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
    return _assemble(chosen, joined, reading.memory, {name: value for name, value in (known or {}).items() if value})


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
    found = {family: reading.framework(family) for family in reading.joined}
    # Bridge prints Megatron's line
    fitting = [family for family, name in found.items() if framework in ("auto", name) or {framework, name} == _SAME]
    if len(fitting) == 1:
        return fitting[0]
    if not found and framework != "auto":
        return framework
    if not found:
        raise LogFormatError(f"{names}: {NO_ITERATION}; is it the log of a training? docs/logs.md names the formats")
    held = " and ".join(sorted(set(found.values())))
    if fitting:
        raise LogFormatError(f"{names}: iterations of {held} in several formats; say which with --framework")
    raise LogFormatError(f"{names}: no iteration of {framework}, but of {held}; say --framework auto")


def _assemble(framework: str, joined: Joined, memory: dict[str, Memory], known: Mapping[str, int]) -> RunLog:
    """Return the run; raise ContradictionError if the log contradicts `known`."""
    iterations = [joined.by_number[number] for number in sorted(joined.by_number)]
    found, notes = dict(joined.facts), []
    if (count := parameter_count(found)) is not None:
        found["parameter_count"] = count
    _contradict(found, known)
    for name, value in known.items():
        found.setdefault(name, Fact(value, ASKED))
    per_gpu = _tokens_per_gpu(found)
    if per_gpu and join.fill_times(iterations, per_gpu):
        notes.append("step times are worked out from the printed tokens/s/GPU: SL x GBS / GPUs / tokens/s/GPU")
    steps, excluded = join.to_steps(iterations)
    bounds, disagreeing = join.tokens_of_a_step(steps)
    if derived := join.derived_sequence_length(joined.facts, bounds):
        _contradict({"sequence_length": derived}, known)
        found.setdefault("sequence_length", derived)
    per_gpu = _tokens_per_gpu(found)
    if per_gpu and bounds:
        _check_tokens(bounds, per_gpu, found, steps)
        disagreeing = join.disagreements(steps, per_gpu, per_gpu)
    nan = join.not_finite(iterations)
    total = found.get("total_steps")
    problems = [
        *nan,
        *_ends(found),
        *(
            _hugging_face(iterations, total)
            if framework == HF
            else join.gaps(iterations, int(total.value) if total else None)
        ),
        *([] if iterations else [NO_ITERATION]),
        *joined.conflicts,
        *join.troubles(iterations),
        *join.without_time(steps),
        *disagreeing,
    ]
    digits = min((one.step_time.digits for one in iterations if one.step_time), default=None)
    notes += [f"iteration {number} is left out: {why}" for number, why in excluded.items()]
    if digits is not None and digits <= FEW_DIGITS:
        notes.append(f"step times are known to {digits} significant digits, as the log prints them")
    names = " + ".join(dict.fromkeys(one.format for one in iterations))
    return RunLog(
        framework=framework,
        format=names.replace("Megatron-LM", "Megatron Bridge") if framework == BRIDGE else names,
        steps=steps,
        excluded=excluded,
        facts=found,
        memory=memory,
        problems=tuple(problems),
        notes=tuple(notes),
        status="nan" if nan else "oom" if "out_of_memory" in found else "failed" if problems else "ok",
    )


def _contradict(found: Mapping[str, Fact], known: Mapping[str, int]) -> None:
    wrong = [
        f"{found[name].where}: {name.replace('_', ' ')} is {found[name].value} in the log and {value} was said"
        for name, value in known.items()
        if name in found and found[name].value != value
    ]
    if wrong:
        raise ContradictionError("; ".join(wrong) + "; correct what was said, or name the log of that run")


def _tokens_per_gpu(found: Mapping[str, Fact]) -> float | None:
    """Return SL x GBS / GPUs if all three are known."""
    facts_of_it = [found.get(name) for name in ("sequence_length", "global_batch_size", "world_size")]
    length, size, gpus = (float(fact.value) if fact else 0.0 for fact in facts_of_it)
    return length * size / gpus if length and size and gpus else None


def _check_tokens(
    bounds: tuple[float, float], per_gpu: float, found: Mapping[str, Fact], steps: Sequence[IterationLine]
) -> None:
    """Raise ContradictionError if the lines agree with each other, but not with the figures that the caller gave."""
    if bounds[0] <= per_gpu <= bounds[1] or ASKED not in {found[name].where for name in _OF_TOKENS}:
        return
    first, _, _ = join.with_both(steps)[0]
    given = ", ".join(f"{name.replace('_', ' ')} {found[name].value}" for name in _OF_TOKENS)
    raise ContradictionError(
        f"{first.where}: tokens/s/GPU x time gives {sum(bounds) / 2:.1f} tokens a step and GPU in the log, and {given} "
        f"give {per_gpu:.1f}; correct what was said, or name the log of that run"
    )


def _ends(found: Mapping[str, Fact]) -> list[str]:
    """Return the problems of a run that ended with an error."""
    problems = []
    if out := found.get("out_of_memory"):
        problems.append(f"{out.value} ({out.where})")
    if (code := found.get("exit_code")) and code.value != 0:
        problems.append(f"the launcher exited with code {code.value} ({code.where})")
    return problems


def _hugging_face(iterations: Sequence[IterationLine], total: Fact | None) -> list[str]:
    problems = ["the Hugging Face Trainer prints no time of a step; run it with our train_hf for that"]
    if total is not None and total.value != len(iterations):
        problems.append(f"{len(iterations)} losses of {total.value} steps: it does not print of which")
    return problems
