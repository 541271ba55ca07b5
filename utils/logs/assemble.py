"""Assemble the iterations and facts of a log into one run: figures known from elsewhere, problems, status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from utils.logs import join
from utils.logs.facts import parameter_count
from utils.logs.join import Joined
from utils.logs.run_log import Fact, IterationLine, Memory, RunLog, Step

ASKED = "asked"
"""`where` of a fact that the caller knew and the log does not contain."""
FEW_DIGITS = 4
NO_ITERATION = "no line tells of an iteration"
_OF_TOKENS = ("sequence_length", "global_batch_size", "world_size")


class LogFormatError(ValueError):
    """The files hold no training of the requested framework; the message states what they hold."""


class ContradictionError(LogFormatError):
    """The log contradicts the figures that the caller gave; the message shows both, with the line."""


def assemble_run(framework: str, joined: Joined, memory: dict[str, Memory], known: Mapping[str, int]) -> RunLog:
    """Return the run; raise ContradictionError if the log contradicts `known`."""
    iterations = joined.in_order()
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
            if framework == "hf"
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
    return RunLog(
        framework=framework,
        format=_format(framework, iterations),
        steps=steps,
        excluded=excluded,
        facts=found,
        memory=memory,
        problems=tuple(problems),
        notes=tuple(notes),
        status="nan" if nan else "oom" if "out_of_memory" in found else "failed" if problems else "ok",
        step_time_digits=digits,
    )


def _format(framework: str, iterations: Sequence[IterationLine]) -> str:
    names = " + ".join(dict.fromkeys(one.format for one in iterations))
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
    """Return SL x GBS / GPUs if all three are known."""
    facts_of_it = [found.get(name) for name in ("sequence_length", "global_batch_size", "world_size")]
    length, size, gpus = (float(fact.value) if fact else 0.0 for fact in facts_of_it)
    return length * size / gpus if length and size and gpus else None


def _check_tokens(
    bounds: tuple[float, float], per_gpu: float, found: Mapping[str, Fact], steps: Sequence[Step]
) -> None:
    """Raise ContradictionError if the lines agree with each other, but not with the figures that the caller gave."""
    if bounds[0] <= per_gpu <= bounds[1] or ASKED not in {found[name].where for name in _OF_TOKENS}:
        return
    first = next(step for step in steps if step.step_time_seconds and step.tokens_per_second_per_gpu)
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
