"""compare.png: units on every axis, bars from 0, a dot a run, and labels that do not collide."""

from __future__ import annotations

import struct
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from reports import Report, report
from sides import run, runs

from evaluate import compare
from evaluate.report import panels, pictures
from evaluate.timing.kinds import KINDS, WORDS
from example import example_result

PEAK = "memory_metrics__peak_memory_allocated_gb"


def picture(folder: Path, *results: dict[str, Any]) -> Report:
    found = report(folder, results, formats="json,png")
    assert len(found.figures) == 1
    return found


def examples(folder: Path, *changes: dict[str, Any]) -> Report:
    """Return the picture of example results, each a run of its own."""
    return picture(folder, *(example_result(**{"run": run} | change) for run, change in enumerate(changes, 1)))


def test_every_axis_has_its_unit_and_bars_start_at_0(tmp_path: Path) -> None:
    found = examples(tmp_path, {}, {"framework": "hf"})
    drawn = found.figures[0].axes
    units = {axes.get_title(): axes.get_xlabel() for axes in drawn if axes.get_title()}
    assert units == {"Throughput": "tokens/s per GPU or rank", "Step time": "seconds", "Peak memory": "GB"}
    for axes in (one for one in drawn if one.get_title()):
        assert axes.get_xlim()[0] == 0 and [bar.get_x() for bar in axes.patches] == [0, 0]
    labels = {axes.get_ylabel(): axes.get_xlabel() for axes in drawn}
    assert labels["step time (seconds)"] == labels["loss (nats per token)"] == "step"


def test_every_counted_run_has_a_dot_and_the_spread_a_line(tmp_path: Path) -> None:
    found = examples(tmp_path, {PEAK: 1.0}, {PEAK: 4.0}, {PEAK: 1.0}, {"resolved_config__tp": 4})
    (axes,) = (one for one in found.figures[0].axes if one.get_title() == "Peak memory")
    line, dots = axes.lines
    # the rejected run is not drawn
    assert (list(line.get_xdata()), list(dots.get_xdata())) == ([1, 4], [1, 4, 1])
    assert len(set(dots.get_ydata())) == 3, "equal runs must not hide one another"
    assert axes.patches[0].get_width() == pytest.approx(4 ** (1 / 3)), "the geometric mean"
    text = " ".join(" ".join(one.get_text().split()) for one in found.figures[0].findobj(Text))
    facts = ("64 sequences of 128 tokens", "fp32", "1 rank", "torch 2.13.0", "2026-11-21", "aaaaaaaaaaaa")
    for fact in (*facts, "fewer than five runs: A cpu/mega (3)", "Not counted: 1 of 4"):
        assert fact in text


SECONDS = (0.9, 0.5, 0.99, 1.1, 4.0, 20.0)
LONG = "An accelerator with an unusually long name and a dollar $\\frac{ in it "
CROWDED: dict[str, list[dict[str, Any]]] = {
    **{
        f"steps of {factor} s": [
            run("nvd", number, factor * (1 + 1e-3 * number), framework=name, **{PEAK: 40 * min(factor, 2.0)})
            for number in (1, 2)
            for name in ("mega", "hf")
        ]
        for factor in (1e-4, 0.123456, 87.6543, 1e5)
    },
    "six verdicts": [
        one
        for number, time in enumerate(SECONDS)
        for platform, step in (("nvd", 1.0), ("amd", time))
        for one in runs(platform, step, model=f"m{number}")
    ],
    **{
        f"{count} long names": [
            example_result(run=i + 1, gpu_info__device_name=f"{LONG * 2}{i}", framework="f" * 40) for i in range(count)
        ]
        for count in (1, 40)
    },
}


@pytest.mark.parametrize("name", CROWDED)
def test_labels_and_numbers_never_overlap_or_leave_the_figure(tmp_path: Path, name: str) -> None:
    (figure,) = picture(tmp_path, *CROWDED[name]).figures
    texts = []
    for axes in figure.axes:
        low, high = axes.get_xlim()
        labels = [label for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
        texts += [*labels, *(axes.get_yticklabels() if axes.get_title() else ()), *axes.texts]
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [(one.get_text(), one.get_window_extent(renderer)) for one in texts if one.get_text()]
    assert [text for text, box in boxes if box.x0 < 0 or box.x1 > figure.bbox.x1] == []
    overlapping = [(a, b) for (a, first), (b, second) in combinations(boxes, 2) if first.overlaps(second)]
    assert overlapping == [], "also of neighbouring panels"
    for box in (legend.get_window_extent() for axes in figure.axes if (legend := axes.get_legend())):
        assert box.x1 <= figure.bbox.x1 and box.y0 >= 0
    assert name != "six verdicts" or len(figure.axes[0].texts) == len(SECONDS)


def test_each_group_has_its_panels_and_the_file_is_a_png_of_its_size(tmp_path: Path) -> None:
    found = examples(tmp_path, *({"model": f"model{index}"} for index in range(3)))
    assert [axes.get_title() for axes in found.figures[0].axes].count("Throughput") == 3
    assert compare.main([str(tmp_path / "in"), "--output", str(tmp_path), "--format", "png"]) in (0, 3)
    image = (tmp_path / "compare.png").read_bytes()
    width, height = struct.unpack(">II", image[16:24])
    assert image.startswith(b"\x89PNG\r\n\x1a\n") and width > 1000 and 50 < height < 65536


@pytest.mark.parametrize("count", [1, 2])
def test_the_legend_of_the_kinds_of_time_lies_inside_the_picture(count: int) -> None:
    """Of a page's panel, which is a figure of its own."""
    seconds = dict.fromkeys(KINDS, 0.1)
    panel = panels.kinds([(f"AMD Instinct MI300X, step {number}: 800 ms", seconds) for number in range(count)])
    with pictures.drawing():
        figure = Figure(figsize=(pictures.WIDTH, panel.height), layout="constrained")
        panel.draw(figure.subplots())
        figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert [text.get_text()[3:] for text in legend.get_texts()] == [WORDS[kind] for kind in KINDS]
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1
    drawn = figure.axes[0].get_tightbbox()
    assert drawn is not None and not box.overlaps(drawn)
