"""The breakdown of one trace, or of two side by side, as blocks; the section "why" of a comparison has the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evaluate.report import panels
from evaluate.report.blocks import HINT, Block, Cell, Heading, Lines, Pictures, Table
from evaluate.report.panels import MS
from evaluate.report.tables import cut, number
from evaluate.timing import ceiling
from evaluate.timing.breakdown import Breakdown
from evaluate.timing.ceiling import Aligned
from evaluate.timing.kinds import (
    ATTENTION,
    COMMUNICATION,
    IDLE,
    KINDS,
    MATMUL,
    MEMORY_BOUND,
    OVERLAPPED,
    PHASES,
    UNATTRIBUTED,
    WORDS,
)
from evaluate.timing.tables import OperatorRow
from evaluate.verdict.gap import Gap
from utils.results.probe_file import Probe

TITLE = "Time of a training step"
"""Title of every trace.html."""
METHOD = (
    "Times are means over the steps of the trace, which the profiler's own marks cut (ProfilerStep#).",
    "On a GPU the work of all streams counts. Where several kinds run at once, the time counts for the first of: "
    "matrix products, attention, optimizer, memory-bound and unattributed operators, communication, copies. "
    "Communication is exposed while nothing computes.",
    "A kernel has its kind by its name and by the operator that launched it; everything launched in the optimizer or "
    "in attention belongs to it, except products with a weight in attention.",
    "A trace of torch.profiler also opens in https://ui.perfetto.dev, which draws each stream and thread.",
    "In a trace without kernels each operator of the CPU counts, without the operators inside it; the rest is idle.",
    "Rates count 2*m*n*k for a matrix product; causal attention counts half, its backward pass five products.",
    "A backward operator of a linear layer of TransformerEngine counts two products of the sizes of its forward "
    "operator, found by autograd's sequence number. No rate means that the trace does not prove the operations.",
    "Recording makes a step slower: compare shares and kernels, and take the length of a step from an unprofiled run.",
)
OPERATORS = ("operator", "kind", "sizes", "calls a step", "ms a step", "share", "TFLOP/s", "of probe", "kernel")
WORD_COLUMNS = {"operator", "kind", "phase", "sizes", "kernel"}
LIMITS = {
    MATMUL: "best matrix products",
    ATTENTION: "causal attention, forward",
    MEMORY_BOUND: "memory bandwidth (triad)",
    COMMUNICATION: "all-reduce",
}
"""Name of what a probe measured for a kind of time."""
SUM, NOT_ADDED = "sum: the step", "not added: communication during computation"
"""Rows below the kinds of time."""
LEAST_DIFFERENCE = 5e-4
"""Share of a step below which two steps take the same time."""
MOST_UNATTRIBUTED = 0.03
Names = tuple[str, str]


def one(side: Breakdown, probe: Probe | None, most: int, file: str) -> list[Block]:
    """Return the report on one trace with the `most` longest operators; `file` has all of them."""
    kinds: list[tuple[Cell, ...]] = []
    for kind in KINDS:
        share = _unattributed(side) if kind == UNATTRIBUTED else f"{side.share(kind):.1%}"
        kinds.append((WORDS[kind], _ms(side.kinds[kind]), share))
    kinds.append((SUM, _ms(side.step_seconds), "100.0%"))
    kinds.append((NOT_ADDED, _ms(side.overlapped), ""))
    return [
        Lines([f"{side.path}: {title(side)}"]),
        Lines(sentences(side)),
        _bars([side], [title(side)]),
        Table("Kinds of time", ("kind", "ms a step", "share"), kinds, 1),
        *operators(side, probe, most, file),
    ]


def pair(
    sides: Sequence[Breakdown], probes: Sequence[Probe | None], aligned: Sequence[Aligned], most: int, file: str
) -> list[Block]:
    """Return the report on two traces: their kinds, the largest differences between operators, each trace."""
    a, b = sides
    names = side_names(a, b)
    report = [*gap(names, a, b), *differences(names, aligned, most, file)]
    for side, probe in zip(sides, probes, strict=True):
        report.append(Lines([f"{side.path}: {title(side)}", *sentences(side)]))
        report += operators(side, probe, most, file)
    return report


def gap(names: Names, a: Breakdown, b: Breakdown) -> Iterator[Block]:
    """Yield the kinds of time of both sides with their differences."""
    yield Lines([_pair_sentence(a, b, names)])
    yield _bars((a, b), names)
    times = [(WORDS[kind], a.kinds[kind], b.kinds[kind]) for kind in KINDS]
    times.append((SUM, a.step_seconds, b.step_seconds))
    times.append((NOT_ADDED, a.overlapped, b.overlapped))
    rows = [(name, _ms(of_a), _ms(of_b), _signed(of_b - of_a)) for name, of_a, of_b in times]
    yield Table(f"Kinds of time: {' and '.join(names)}", ("kind", *_columns(names)), rows, 1)


def differences(names: Names, aligned: Sequence[Aligned], most: int, file: str) -> Iterator[Block]:
    """Yield the largest differences between operators of the same computation and sizes."""
    a, b = map(cut, names)
    header = ("operator", "kind", "phase", "sizes", *_columns(names), f"{a}, TFLOP/s", f"{b}, TFLOP/s")
    rows = []
    for operator in aligned[:most]:
        times = ["-" if row is None else _ms(row.seconds) for row in (operator.a, operator.b)]
        names_of_row = (cut(operator.family), _kind_word(operator.kind), operator.phase or "unknown", operator.sizes)
        difference = _signed(operator.difference_seconds)
        rows.append((*names_of_row, *times, difference, _rate(operator.a), _rate(operator.b)))
    yield Heading("Differences by operator", 3)
    line = (
        f"The {len(rows)} largest of {len(aligned)} differences between operators{_all_in(file)}. Operators with the "
        "same computation and sizes on both sides; a dash: it does not run there."
    )
    yield Lines([line], HINT)
    yield _without_empty("Differences by operator", header, rows)


def rates(names: Names, gap: Gap) -> Table:
    """Return what each machine was measured to reach, with the shares that the operators of the traces reached."""
    a, b = map(cut, names)
    header = ("Measured", "unit", a, f"{a}, reached", b, f"{b}, reached")
    rows = []
    for kind, unit, *sides in gap.rates():
        cells = [LIMITS[kind], unit]
        for limit in sides:
            if limit is None:
                cells += ["-", ""]
            else:
                cells += [number(limit.rate), _percent(limit.share) or "unknown"]
        rows.append(cells)
    return Table("What each machine was measured to reach", header, rows, 2)


def operators(side: Breakdown, probe: Probe | None, most: int, file: str) -> Iterator[Block]:
    """Yield the longest operators of a trace."""
    rows = []
    for row in side.operators[:most]:
        names = (cut(row.name), _kind_word(row.kind), row.work.sizes)
        times = (number(row.count), _ms(row.seconds), f"{row.seconds / side.step_seconds:.1%}")
        rows.append((*names, *times, _rate(row), _percent(ceiling.share(row, probe)), cut(row.kernel)))
    name = f"Operators of {side.path.name}"
    yield Heading(name, 3)
    yield Lines([f"The {len(rows)} longest of {len(side.operators)} operators{_all_in(file)}:"], HINT)
    yield _without_empty(name, OPERATORS, rows)


def title(side: Breakdown) -> str:
    """Return device and steps of a trace."""
    device = _device(side)
    if not side.steps:
        return f"{device}, the whole trace"
    first, last = side.steps[0], side.steps[-1]
    if first == last:
        return f"{device}, step {first}"
    return f"{device}, mean of steps {first} to {last}"


def sentences(side: Breakdown) -> list[str]:
    """Return what a reader should know first: length of the step, its largest parts, communication, doubts."""
    largest = sorted(KINDS, key=lambda kind: -side.kinds[kind])[:3]
    parts = [f"{side.share(kind):.1%} {WORDS[kind]}" for kind in largest if side.kinds[kind] > 0]
    lines = [f"A step takes {_ms(side.step_seconds)} ms: {', '.join(parts) or 'nothing runs in it'}."]
    total = side.kinds[COMMUNICATION] + side.overlapped
    if total > 0:
        lines.append(
            f"Communication: {_ms(total)} ms a step, {side.overlapped / total:.0%} of it during computation, "
            f"{_ms(side.kinds[COMMUNICATION])} ms exposed."
        )
    for row in side.groups:
        ranks = "" if row.ranks is None else f" ({row.ranks} ranks)"
        lines.append(f"Of {row.group}{ranks}: {_ms(row.seconds)} ms, {_ms(row.exposed_seconds)} ms exposed.")
    if any(side.phases.values()):
        phases = ", ".join(f"{phase} {_ms(side.phases[phase])} ms" for phase in PHASES)
        lines.append(f"{phases.capitalize()}.")
    if max(side.share(UNATTRIBUTED), side.unattributed_of_kernels) > MOST_UNATTRIBUTED:
        # names of kernels, so that a reader can report them
        names = [row.name for row in side.kernels if row.kind == UNATTRIBUTED][:3]
        lines.append(f"{_unattributed(side)} could not be attributed: {'; '.join(map(cut, names))}.")
    return lines + [f"Note: {remark}." for remark in side.remarks]


def side_names(a: Breakdown, b: Breakdown) -> Names:
    """Return names of both sides: devices if they differ, else files."""
    devices = (_device(a), _device(b))
    if devices[0] != devices[1]:
        return devices
    if a.path.name != b.path.name:
        return a.path.name, b.path.name
    return str(a.path), str(b.path)


def _device(side: Breakdown) -> str:
    if side.device_name:
        return side.device_name
    return "CPU" if side.is_of_host else f"device {side.device}"


def _pair_sentence(a: Breakdown, b: Breakdown, names: Names) -> str:
    """Return which side is faster by how much, and the kinds that make most of the difference."""
    difference = b.step_seconds - a.step_seconds
    # two traces of one program differ by this much
    if abs(difference) < LEAST_DIFFERENCE * a.step_seconds:
        return f"{names[0]} and {names[1]} take the same time: {_ms(a.step_seconds)} ms a step."
    faster, slower = names if difference > 0 else names[::-1]
    by_kind = {kind: b.kinds[kind] - a.kinds[kind] for kind in KINDS}
    largest = sorted(KINDS, key=lambda kind: -abs(by_kind[kind]))[:3]
    parts = [f"{by_kind[kind] * MS:+.4g} ms {WORDS[kind]}" for kind in largest if by_kind[kind]]
    return (
        f"A step of {slower} takes {_ms(abs(difference))} ms longer than one of {faster} ({_ms(a.step_seconds)} ms for "
        f"{names[0]}, {_ms(b.step_seconds)} ms for {names[1]}). {names[1]} less {names[0]}: {', '.join(parts)}."
    )


def _bars(sides: Sequence[Breakdown], names: Sequence[str]) -> Pictures:
    bars = [(f"{name}: {_ms(side.step_seconds)} ms", side.kinds) for name, side in zip(names, sides, strict=True)]
    line = "Milliseconds of one step. The parts of a bar add up to the step."
    return Pictures("", [line], lambda: [panels.kinds(bars)])


def _unattributed(side: Breakdown) -> str:
    return f"{side.share(UNATTRIBUTED):.1%} of the step, {side.unattributed_of_kernels:.1%} of kernel time"


def _columns(names: Names) -> tuple[str, str, str]:
    return f"{cut(names[0])}, ms a step", f"{cut(names[1])}, ms a step", "difference, ms"


def _without_empty(name: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table without the columns that no row fills."""
    # a trace without shapes has no sizes and no rates
    filled = [place for place in range(len(header)) if not rows or any(row[place] for row in rows)]
    shown = [header[place] for place in filled]
    cells = [[row[place] for place in filled] for row in rows]
    words = [place for place, title in enumerate(shown) if title in WORD_COLUMNS]
    return Table(name, shown, cells, 1, words)


def _all_in(file: str) -> str:
    return f" ({file} has all)" if file else ""


def _kind_word(kind: str) -> str:
    words = {OVERLAPPED: "overlapped communication", IDLE: "host", COMMUNICATION: "communication"}
    return words.get(kind, kind.replace("_", "-"))


def _ms(seconds: float) -> str:
    return number(seconds * MS)


def _signed(seconds: float) -> str:
    # rounding errors of a sum are no difference
    value = round(seconds * MS, 6) or 0.0
    return number(value, flag="+")


def _rate(row: OperatorRow | None) -> str:
    return "" if row is None or row.tflops is None else number(row.tflops)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
