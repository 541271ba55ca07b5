"""The table of metrics of a group: the median over the runs of each system; each figure tells how it was made."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from evaluate.figures import Figure
from evaluate.page_html import Html, element, escaped, joined, scrolling
from evaluate.report import number
from evaluate.summary import Group, Row

Metrics = Mapping[str, Figure]

NAMES = {
    "Speed": {
        "tokens_per_second_per_gpu": "Throughput per GPU",
        "tokens_per_second": "Throughput",
        "steps_per_second": "Steps",
    },
    "Step time": {
        "step_time": "Mean",
        "step_time_mean": "Mean",
        "step_time_median": "Median",
        "step_time_min": "Shortest",
        "step_time_max": "Longest",
        "step_time_p5": "5th percentile",
        "step_time_p95": "95th percentile",
        "step_time_cv": "Variation between steps",
    },
    "Utilisation": {
        "model_tflops_causal": "Model rate, causal attention",
        "model_tflops_full": "Model rate, full attention",
        "mfu_causal": "MFU, causal attention",
        "mfu_full": "MFU, full attention",
        "share_of_measured_matmul": "Share of the measured matrix-multiply rate",
    },
    "Memory": {
        "memory_used": "Peak memory used",
        "capacity_bf16_training": "Largest model, BF16 training",
        "capacity_fp8_training": "Largest model, FP8 training",
        "capacity_bf16_weights": "Largest model, BF16 weights",
        "capacity_fp8_weights": "Largest model, FP8 weights",
    },
    "Energy": {
        "tokens_per_joule": "Tokens for a joule",
        "tokens_per_watt_hour": "Tokens for a watt-hour",
        "tokens_per_joule_at_board_power": "Tokens for a joule at the board's power limit",
    },
    "Cost and time": {
        "tokens_per_dollar": "Tokens for the money",
        "cost_of_1T_tokens": "Cost of 1 T tokens",
        "cost_of_15T_tokens": "Cost of 15 T tokens",
        "time_to_1T_tokens": "Time to 1 T tokens",
        "time_to_15T_tokens": "Time to 15 T tokens",
        "time_to_target_loss": "Time to the target loss",
        "time_to_mlperf_target": "Time to MLPerf's 8B target",
    },
}
OTHER = "Other"
NOT_WORKED_OUT = "not worked out: the device is not known here, or cannot do it"
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
    bodies = [_section(name, keys, shown, runs) for name, keys in _sections(runs).items()]
    caption = element("caption", f"Metrics: {group.key.title}", class_="unseen")
    content = element("table", caption, element("thead", head), *bodies, class_="metrics")
    hint = "Median over the runs (smallest to largest run). Point at a figure or go to it with Tab and the arrow keys: "
    hint += "it says by which formula and from which source it comes, or why it is unknown."
    if len(rows) > len(shown):
        hint += f" The first {MOST_SYSTEMS} of {len(rows)} systems are shown."
    return joined([element("p", hint, class_="hint"), scrolling(f"Metrics: {group.key.title}", content)])


def combined(figures: Sequence[Figure | None]) -> Figure:
    """Return the median over runs with all the ways it was worked out; unknown where no run has a value."""
    known = [figure for figure in figures if figure is not None and figure.value is not None]
    ways = dict.fromkeys(figure.how for figure in known)
    missing = dict.fromkeys(
        NOT_WORKED_OUT if figure is None else figure.how for figure in figures if figure is None or figure.value is None
    )
    unit = next((figure.unit for figure in (*known, *figures) if figure is not None), "")
    if not known:
        return Figure(None, unit, "; ".join(missing))
    how = "; or ".join(ways)
    if missing:
        how += f"; unknown in {len(figures) - len(known)} of {len(figures)} runs: {'; '.join(missing)}"
    return Figure(statistics.median(figure.value for figure in known if figure.value is not None), unit, how)


def with_range(middle: float, values: Sequence[float]) -> Html:
    """Return `middle` and, small, `(smallest-largest)`; without the range where all are shown alike."""
    value, spread = _middle_and_range(middle, values)
    return joined([value, element("small", f" {spread}")]) if spread else escaped(value)


def _middle_and_range(middle: float, values: Sequence[float]) -> tuple[str, str]:
    ends = [number(min(values)), number(max(values))]
    return number(middle), "" if ends[0] == ends[1] else f"({ends[0]}\u2013{ends[1]})"


def _column(row: Row) -> Html:
    return element("th", row.name, element("small", row.device), scope="col", class_="number")


def _sections(runs: Sequence[Sequence[Metrics]]) -> dict[str, dict[str, str]]:
    present = dict.fromkeys(key for side in runs for one in side for key in one)
    if "step_time_mean" in present:
        present.pop("step_time", None)
    named = {name: {key: text for key, text in keys.items() if key in present} for name, keys in NAMES.items()}
    listed = {key for keys in NAMES.values() for key in keys}
    named[OTHER] = {key: key.replace("_", " ") for key in present if key not in listed}
    return {name: keys for name, keys in named.items() if keys}


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
