"""compare.png: units on every axis, bars from 0, looks that need no colour, and labels that do not collide."""

from __future__ import annotations

import re
import struct
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from reports import Report, axes_titled, report
from sides import run

from evaluate import compare
from example import example_result

BARS = ("Throughput", "Step time", "Peak memory")
WITHOUT_MFU = {*BARS, "Steady step times", "Loss, each run"}
"""Panels of the example, whose device has no known peak and so no MFU."""
PEAK = "memory_metrics__peak_memory_allocated_gb"


def picture(folder: Path, *results: dict[str, Any], count: int = 1) -> Report:
    found = report(folder, results, formats="json,png")
    assert len(found.figures) == count
    return found


def examples(folder: Path, *changes: dict[str, Any]) -> Report:
    """Return the picture of example results, each a run of its own."""
    return picture(folder, *(example_result(**{"run": run} | change) for run, change in enumerate(changes, 1)))


def titles(found: Report) -> set[str]:
    return {axes.get_title() for axes in found.figures[0].axes} - {""}


def words(figure: Figure) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in figure.texts)


def sized(factor: float, number: int, framework: str = "mega") -> dict[str, Any]:
    """Return a result whose step times and memory are `factor` times those of a usual one."""
    return run("nvd", number, factor, framework=framework, **{PEAK: 40 * min(factor, 2.0)})


def overlapping(texts: list[Any], figure: Figure) -> list[tuple[str, str]]:
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [(one.get_text(), one.get_window_extent(renderer)) for one in texts if one.get_text()]
    return [(a, b) for (a, first), (b, second) in combinations(boxes, 2) if first.overlaps(second)]


def test_every_axis_has_its_unit_and_bars_start_at_0(tmp_path: Path) -> None:
    found = examples(tmp_path, {}, {"framework": "hf"})
    labels = {one: (axes_titled(found, one).get_xlabel(), axes_titled(found, one).get_ylabel()) for one in WITHOUT_MFU}
    assert labels == {
        "Throughput": ("tokens/s per GPU or rank", ""),
        "Step time": ("seconds", ""),
        "Peak memory": ("GB", ""),
        "Steady step times": ("seconds, axis not from 0", ""),
        "Loss, each run": ("step", "loss (nats per token)"),
    }
    for title in BARS:
        axes = axes_titled(found, title)
        assert axes.get_xlim()[0] == 0 and [bar.get_x() for bar in axes.patches] == [0, 0]


def test_every_counted_run_has_a_dot_and_the_spread_a_line(tmp_path: Path) -> None:
    found = examples(tmp_path, {PEAK: 1.0}, {PEAK: 4.0}, {PEAK: 1.0}, {"resolved_config__tp": 4})
    axes = axes_titled(found, "Peak memory")
    line, dots = axes.lines
    assert list(line.get_xdata()) == [1, 4]
    assert list(dots.get_xdata()) == [1, 4, 1], "the rejected run is not drawn"
    assert len(set(dots.get_ydata())) == 3, "equal runs must not hide one another"
    assert axes.patches[0].get_width() == pytest.approx(4 ** (1 / 3)), "the geometric mean"
    text = words(found.figures[0])
    for fact in ("64 sequences of 128 tokens", "fp32", "1 rank", "torch 2.13.0", "2026-11-21", "aaaaaaaaaaaa"):
        assert fact in text
    assert "Fewer than five runs: A has 3." in text and "Not counted: 1 of 4" in text


def test_a_group_without_a_counted_run_shows_its_reasons(tmp_path: Path) -> None:
    (figure,) = examples(tmp_path, {"status": "oom", "reason": "out of memory"}).figures
    assert "out of memory" in words(figure) and figure.axes == []


def test_hatch_dash_and_mark_tell_frameworks_apart(tmp_path: Path) -> None:
    names = ("mega", "hf", "nemo", "prim", "other")
    found = picture(tmp_path, *(sized(1 + place / 10, 1, name) for place, name in enumerate(names)))
    bars = axes_titled(found, "Throughput").patches
    assert len({bar.get_hatch() for bar in bars}) == len({bar.get_facecolor() for bar in bars}) == len(names)
    lines = axes_titled(found, "Loss, each run").lines
    assert len({line.get_linestyle() for line in lines[:4]}) == len({line.get_marker() for line in lines[:4]}) == 4
    assert len({line.get_color() for line in lines}) == 1, "one vendor"


def test_platforms_have_the_colours_of_the_page(tmp_path: Path) -> None:
    light = (ROOT / "evaluate" / "page" / "assets" / "page.css").read_text().split("@media")[0]
    for platform, result in (("nvd", run("nvd")), ("amd", run("amd")), ("cpu", example_result())):
        (line,) = axes_titled(picture(tmp_path / platform, result), "Loss, each run").lines
        assert re.search(rf"--{platform}: (#\w+)", light)[1].lower() == to_hex(line.get_color())  # type: ignore[index]


def test_many_rows_have_as_many_looks(tmp_path: Path) -> None:
    found = picture(tmp_path, *(sized(1 + number / 10, number + 1, f"f{number}") for number in range(20)))
    lines = axes_titled(found, "Loss, each run").lines
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == 20


def test_a_panel_without_data_is_left_out_and_stays_if_one_system_has_data(tmp_path: Path) -> None:
    assert titles(examples(tmp_path / "unknown", {})) == WITHOUT_MFU, "the example has no known device"
    both = [run("nvd", 1), run("amd", 1, 0.9, gpu_info__device_name="Some other device")]
    found = picture(tmp_path / "both", *both)
    assert {"MFU, causal attention"} == titles(found) - WITHOUT_MFU - {found.figures[0].axes[0].get_title()}
    assert "unknown" in [text.get_text() for text in axes_titled(found, "MFU, causal attention").texts]


@pytest.mark.parametrize("factor", [1e-4, 0.123456, 87.6543, 1e5])
def test_tick_labels_and_numbers_never_overlap(tmp_path: Path, factor: float) -> None:
    results = (sized(factor * (1 + 1e-3 * number), number, name) for number in (1, 2) for name in ("mega", "hf"))
    (figure,) = picture(tmp_path, *results).figures
    texts = []
    for axes in figure.axes:
        low, high = axes.get_xlim()
        labels = [label for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
        assert overlapping(labels, figure) == [], axes.get_title()
        texts += [*labels, *axes.get_yticklabels(), *axes.texts]
    assert overlapping(texts, figure) == [], "also of neighbouring panels"


def test_labels_of_the_verdicts_do_not_overlap(tmp_path: Path) -> None:
    results = [
        one
        for number, seconds in enumerate((0.9, 0.5, 0.99, 1.1, 4.0, 20.0))
        for run_number in (1, 2, 3)
        for one in (
            run("nvd", run_number, 1.0, model=f"m{number}"),
            run("amd", run_number, seconds, model=f"m{number}"),
        )
    ]
    (figure,) = picture(tmp_path, *results).figures
    forest = figure.axes[0]
    labels = [label for label in forest.get_xticklabels() if label.get_text()]
    assert len(labels) >= 3
    assert overlapping([*labels, *forest.get_yticklabels(), *forest.texts], figure) == []
    assert all(text.get_window_extent().x1 <= figure.bbox.x1 for text in forest.texts)


@pytest.mark.parametrize("count", [1, 40])
def test_names_and_legend_do_not_overlap_or_leave_the_figure(tmp_path: Path, count: int) -> None:
    name = "An accelerator with an unusually long name and a dollar $\\frac{ in it "
    changes = ({"gpu_info__device_name": f"{name * 2}{i}", "framework": "f" * 40} for i in range(count))
    found = examples(tmp_path, *changes)
    (figure,) = found.figures
    names, legend = axes_titled(found, "Throughput"), axes_titled(found, "Loss, each run").get_legend()
    boxes = sorted((label.get_window_extent() for label in names.get_yticklabels()), key=lambda box: box.y0)
    assert len(boxes) == count and all(box.x0 >= 0 for box in boxes)
    assert all(low.y1 <= high.y0 for low, high in zip(boxes, boxes[1:], strict=False))
    assert legend.get_window_extent().x1 <= figure.bbox.x1 and legend.get_window_extent().y0 >= 0


def test_each_group_has_its_strip_and_the_file_is_a_png_of_its_size(tmp_path: Path) -> None:
    found = examples(tmp_path, *({"model": f"model{index}"} for index in range(3)))
    assert len(found.figures[0].axes) == 3 * len(WITHOUT_MFU)
    assert compare.main([str(tmp_path / "in"), "--output", str(tmp_path), "--format", "png"]) in (0, 3)
    image = (tmp_path / "compare.png").read_bytes()
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", image[16:24])
    assert width > 1000 and 50 < height < 65536
