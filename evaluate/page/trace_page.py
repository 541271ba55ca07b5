"""trace.html and trace.json: the breakdown of one trace, or of two side by side, in a folder.

The page is one file without a script that opens from disk and makes no request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from evaluate.page import trace_parts
from evaluate.page.page import asset, environment, policy
from evaluate.report import trace_text
from evaluate.report.own_files import html_titled
from evaluate.report.tables import number
from evaluate.timing.as_json import is_trace_json
from evaluate.timing.breakdown import Breakdown
from evaluate.timing.pairing import Aligned
from utils.files import written_whole
from utils.own_files import require_apart, require_ours
from utils.results.probe_file import Probe

HTML, JSON = "trace.html", "trace.json"
TITLE = "Time of a training step"
METHOD = (
    "Times are means over the steps of the trace, which the profiler's own marks cut (ProfilerStep#).",
    "On a GPU the work of all streams counts. Where several kinds run at once, the time counts for the first of: "
    "matrix products, attention, optimizer, memory-bound and unattributed operators, communication, copies. "
    "Communication is exposed while nothing computes.",
    "A kernel has its kind by its name and by the operator that launched it; everything launched in the optimizer or "
    "in attention belongs to it.",
    "In a trace without kernels each operator of the CPU counts, without the operators inside it; the rest is idle.",
    "Rates count 2*m*n*k for a matrix product; causal attention counts half, its backward pass five products.",
    "A trace of torch.profiler also opens in https://ui.perfetto.dev, which draws each stream and thread.",
    "Recording makes a step slower: compare shares and kernels, and take the length of a step from an unprofiled run.",
)


_is_html = html_titled(TITLE)


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
        a, b = sides
        names = trace_text.side_names(a, b)
        headline = [trace_text.pair_sentence(a, b, names)]
        kinds_header, _ = trace_text.pair_headers(names)
        kinds = {"header": kinds_header, "rows": trace_text.pair_kind_rows(a, b)}
        tables = [trace_parts.differences(names, aligned, most, JSON)]
    else:
        headline = trace_text.sentences(sides[0])[:2]
        kinds = {"header": trace_text.KINDS_HEADER, "rows": trace_text.kind_rows(sides[0])}
        tables = []
    tables += [trace_parts.operators(side, probe, most, JSON) for side, probe in zip(sides, probes, strict=True)]
    return (
        environment()
        .get_template("trace.html")
        .render(
            title=TITLE,
            policy=policy(style, None),
            style=Markup(style),
            headline=headline,
            bars=trace_parts.picture(bars(sides)),
            legend=trace_parts.legend(),
            kinds=kinds,
            tables=tables,
            method=METHOD,
        )
    )


def bars(sides: Sequence[Breakdown]) -> list[trace_parts.Bar]:
    """Return a stacked bar for each side."""
    return [
        trace_parts.Bar(
            f"{trace_text.title(side)}: {number(side.step_seconds * 1e3)} ms ({side.path.name})",
            side.kinds,
        )
        for side in sides
    ]
