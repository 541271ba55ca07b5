"""compare.png: units on every axis, bars from 0, looks that need no colour, and labels that do not collide."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.text import Text
from reports import Report, axes_titled, report
from sides import run, runs

from evaluate import compare
from example import example_result

BARS = {"Throughput", "Step time", "Peak memory"}
PEAK = "memory_metrics__peak_memory_allocated_gb"


def picture(folder: Path, *results: dict[str, Any]) -> Report:
    found = report(folder, results, formats="json,png")
    assert len(found.figures) == 1
    return found


def examples(folder: Path, *changes: dict[str, Any]) -> Report:
    """Return the picture of example results, each a run of its own."""
    return picture(folder, *(example_result(**{"run": run} | change) for run, change in enumerate(changes, 1)))


def titles(found: Report) -> set[str]:
    return {axes.get_title() for axes in found.figures[0].axes} - {""}


def words(found: Report) -> str:
    return " ".join(" ".join(text.get_text().split()) for text in found.figures[0].findobj(Text))


def curves(found: Report, unit: str) -> Any:
    return next(axes for axes in found.figures[0].axes if unit in axes.get_ylabel())


def sized(factor: float, number: int, framework: str = "mega") -> dict[str, Any]:
    """Return a result whose step times and memory are `factor` times those of a usual one."""
    return run("nvd", number, factor, framework=framework, **{PEAK: 40 * min(factor, 2.0)})


def collisions(figure: Any, texts: Iterable[Any]) -> list[tuple[str, str]]:
    """Return texts that overlap or leave the figure."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [(one.get_text(), one.get_window_extent(renderer)) for one in texts if one.get_text()]
    outside = [(text, "") for text, box in boxes if box.x0 < 0 or box.x1 > figure.bbox.x1]
    return outside + [(a, b) for (a, first), (b, second) in combinations(boxes, 2) if first.overlaps(second)]


def test_every_axis_has_its_unit_and_bars_start_at_0(tmp_path: Path) -> None:
    found = examples(tmp_path, {}, {"framework": "hf"})
    assert titles(found) == BARS, "the example has no device with a known peak, so no MFU"
    panels = {title: axes_titled(found, title) for title in BARS}
    units = {title: axes.get_xlabel() for title, axes in panels.items()}
    assert units == {"Throughput": "tokens/s per GPU or rank", "Step time": "seconds", "Peak memory": "GB"}
    for axes in panels.values():
        assert axes.get_xlim()[0] == 0 and [bar.get_x() for bar in axes.patches] == [0, 0]
    assert [curves(found, unit).get_xlabel() for unit in ("step time (seconds)", "loss (nats per token)")] == [
        "step"
    ] * 2


def test_every_counted_run_has_a_dot_and_the_spread_a_line(tmp_path: Path) -> None:
    found = examples(tmp_path, {PEAK: 1.0}, {PEAK: 4.0}, {PEAK: 1.0}, {"resolved_config__tp": 4})
    axes = axes_titled(found, "Peak memory")
    line, dots = axes.lines
    # the rejected run is not drawn
    assert (list(line.get_xdata()), list(dots.get_xdata())) == ([1, 4], [1, 4, 1])
    assert len(set(dots.get_ydata())) == 3, "equal runs must not hide one another"
    assert axes.patches[0].get_width() == pytest.approx(4 ** (1 / 3)), "the geometric mean"
    facts = ("64 sequences of 128 tokens", "fp32", "1 rank", "torch 2.13.0", "2026-11-21", "aaaaaaaaaaaa")
    for fact in (*facts, "fewer than five runs: A cpu/mega (3)", "Not counted: 1 of 4"):
        assert fact in words(found)


def test_a_group_without_a_counted_run_shows_its_reasons(tmp_path: Path) -> None:
    found = examples(tmp_path, {"status": "oom", "reason": "out of memory"})
    assert "out of memory" in words(found) and found.figures[0].axes == []


def test_dash_and_mark_tell_20_systems_apart_and_colour_the_platform(tmp_path: Path) -> None:
    found = picture(tmp_path, *(sized(1 + number / 10, number + 1, f"f{number}") for number in range(20)))
    lines = curves(found, "loss").lines
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == 20
    assert len({line.get_color() for line in lines}) == 1, "one vendor"


def test_platforms_have_the_colours_of_the_page(tmp_path: Path) -> None:
    light = (ROOT / "evaluate" / "report" / "assets" / "page.css").read_text().split("@media")[0]
    for platform, result in (("nvd", run("nvd")), ("amd", run("amd")), ("cpu", example_result())):
        (line,) = curves(picture(tmp_path / platform, result), "loss").lines
        assert re.search(rf"--{platform}: (#\w+)", light)[1].lower() == to_hex(line.get_color())  # type: ignore[index]


def test_a_slow_first_step_does_not_flatten_the_steps_that_count(tmp_path: Path) -> None:
    times = run("nvd", 1)["step_times"]
    slow = run("nvd", 1, step_times=[50.0, *times[1:]])
    low, high = curves(picture(tmp_path, slow), "step time").get_ylim()
    assert 0.9 < low < min(times[10:]) < max(times[10:]) < high < 1.1


def test_a_long_curve_keeps_its_extremes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluate.report.panels.MOST_SAMPLES", 40)
    times = run("nvd", 1)["step_times"]
    odd = run("nvd", 1, step_times=[*times[:57], 1.5, *times[58:]])
    (line,) = curves(picture(tmp_path, odd), "step time").lines
    kept = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    assert len(kept) <= 41 and kept[58] == 1.5 and list(kept) == sorted(kept, key=lambda step: (step != step, step))


def test_a_panel_stays_if_one_system_has_data(tmp_path: Path) -> None:
    found = picture(tmp_path, run("nvd", 1), run("amd", 1, 0.9, gpu_info__device_name="Some other device"))
    assert titles(found) == {*BARS, "MFU, causal attention"}
    assert "unknown" in [text.get_text() for text in axes_titled(found, "MFU, causal attention").texts]


SECONDS = (0.9, 0.5, 0.99, 1.1, 4.0, 20.0)
LONG = "An accelerator with an unusually long name and a dollar $\\frac{ in it "
CROWDED: dict[str, list[dict[str, Any]]] = {
    **{
        f"steps of {factor} s": [
            sized(factor * (1 + 1e-3 * number), number, name) for number in (1, 2) for name in ("mega", "hf")
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
    assert collisions(figure, texts) == [], "also of neighbouring panels"
    for box in (legend.get_window_extent() for axes in figure.axes if (legend := axes.get_legend())):
        assert box.x1 <= figure.bbox.x1 and box.y0 >= 0
    assert name != "six verdicts" or len(figure.axes[0].texts) == len(SECONDS)


@pytest.mark.parametrize(("factor", "band"), [(0.4, "0.2"), (0.97, "0.3")])
def test_1_and_the_whole_band_are_on_the_axis_of_ratios(tmp_path: Path, factor: float, band: str) -> None:
    found = report(tmp_path, [*runs("nvd", 1.0), *runs("amd", factor)], "--band", band, formats="png")
    forest = found.figures[0].axes[0]
    (low, high), box = forest.get_xlim(), forest.patches[0].get_window_extent()
    assert low < 1 < high and forest.bbox.x0 <= box.x0 < box.x1 <= forest.bbox.x1


def test_each_group_has_its_panels_and_the_file_is_a_png_of_its_size(tmp_path: Path) -> None:
    found = examples(tmp_path, *({"model": f"model{index}"} for index in range(3)))
    assert [axes.get_title() for axes in found.figures[0].axes].count("Throughput") == 3
    assert compare.main([str(tmp_path / "in"), "--output", str(tmp_path), "--format", "png"]) in (0, 3)
    image = (tmp_path / "compare.png").read_bytes()
    width, height = struct.unpack(">II", image[16:24])
    assert image.startswith(b"\x89PNG\r\n\x1a\n") and width > 1000 and 50 < height < 65536
