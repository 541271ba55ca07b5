from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from evaluate.checks.entries import Entry, Loaded, check_result
from evaluate.report.comparison import Comparison, compare
from evaluate.report.groups import Group
from evaluate.report.panels import PLATFORM_COLOURS, look
from evaluate.report.plots import caption, draw, png
from tests.support.example import example_result

PANELS = 5
"""Panels of the example, whose device has no known peak and so no MFU."""


def compared(*changes: dict[str, Any]) -> Comparison:
    """Return a comparison of example results without its verdicts."""
    entries = []
    for run, change in enumerate(changes, start=1):
        result = example_result(**{"run": run} | change)
        entries.append(Entry(Path(f"train_{run}.json"), result, check_result(result)))
    found = compare(Loaded(tuple(entries), ()), [Path("output")])
    return replace(found, judged=())


def groups_of(*changes: dict[str, Any]) -> tuple[Group, ...]:
    return compared(*changes).groups


def axes_titled(comparison: Comparison, title: str) -> Any:
    return next(axes for axes in draw(comparison).axes if axes.get_title() == title)


def size(image: bytes) -> tuple[int, int]:
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", image[16:24])


def test_every_axis_has_its_unit() -> None:
    labels = {axes.get_title(): (axes.get_xlabel(), axes.get_ylabel()) for axes in draw(compared({})).axes}
    assert labels == {
        "Throughput": ("tokens/s per GPU or rank", ""),
        "Step time": ("seconds", ""),
        "Peak memory": ("GB", ""),
        "Steady step times": ("seconds, axis not from 0", ""),
        "Loss, each run": ("step", "loss (nats per token)"),
    }


@pytest.mark.parametrize("title", ["Throughput", "Step time", "Peak memory"])
def test_bars_start_at_0(title: str) -> None:
    axes = axes_titled(compared({}, {"framework": "hf"}), title)
    assert axes.get_xlim()[0] == 0
    assert [bar.get_x() for bar in axes.patches] == [0, 0]


def test_every_run_has_a_dot_and_the_spread_a_line() -> None:
    memory = "memory_metrics__peak_memory_allocated_gb"
    axes = axes_titled(compared({memory: 1.0}, {memory: 4.0}, {memory: 1.0}), "Peak memory")
    line, dots = axes.lines
    assert list(line.get_xdata()) == [1, 4]
    assert list(dots.get_xdata()) == [1, 4, 1]
    assert len(set(dots.get_ydata())) == 3, "equal runs must not hide one another"
    assert axes.patches[0].get_width() == 2


def test_a_rejected_run_is_not_drawn() -> None:
    axes = axes_titled(compared({}, {"resolved_config__tp": 4}), "Throughput")
    assert list(axes.lines[1].get_xdata()) == [16384]


def test_colour_shows_the_platform_and_hatch_the_framework() -> None:
    assert len(set(PLATFORM_COLOURS.values())) == 3
    rows = groups_of(*({"framework": name} for name in ("mega", "hf", "nemo", "prim", "other")))[0].rows
    assert len({look(row)["hatch"] for row in rows}) == 5
    assert len({look(row)["facecolor"] for row in rows}) == 5


def test_loss_curves_differ_without_colour() -> None:
    axes = axes_titled(compared(*({"framework": name} for name in ("mega", "hf", "nemo"))), "Loss, each run")
    assert len({line.get_linestyle() for line in axes.lines}) == 3
    assert len({line.get_marker() for line in axes.lines}) == 3


def test_caption_has_settings_versions_date_and_missing_runs() -> None:
    (group,) = groups_of({}, {"resolved_config__tp": 4})
    text = " ".join(caption(group))
    for fact in ("64 sequences of 128 tokens", "fp32", "1 rank", "torch 2.13.0", "2026-11-21", "aaaaaaaaaaaa"):
        assert fact in text
    assert "Fewer than five runs: A has 1." in text
    assert "Not counted: 1 of 2" in text


def test_group_without_a_counted_run_shows_its_reasons() -> None:
    found = compared({"status": "oom", "reason": "out of memory"})
    assert "out of memory" in " ".join(caption(found.groups[0]))
    assert draw(found).axes == []


@pytest.mark.parametrize("count", [1, 40])
def test_names_and_legend_do_not_overlap_or_leave_the_figure(count: int) -> None:
    name = "An accelerator with an unusually long name and a dollar $\\frac{ in it "
    found = compared(*({"gpu_info__device_name": f"{name * 2}{i}", "framework": "f" * 40} for i in range(count)))
    with mpl.rc_context({"text.parse_math": False, "font.size": 9}):
        figure = draw(found)
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
    first, loss = figure.axes[0], figure.axes[-1]
    boxes = sorted((label.get_window_extent(renderer) for label in first.get_yticklabels()), key=lambda box: box.y0)
    assert len(boxes) == count
    assert all(low.y1 <= high.y0 for low, high in zip(boxes, boxes[1:], strict=False))
    assert all(box.x0 >= 0 for box in boxes)
    legend = loss.get_legend().get_window_extent(renderer)
    assert legend.x1 <= figure.bbox.x1
    assert legend.y0 >= 0


def test_dollar_sign_in_a_name_does_not_start_a_formula() -> None:
    assert size(png(compared({"gpu_info__device_name": "$\\frac{1$"})))[0] > 1000


@pytest.mark.parametrize(("groups", "panels"), [(0, 0), (1, PANELS), (3, 3 * PANELS)])
def test_each_group_has_its_strip(groups: int, panels: int) -> None:
    found = compared(*({"model": f"model{index}"} for index in range(groups)))
    assert len(draw(found).axes) == panels
    width, height = size(png(found))
    assert width > 1000
    assert 50 < height < 65536
