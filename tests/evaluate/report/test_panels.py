"""Panels of compare.png: labels do not collide whatever the size of the numbers, and no panel is without data."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from sides import side

from evaluate.checks.entries import Entry, Findings, Loaded
from evaluate.report.comparison import Comparison, compare
from evaluate.report.plots import draw
from example import example_result

PANELS = {"Throughput", "Step time", "Peak memory", "MFU, causal attention", "Steady step times", "Loss, each run"}


def compared(*results: dict[str, Any]) -> Comparison:
    """Return a comparison of results as they are, whatever the rules would say of them."""
    entries = tuple(Entry(Path(f"{number}.json"), one, Findings()) for number, one in enumerate(results))
    return compare(Loaded(entries, ()), [Path("output")])


def drawn(comparison: Comparison) -> tuple[Any, Any]:
    """Return the figure and the renderer that measures its texts, with the settings of the picture."""
    with mpl.rc_context({"text.parse_math": False, "font.size": 9}):
        figure = draw(comparison)
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
    return figure, renderer


def sized(factor: float, run: int, framework: str = "mega") -> dict[str, Any]:
    """Return a result whose step times and memory are `factor` times those of the example."""
    result = example_result(run=run, framework=framework)
    result["step_times"] = [factor * seconds * (1 + 1e-3 * run) for seconds in result["step_times"]]
    result["memory_metrics"]["peak_memory_allocated_gb"] *= factor
    return result


def overlapping(texts: list[Any], renderer: Any) -> list[tuple[str, str]]:
    boxes = [(one.get_text(), one.get_window_extent(renderer)) for one in texts if one.get_text()]
    return [(a, b) for (a, first), (b, second) in combinations(boxes, 2) if first.overlaps(second)]


@pytest.mark.parametrize("factor", [1e-5, 0.123456, 87.6543, 1e7])
def test_tick_labels_and_numbers_never_overlap(factor: float) -> None:
    figure, renderer = drawn(compared(*(sized(factor, run, name) for run in (1, 2) for name in ("mega", "hf"))))
    texts = []
    for axes in figure.axes:
        low, high = axes.get_xlim()
        labels = [label for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
        assert overlapping(labels, renderer) == [], axes.get_title()
        texts += [*labels, *axes.get_yticklabels(), *axes.texts]
    assert overlapping(texts, renderer) == [], "also of neighbouring panels"


def test_labels_of_the_verdicts_do_not_overlap() -> None:
    sizes = (0.9, 0.5, 0.99, 1.1, 4.0, 20.0)
    entries = [
        found
        for number, seconds in enumerate(sizes)
        for found in (*side("nvd", 1.0, 3, model=f"m{number}"), *side("amd", seconds, 3, model=f"m{number}"))
    ]
    for shown in (entries, entries[:6]):
        figure, renderer = drawn(replace(compare(Loaded(tuple(shown), ()), [Path("output")]), groups=()))
        forest = figure.axes[0]
        labels = [label for label in forest.get_xticklabels() if label.get_text()]
        assert len(labels) >= 3
        assert overlapping([*labels, *forest.get_yticklabels(), *forest.texts], renderer) == []
        assert all(text.get_window_extent(renderer).x1 <= figure.bbox.x1 for text in forest.texts)


def test_a_panel_without_data_is_left_out_and_the_others_close_up() -> None:
    titles = {axes.get_title() for axes in draw(compared(sized(1.0, 1))).axes}
    assert titles == PANELS - {"MFU, causal attention"}, "the example has no known device"
    lost = sized(1.0, 1) | {"loss_values": [None] * 10}
    titles = {axes.get_title() for axes in draw(compared(lost)).axes}
    assert titles == PANELS - {"MFU, causal attention", "Loss, each run"}
    known = compare(Loaded(tuple(side("nvd", 1.0, 3)), ()), [Path("output")])
    assert {axes.get_title() for axes in draw(known).axes} == PANELS


def test_a_panel_stays_if_one_of_its_systems_has_data() -> None:
    mixed = [*side("nvd", 1.0, 3), *side("amd", 0.9, 3, gpu_info__device_name="Some other device")]
    figure = draw(compare(Loaded(tuple(mixed), ()), [Path("output")]))
    (panel,) = (axes for axes in figure.axes if axes.get_title() == "MFU, causal attention")
    assert "unknown" in [text.get_text() for text in panel.texts]


def test_curves_of_one_vendor_differ_in_line_style_and_marker() -> None:
    names = ("mega", "hf", "nemo", "bridge")
    several = [found for number, name in enumerate(names) for found in side("nvd", 1 + number / 10, 3, framework=name)]
    figure = draw(compare(Loaded(tuple(several), ()), [Path("output")]))
    (panel,) = (axes for axes in figure.axes if axes.get_title() == "Loss, each run")
    assert len({line.get_color() for line in panel.lines}) == 1, "one vendor"
    assert len({line.get_linestyle() for line in panel.lines}) == len(names)
    assert len({line.get_marker() for line in panel.lines}) == len(names)


def test_many_rows_have_as_many_looks() -> None:
    rows = [sized(1 + number / 10, number + 1, f"f{number}") for number in range(20)]
    (panel,) = (axes for axes in draw(compared(*rows)).axes if axes.get_title() == "Loss, each run")
    assert len({(line.get_linestyle(), line.get_marker()) for line in panel.lines}) == 20
