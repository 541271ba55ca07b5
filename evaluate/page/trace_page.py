"""trace.html and trace.json: the breakdown of one trace, or of two side by side, in a folder.

The page is one file without a script that opens from disk and makes no request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from evaluate.page.page import asset, environment, policy
from evaluate.report import trace_text
from evaluate.report.tables import number
from evaluate.timing.as_json import is_trace_json
from evaluate.timing.breakdown import Breakdown
from evaluate.timing.pairing import Aligned
from utils.files import written_whole
from utils.kinds import KINDS, WORDS
from utils.own_files import content_of, require_apart, require_ours
from utils.results.probe_file import Probe

HTML, JSON = "trace.html", "trace.json"
TITLE = "Time of a training step"
WIDTH, BAR, ROW, TOP = 1000, 34, 68, 8
"""Sizes of the picture in its own units: its width, a bar's height, the height of a bar with its name."""
LETTERS = dict(zip(KINDS, "MARODHIU", strict=True)) | {"memory_bound": "B", "communication_exposed": "C"}
METHOD = (
    "Times are means over the steps of the trace, which the profiler's own marks cut (ProfilerStep#).",
    "On a GPU the work of all streams counts. Where several kinds run at once, the time counts for the first of: "
    "matrix products, attention, optimizer, memory-bound and unattributed operators, communication, copies. "
    "Communication is exposed while nothing computes.",
    "A kernel has its kind by its name and by the operator that launched it; everything launched in the optimizer or "
    "in attention belongs to it.",
    "In a trace without kernels each operator of the CPU counts, without the operators inside it; the rest is idle.",
    "Rates count 2*m*n*k for a matrix product; causal attention counts half, its backward pass five products.",
    "Recording makes a step slower: compare shares and kernels, and take the length of a step from an unprofiled run.",
)


def _is_html(path: Path) -> bool:
    return f"<title>{TITLE}</title>".encode() in content_of(path)


def require_place(folder: Path, read: Sequence[Path]) -> None:
    """Raise UnusableError if a file in the place of an output is not ours, or is an input."""
    require_apart([folder / HTML, folder / JSON], read)
    require_ours(_is_html, folder / HTML)
    require_ours(is_trace_json, folder / JSON)


def write(
    folder: Path,
    sides: Sequence[Breakdown],
    probes: Sequence[Probe | None],
    aligned: Sequence[Aligned],
    content: dict[str, Any],
    most: int,
) -> list[Path]:
    """Write both files and return their paths; raise UnusableError or OSError, and then nothing is written."""
    paths = [folder / HTML, folder / JSON]

    def is_ours(path: Path) -> bool:
        return is_trace_json(path) if path.suffix == ".json" else _is_html(path)

    with written_whole(*paths, is_ours=is_ours) as (html, data):
        html.write_text(page(sides, probes, aligned, most), encoding="utf8")
        data.write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")
    return paths


def page(sides: Sequence[Breakdown], probes: Sequence[Probe | None], aligned: Sequence[Aligned], most: int) -> str:
    """Return the whole page of one trace or of two."""
    style = asset("page.css") + asset("trace.css")
    if len(sides) == 2:
        headline = [trace_text.pair_sentence(*sides)]
        kinds_header, _ = trace_text.pair_headers(*sides)
        kinds = {"header": kinds_header, "rows": trace_text.pair_kind_rows(*sides)}
        tables = [_differences(sides, aligned, most)]
    else:
        headline = trace_text.sentences(sides[0])[:2]
        kinds = {"header": trace_text.KINDS_HEADER, "rows": trace_text.kind_rows(sides[0])}
        tables = []
    tables += [_operators(side, probe, most) for side, probe in zip(sides, probes, strict=True)]
    return (
        environment()
        .get_template("trace.html")
        .render(
            title=TITLE,
            policy=policy(style, None),
            style=Markup(style),
            headline=headline,
            bars=bars(sides),
            legend=[{"kind": kind, "letter": LETTERS[kind], "words": WORDS[kind]} for kind in KINDS],
            kinds=kinds,
            tables=tables,
            method=METHOD,
        )
    )


def bars(sides: Sequence[Breakdown]) -> dict[str, Any]:
    """Return the picture: a stacked bar for each side on one axis from 0, in milliseconds."""
    longest = max(side.step_seconds for side in sides)
    scale = WIDTH / longest
    rows = [_bar(side, place, scale) for place, side in enumerate(sides)]
    step = _tick(longest * 1e3)
    ticks = [
        {
            "x": f"{value / 1e3 * scale:.1f}",
            "text": f"{number(value)} ms",
            "anchor": "start" if not value else "end" if value / 1e3 * scale > WIDTH - 40 else "middle",
        }
        for value in (step * index for index in range(int(longest * 1e3 / step * (1 + 1e-9)) + 1))
    ]
    axis = TOP + ROW * len(sides) - 4
    label = "; ".join(f"{row['name']}: {', '.join(part['title'] for part in row['parts'])}" for row in rows)
    return {
        "width": WIDTH,
        "height": axis + 26,
        "bar": BAR,
        "rows": rows,
        "ticks": ticks,
        "axis_y": axis,
        "label": label,
    }


def _bar(side: Breakdown, place: int, scale: float) -> dict[str, Any]:
    y = TOP + ROW * place
    parts, x = [], 0.0
    for kind in KINDS:
        width = side.kinds[kind] * scale
        if width > 0:
            title = f"{WORDS[kind]} {number(side.kinds[kind] * 1e3)} ms, {side.share(kind):.1%}"
            parts.append(
                {
                    "kind": kind,
                    "letter": LETTERS[kind],
                    "title": title,
                    "x": f"{x:.2f}",
                    "width": f"{width:.2f}",
                    "middle": f"{x + width / 2:.1f}",
                    "has_room": width >= 18,
                }
            )
        x += width
    name = f"{trace_text.title(side)}: {number(side.step_seconds * 1e3)} ms ({side.path.name})"
    return {"name": name, "text_y": y + 13, "y": y + 20, "letter_y": y + 20 + BAR / 2 + 5, "parts": parts}


def _tick(longest: float) -> float:
    """Return a round distance, 1, 2 or 5 times a power of ten, that gives 4 to 10 ticks."""
    power = 10.0
    while power > longest:
        power /= 10
    while power * 10 <= longest:
        power *= 10
    return next((power * factor for factor in (0.2, 0.5, 1.0, 2.0) if longest / (power * factor) <= 6), power)


def _differences(sides: Sequence[Breakdown], aligned: Sequence[Aligned], most: int) -> dict[str, Any]:
    _, header = trace_text.pair_headers(*sides)
    rows = trace_text.aligned_rows(aligned, most)
    lines = ["Operators with the same computation and sizes on both sides; a dash: it does not run there."]
    return _table("Differences by operator", lines, header, rows, len(aligned))


def _operators(side: Breakdown, probe: Probe | None, most: int) -> dict[str, Any]:
    lines = trace_text.sentences(side)
    rows = trace_text.operator_rows(side, probe, most)
    title = f"Operators of {side.path.name}"
    return _table(title, lines, trace_text.OPERATORS_HEADER, rows, len(side.operators))


def _table(
    title: str, lines: Sequence[str], header: Sequence[str], rows: Sequence[Sequence[str]], count: int
) -> dict[str, Any]:
    words = [place for place, name in enumerate(header) if name in ("operator", "kind", "sizes", "kernel")]
    more = f"The first {len(rows)} of {count} rows; trace.json has all." if count > len(rows) else ""
    return {"title": title, "lines": lines, "header": header, "rows": rows, "words": words, "more": more}
