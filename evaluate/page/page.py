"""compare.html: one file that opens from disk, asks for nothing from anywhere and needs JavaScript for its curves only.

The policy inside the page forbids every request, and every style and script but the two whose hash it names. Texts of
results go through `evaluate/page/markup.py`, which escapes them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template

from evaluate.metrics.metric_table import Metrics
from evaluate.page.embedded import MOST_SAMPLES, embedded, samples_a_curve
from evaluate.page.markup import Html, element, items, joined, json_block, table
from evaluate.page.metrics_section import metrics_table, with_range
from evaluate.page.verdict_cards import cards, certificates, tally
from evaluate.report import scaling
from evaluate.report.comparison import Comparison
from evaluate.report.groups import Group, Row, ratios, run_label
from evaluate.report.notes import notes
from evaluate.report.text import METHOD, SYSTEMS, not_counted, number, ratio_text, scaling_rows, verdict_of

ASSETS = Path(__file__).with_name("assets")
SCRIPTS = ("curves.js", "chart.js", "view.js", "page.js")


def page(comparison: Comparison) -> str:
    """Return the whole page."""
    style, script = _asset("page.css"), "\n".join(_asset(name) for name in SCRIPTS)
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_asset("page.html")).substitute(
        policy=policy,
        style=style,
        script=script,
        data=json_block(embedded(comparison)),
        headline=element("p", tally(comparison.judged), class_="headline") if comparison.judged else "",
        question=element("p", f"Asked beforehand: {comparison.question}.", class_="hint"),
        links=_links(comparison),
        content=joined(_content(comparison)),
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf8")


def _hash(text: str) -> str:
    """Return the source expression of Content Security Policy (W3C, CSP 3, section 2.3.1) for an inline text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _links(comparison: Comparison) -> Html:
    named = [("verdicts", "Verdicts"), *([("certificates", "Certificates")] if comparison.judged else [])]
    named += [("scaling", "Scaling")] if scaling_rows(comparison) else []
    named += [(f"group-{place}", title) for place, title in enumerate(_titles(comparison))]
    named.append(("method", "Method"))
    return items(element("a", text, href=f"#{target}") for target, text in named)


def _titles(comparison: Comparison) -> list[str]:
    """Return the titles of all groups; those that several have alike are numbered, and the setting below tells more."""
    titles = [group.key.title for group in comparison.groups]
    return [
        title if titles.count(title) == 1 else f"{title} ({titles[:place].count(title) + 1} of {titles.count(title)})"
        for place, title in enumerate(titles)
    ]


def _content(comparison: Comparison) -> Iterator[Html]:
    yield _section("verdicts", "Verdicts", cards(comparison))
    if comparison.judged:
        intro = "Did both sides do the same work? What forbids a comparison comes first, then what is unknown, then "
        intro += "what may differ."
        yield _section("certificates", "Certificates", element("p", intro, class_="hint"), certificates(comparison))
    if rows := scaling_rows(comparison):
        hint = element("p", scaling.METHOD, class_="hint")
        yield _section("scaling", "Scaling", table("Scaling over nodes", scaling.HEADER, rows), hint)
    is_thinned = samples_a_curve(comparison) is not None
    for place, (group, title) in enumerate(zip(comparison.groups, _titles(comparison), strict=True)):
        yield _section(f"group-{place}", title, *_group(group, place, comparison.figures, is_thinned))
    if general := _files(comparison):
        yield _section("files", "Files", items(general))
    yield _section("method", "Method", items(METHOD))


def _section(name: str, title: str, *content: object) -> Html:
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, *content, id=name, aria_labelledby=f"{name}-title")


def _group(group: Group, place: int, found: Mapping[int, Metrics], is_thinned: bool) -> Iterator[Html]:
    yield element("p", f"{group.key.setting}. {_circumstances(group)}.", class_="hint")
    yield element("h3", "Systems")
    rows = [(row.name, row.device, *_figures(row)) for row in group.rows]
    yield table(f"Systems: {group.key.title}", SYSTEMS, rows, numbers=2)
    yield element("p", "Mean over the counted runs (smallest\u2013largest run).", class_="hint")
    yield items(ratio_text(ratio) for ratio in ratios(group))
    if group.counted:
        yield element("h3", "Curves")
        yield element("p", _about_curves(is_thinned), class_="hint")
        needs = element("noscript", element("p", "The curves need JavaScript; every figure is in the tables."))
        yield element("div", needs, class_="curves", data_group=place)
    yield element("h3", "Metrics")
    yield metrics_table(group, found)
    if lines := notes(group):
        yield joined([element("h3", "Notes"), items(lines)])
    if refused := not_counted(group):
        cells = [(r.name, run_label(e.result), verdict_of(e), e.why_not_counted, e.path) for r, e in refused]
        header = ("System", "Run", "Status", "Reason", "File")
        title = "Results that do not count"
        yield joined([element("h3", title), table(f"{title}: {group.key.title}", header, cells)])


def _figures(row: Row) -> tuple[object, ...]:
    spreads = (row.throughput, row.step_time, row.memory, row.first_loss, row.last_loss)
    return (
        f"{len(row.counted)} of {len(row.entries)}",
        *("-" if s is None else with_range(s.mean, s.values) for s in spreads),
    )


def _about_curves(is_thinned: bool) -> str:
    said = "Runs that count. Point at a curve, or move the slider, to read all runs at a step; drag to zoom. "
    said += "Slow first steps may lie above the axis of the step time, which fits the steps that count."
    if is_thinned:
        said += f" There are too many samples to embed them all (the limit is {number(MOST_SAMPLES)}): of each stretch "
        said += "of steps the smallest and the largest value are kept, and the nearest one kept is read out. The "
        said += "result files have all."
    return said


def _circumstances(group: Group) -> str:
    results = [entry.result for entry in group.counted]
    versions = {f"{name} {v}" for one in results for name, v in (one["provenance"]["framework_versions"] or {}).items()}
    dates = sorted({one["provenance"]["started_utc"][:10] for one in results if one["provenance"]["started_utc"]})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "date unknown"
    layouts = " | ".join(sorted({row.key.layout for row in group.rows}))
    return "; ".join((layouts, ", ".join(sorted(versions)) or "versions unknown", when))


def _files(comparison: Comparison) -> list[str]:
    copies = [f"{copy.path}: same content as {first.path}, counted once" for copy, first in comparison.copies]
    return copies + [f"REJECTED {error}" for _, error in comparison.unreadable]
