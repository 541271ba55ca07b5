"""The breakdown of a trace for the terminal, and the sentences and rows that its page shows too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evaluate.report.tables import cut, number, plain, text_table
from evaluate.timing import ceiling
from evaluate.timing.breakdown import Breakdown
from evaluate.timing.pairing import Aligned
from evaluate.timing.tables import OperatorRow
from utils.kinds import COMMUNICATION, IDLE, KINDS, OVERLAPPED, PHASES, UNATTRIBUTED, WORDS
from utils.results.probe_file import Probe

MS = 1e3
WIDTH = 160
MOST_UNATTRIBUTED = 0.03
KINDS_HEADER = ("kind", "ms a step", "share")
OPERATORS_HEADER = ("operator", "kind", "sizes", "calls a step", "ms a step", "share", "TFLOP/s", "of probe", "kernel")
Side = tuple[Breakdown, Probe | None]


def title(side: Breakdown) -> str:
    """Return device and steps of a trace."""
    device = side.device_name or ("CPU" if side.is_of_host else f"device {side.device}")
    if not side.steps:
        return f"{device}, the whole trace"
    first, last = side.steps[0], side.steps[-1]
    return f"{device}, step {first}" if first == last else f"{device}, mean of steps {first} to {last}"


def sentences(side: Breakdown) -> list[str]:
    """Return what a reader should know first: length of the step, its largest parts, communication, doubts."""
    parts = sorted((kind for kind in KINDS if side.kinds[kind] > 0), key=lambda kind: -side.kinds[kind])[:3]
    said = ", ".join(f"{side.share(kind):.1%} {WORDS[kind]}" for kind in parts)
    lines = [f"A step takes {_ms(side.step_seconds)} ms: {said or 'nothing runs in it'}."]
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
        lines.append(", ".join(f"{phase} {_ms(side.phases[phase])} ms" for phase in PHASES).capitalize() + ".")
    if max(side.share(UNATTRIBUTED), side.unattributed_of_kernels) > MOST_UNATTRIBUTED:
        names = [row.name for row in side.kernels if row.kind == UNATTRIBUTED][:3]
        lines.append(f"{_unattributed(side)} could not be attributed: {'; '.join(map(cut, names))}.")
    return lines + [f"Note: {remark}." for remark in side.remarks]


def kind_rows(side: Breakdown) -> list[tuple[str, str, str]]:
    """Return a row for each kind, their sum, and the overlapped communication."""
    shares = {kind: f"{side.share(kind):.1%}" for kind in KINDS} | {UNATTRIBUTED: _unattributed(side)}
    rows = [(WORDS[kind], _ms(side.kinds[kind]), shares[kind]) for kind in KINDS]
    rows.append(("sum: the step", _ms(side.step_seconds), "100.0%"))
    rows.append(("not added: communication during computation", _ms(side.overlapped), ""))
    return rows


def operator_rows(side: Breakdown, probe: Probe | None, most: int) -> list[tuple[str, ...]]:
    """Return a row for each of the longest operators."""
    return [
        (
            cut(row.name),
            _kind_word(row.kind),
            row.work.sizes,
            number(row.count),
            _ms(row.seconds),
            f"{row.seconds / side.step_seconds:.1%}",
            "" if row.tflops is None else number(row.tflops),
            _percent(ceiling.share(row, probe)),
            cut(row.kernel),
        )
        for row in side.operators[:most]
    ]


def one(side: Breakdown, probe: Probe | None, most: int) -> str:
    """Return the report on one trace."""
    header, rows = _without_empty(OPERATORS_HEADER, operator_rows(side, probe, most))
    return "\n\n".join(
        [
            plain(f"{side.path}: {title(side)}"),
            "\n".join(map(plain, sentences(side))),
            text_table(KINDS_HEADER, kind_rows(side), WIDTH),
            f"The {len(rows)} longest of {len(side.operators)} operators:",
            text_table(header, rows, WIDTH),
        ]
    )


def pair_sentence(a: Breakdown, b: Breakdown, names: tuple[str, str]) -> str:
    """Return which side is faster by how much, and the kinds that make most of the difference."""
    difference = b.step_seconds - a.step_seconds
    if abs(difference) < 5e-4 * a.step_seconds:
        return f"{names[0]} and {names[1]} take the same time: {_ms(a.step_seconds)} ms a step."
    slower, faster = (names[1], names[0]) if difference > 0 else (names[0], names[1])
    kinds = sorted(KINDS, key=lambda kind: -abs(b.kinds[kind] - a.kinds[kind]))[:3]
    parts = ", ".join(f"{(b.kinds[k] - a.kinds[k]) * MS:+.4g} ms {WORDS[k]}" for k in kinds if b.kinds[k] != a.kinds[k])
    return (
        f"A step of {slower} takes {_ms(abs(difference))} ms longer than one of {faster} ({_ms(a.step_seconds)} ms for "
        f"{names[0]}, {_ms(b.step_seconds)} ms for {names[1]}). {names[1]} less {names[0]}: {parts}."
    )


def side_names(a: Breakdown, b: Breakdown) -> tuple[str, str]:
    """Return names of both sides: devices if they differ, else files."""
    devices = (title(a).split(",")[0], title(b).split(",")[0])
    if devices[0] != devices[1]:
        return devices
    files = (a.path.name, b.path.name)
    return files if files[0] != files[1] else (str(a.path), str(b.path))


def pair_kind_rows(a: Breakdown, b: Breakdown) -> list[tuple[str, ...]]:
    """Return a row for each kind with both sides and the difference."""
    rows = [(WORDS[k], _ms(a.kinds[k]), _ms(b.kinds[k]), _signed(b.kinds[k] - a.kinds[k])) for k in KINDS]
    rows.append(("sum: the step", _ms(a.step_seconds), _ms(b.step_seconds), _signed(b.step_seconds - a.step_seconds)))
    overlapped = (_ms(a.overlapped), _ms(b.overlapped), _signed(b.overlapped - a.overlapped))
    return [*rows, ("not added: communication during computation", *overlapped)]


def aligned_rows(aligned: Sequence[Aligned], most: int) -> list[tuple[str, ...]]:
    """Return a row for each of the largest differences."""
    return [
        (
            cut(one.family),
            _kind_word(one.kind),
            one.phase or "unknown",
            one.sizes,
            _ms(one.a.seconds) if one.a else "-",
            _ms(one.b.seconds) if one.b else "-",
            _signed(one.difference_seconds),
            _rate(one.a),
            _rate(one.b),
        )
        for one in aligned[:most]
    ]


def pair_headers(names: tuple[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the headers of the table of kinds and of the table of operators, from the names of both sides."""
    a, b = (cut(name) for name in names)
    both = (f"{a}, ms a step", f"{b}, ms a step", "difference, ms")
    return ("kind", *both), ("operator", "kind", "phase", "sizes", *both, f"{a}, TFLOP/s", f"{b}, TFLOP/s")


def pair(sides: tuple[Side, Side], aligned: Sequence[Aligned], most: int) -> str:
    """Return the report on two traces."""
    (a, _), (b, _) = sides
    kinds_header, header = pair_headers(side_names(a, b))
    shown, rows = _without_empty(header, aligned_rows(aligned, most))
    parts = [plain(pair_sentence(a, b, side_names(a, b)))]
    parts += ["\n".join(map(plain, (f"{side.path}: {title(side)}", *sentences(side)))) for side in (a, b)]
    parts += [text_table(kinds_header, pair_kind_rows(a, b), WIDTH)]
    parts += [
        f"The {len(rows)} largest of {len(aligned)} differences between operators:",
        text_table(shown, rows, WIDTH),
    ]
    return "\n\n".join(parts)


def written(paths: Sequence[Path]) -> str:
    """Return the line that names the written files."""
    return "written: " + ", ".join(map(str, paths))


def _without_empty(header: Sequence[str], rows: list[tuple[str, ...]]) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Leave out the columns that no row fills."""
    kept = [place for place in range(len(header)) if any(row[place] for row in rows)] or list(range(len(header)))
    return [header[place] for place in kept], [tuple(row[place] for place in kept) for row in rows]


def _kind_word(kind: str) -> str:
    if kind == OVERLAPPED:
        return "overlapped communication"
    return {IDLE: "host", COMMUNICATION: "communication"}.get(kind, kind.replace("_", "-"))


def _unattributed(side: Breakdown) -> str:
    return f"{side.share(UNATTRIBUTED):.1%} of the step, {side.unattributed_of_kernels:.1%} of kernel time"


def _ms(seconds: float) -> str:
    return number(seconds * MS)


def _signed(seconds: float) -> str:
    value = round(seconds * MS, 6) or 0.0  # rounding errors of a sum are no difference
    return f"{value:+,.0f}" if abs(value) >= 1000 else f"{value:+.4g}"


def _rate(row: OperatorRow | None) -> str:
    return "" if row is None or row.tflops is None else number(row.tflops)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
