"""The table of metrics of a group: the median over the runs of each system; each figure tells how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluate.metrics.figures import Figure
from evaluate.metrics.metric_table import Metrics, combined, sections
from evaluate.page.markup import Html, element, escaped, joined, scrolling
from evaluate.report.groups import Group, Row
from evaluate.report.text import number

MOST_SYSTEMS = 24
"""More columns than these nobody reads; compare.json has all systems."""


def metrics_table(group: Group, found: Mapping[int, Metrics]) -> Html:
    """Return the table; `found` has the metrics of each counted entry by its id."""
    rows = [row for row in group.rows if row.counted]
    if not rows:
        return element("p", "No result of this group counts, so there is nothing to work out.")
    shown = rows[:MOST_SYSTEMS]
    runs = [[found[id(entry)] for entry in row.counted] for row in shown]
    head = element("tr", element("th", "Metric", scope="col"), *map(_column, shown))
    bodies = [_section(name, keys, shown, runs) for name, keys in sections(runs).items()]
    caption = element("caption", f"Metrics: {group.key.title}", class_="unseen")
    content = element("table", caption, element("thead", head), *bodies, class_="metrics")
    hint = "Median over the runs (smallest to largest run). Point at a figure or go to it with Tab and the arrow keys: "
    hint += "it says by which formula and from which source it comes, or why it is unknown."
    if len(rows) > len(shown):
        hint += f" The first {MOST_SYSTEMS} of {len(rows)} systems are shown."
    return joined([element("p", hint, class_="hint"), scrolling(f"Metrics: {group.key.title}", content)])


def with_range(middle: float, values: Sequence[float]) -> Html:
    """Return `middle` and, small, `(smallest-largest)`; without the range where all are shown alike."""
    value, spread = _middle_and_range(middle, values)
    return joined([value, element("small", f" {spread}")]) if spread else escaped(value)


def _middle_and_range(middle: float, values: Sequence[float]) -> tuple[str, str]:
    ends = [number(min(values)), number(max(values))]
    return number(middle), "" if ends[0] == ends[1] else f"({ends[0]}\u2013{ends[1]})"


def _column(row: Row) -> Html:
    return element("th", row.name, element("small", row.device), scope="col", class_="number")


def _section(name: str, keys: Mapping[str, str], rows: Sequence[Row], runs: Sequence[Sequence[Metrics]]) -> Html:
    heading = element("tr", element("th", name, colspan=len(rows) + 1, scope="rowgroup"), class_="part")
    lines = [heading]
    for key, text in keys.items():
        figures = [[one.get(key) for one in side] for side in runs]
        unit = next((f.unit for side in figures for f in side if f is not None and f.unit), "")
        cells = [
            element("td", _figure(f"{text}, {row.name}", side), class_="number")
            for row, side in zip(rows, figures, strict=True)
        ]
        lines.append(element("tr", element("th", text, element("small", unit), scope="row"), *cells))
    return element("tbody", *lines)


def _figure(what: str, figures: Sequence[Figure | None]) -> Html:
    found = combined(figures)
    known = [figure.value for figure in figures if figure is not None and figure.value is not None]
    value = Html("unknown") if found.value is None else with_range(found.value, known)
    kind = "figure" if found.value is not None else "figure unknown"
    plain_value = "unknown" if found.value is None else " ".join(_middle_and_range(found.value, known))
    label = f"{what}: {plain_value} {found.unit}"
    return element("button", value, type="button", class_=kind, title=found.how, aria_label=label)
