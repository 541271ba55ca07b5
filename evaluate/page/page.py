"""compare.html: one file that opens from disk, makes no request, and needs JavaScript only for its curves.

The content security policy of the page forbids every request, and every style and script except the two whose hashes
it lists. The templates escape every text (autoescape); only what this package marks as `Markup` is inserted as it is.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from evaluate.checks.entries import Entry
from evaluate.metrics import steady
from evaluate.metrics.figures import Metrics
from evaluate.page import why_section
from evaluate.page.metrics_table import metrics_table, with_range
from evaluate.page.verdict_cards import FULL_CERTIFICATES, cards, certificates
from evaluate.report import scaling, text
from evaluate.report.comparison import Comparison
from evaluate.report.forest_plot import quantity
from evaluate.report.groups import Group, Row, ratios, run_label
from evaluate.report.notes import notes
from evaluate.report.tables import number, plain
from evaluate.verdict import places, verdicts

ASSETS = Path(__file__).with_name("assets")
SCRIPTS = ("curves.js", "chart.js", "view.js", "page.js")
MOST_SAMPLES = 200_000
"""Largest number of samples of all curves: about 3 MB of text, which a browser opens and draws without a pause."""
FEWEST_SAMPLES = 40
"""Least number of samples that are kept of a longer curve, even if the total is then above MOST_SAMPLES."""
CURVES = {"step_time_seconds": "step_times", "loss_nats_per_token": "loss_values"}


def environment(*folders: Path) -> Environment:
    """Return the template environment; it puts every text on one line, redacts secrets, and escapes it.

    `folders` hold further templates, which may import those of this package.
    """
    made = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).with_name("templates")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Markup) else plain(value),
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return made


def page(comparison: Comparison) -> str:
    """Return the whole page."""
    why = why_section.section(comparison)
    style, script = asset("page.css"), "\n".join(asset(name) for name in SCRIPTS)
    style += asset("trace.css") if why else ""
    judged = comparison.judged
    is_thinned = samples_a_curve(comparison) is not None
    are_full = len(judged) <= FULL_CERTIFICATES
    template = environment().get_template("page.html")
    return template.render(
        policy=policy(style, script),
        style=Markup(style),
        script=Markup(script),
        data=embedded(comparison),
        comparison=comparison,
        band=f"{comparison.band:.1%}",
        ranking_header=places.HEADER,
        cards=cards(judged, comparison.band),
        has_ratio=any(one.estimate for one in judged),
        quantity=quantity(judged),
        certificates=certificates(judged, are_full=are_full),
        are_certificates_full=are_full,
        scaling=scaling,
        scaling_rows=text.scaling_rows(comparison),
        why=why,
        groups=[
            _group(group, title, comparison.figures, is_thinned)
            for group, title in zip(comparison.groups, _titles(comparison), strict=True)
        ],
        files=text.file_notes(comparison),
        methodology=text.METHODOLOGY,
    )


def asset(name: str) -> str:
    """Return the text of a style or a script of this package."""
    return (ASSETS / name).read_text(encoding="utf8")


def policy(style: str, script: str | None) -> str:
    """Return the content security policy of a page with this style and script; None forbids every script."""
    allowed = f"'{_hash(script)}'" if script is not None else "'none'"
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src {allowed}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(content: str) -> str:
    """Return the source expression of Content Security Policy (W3C, CSP 3, section 2.3.1) for an inline text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _titles(comparison: Comparison) -> list[str]:
    """Return the titles of all groups; equal titles are numbered."""
    titles = [group.key.title for group in comparison.groups]
    return [
        title if titles.count(title) == 1 else f"{title} ({titles[:place].count(title) + 1} of {titles.count(title)})"
        for place, title in enumerate(titles)
    ]


def _group(group: Group, title: str, figures: Mapping[int, Metrics], is_thinned: bool) -> dict[str, Any]:
    return {
        "title": title,
        "key_title": group.key.title,
        "setting": group.key.setting,
        "conditions": group.conditions,
        "header": ("System", *text.SYSTEMS[2:]),
        "systems": [_system(row) for row in group.rows],
        "ratios": [text.ratio_text(ratio) for ratio in ratios(group)],
        "about_curves": _about_curves(is_thinned) if group.counted else "",
        "metrics": metrics_table(group, figures),
        "notes": notes(group),
        "not_counted_header": text.NOT_COUNTED,
        "not_counted": text.not_counted_rows(group),
    }


def _system(row: Row) -> tuple[Markup | str, ...]:
    count = f"{len(row.counted)} of {len(row.entries)}"
    cells = ("-" if spread is None else with_range(spread.mean, spread.values) for spread in row.spreads)
    name = Markup("{}<small>{}</small>").format(row.name, row.device)
    return (name, count, *cells)


def _about_curves(is_thinned: bool) -> str:
    lines = "Runs that count. Point at a curve, or move the slider, to read all runs at a step; drag to zoom. "
    lines += "Slow first steps may lie above the axis of the step time, which fits the steps that count."
    if is_thinned:
        limit = number(MOST_SAMPLES)
        lines += f" There are too many samples to embed them all (the limit is {limit}): of each stretch "
        lines += "of steps the smallest and the largest value are kept, and the nearest one kept is read out. The "
        lines += "result files have all."
    return lines


def embedded(comparison: Comparison) -> dict[str, Any]:
    """Return the data for the page, and for the file that its download button saves."""
    most = samples_a_curve(comparison)
    return {
        "by": comparison.by,
        "band": comparison.band,
        "target_loss": comparison.target_loss,
        "verdicts": [verdicts.as_json(judged) for judged in comparison.judged],
        "samples_kept_per_curve": most,
        "groups": [_embedded_group(group, comparison.figures, most) for group in comparison.groups],
    }


def samples_a_curve(comparison: Comparison) -> int | None:
    """Return the number of samples to keep of each curve; None to keep all."""
    runs = [entry for group in comparison.groups for entry in group.counted]
    most = max(FEWEST_SAMPLES, MOST_SAMPLES // max(1, len(CURVES) * len(runs)))
    return most if any(len(entry.result["steps"]) > most for entry in runs) else None


def thinned(steps: Sequence[int], values: Sequence[float | None], most: int | None) -> dict[str, list[Any]]:
    """Return at most `most` samples (None: all): the smallest and the largest of each stretch of steps, in order.

    Extremes survive, so a single slow step stays visible. Unknown values are left out.
    """
    known = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
    if most is not None and len(known) > most:
        stretches = max(1, most // 2)
        ends = [len(known) * number // stretches for number in range(stretches + 1)]
        parts = [known[start:end] for start, end in zip(ends, ends[1:], strict=False)]
        kept = [sorted({min(part, key=lambda s: s[1]), max(part, key=lambda s: s[1])}) for part in parts]
        known = [sample for part in kept for sample in part]
    return {"step": [step for step, _ in known], "value": [float(f"{value:.6g}") for _, value in known]}


def _embedded_group(group: Group, metrics: Mapping[int, Metrics], most: int | None) -> dict[str, Any]:
    return {
        "title": group.key.title,
        "setting": group.key.setting,
        "rows": [_embedded_row(row, metrics, most) for row in group.rows if row.counted],
    }


def _embedded_row(row: Row, metrics: Mapping[int, Metrics], most: int | None) -> dict[str, Any]:
    return {
        "letter": row.letter,
        "name": row.name,
        "device": row.device,
        "platform": row.key.platform,
        "framework": row.key.framework,
        "runs": [_embedded_run(entry, metrics[id(entry)], most) for entry in row.counted],
    }


def _embedded_run(entry: Entry, found: Metrics, most: int | None) -> dict[str, Any]:
    result, part = entry.result, steady.of_result(entry.result)
    return {
        "label": run_label(result),
        "file": plain(entry.path),
        "first_steps_left_out": result["steps"][part.first] - 1 if part else 0,
        "metrics": {name: {"value": figure.value, "unit": figure.unit} for name, figure in found.items()},
        **{name: thinned(result["steps"], result[key], most) for name, key in CURVES.items()},
    }
