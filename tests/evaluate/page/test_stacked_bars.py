"""Coordinates of stacked bars: one axis from 0, parts in the order of the kinds, marks at their values."""

from __future__ import annotations

import re

import pytest
from explained import kinds

from evaluate.page import stacked_bars
from evaluate.page.page import ASSETS
from evaluate.report.kind_bars import COLOURS, Bar
from utils.kinds import IDLE


def test_lengths_share_one_scale_that_the_longest_mark_sets():
    # 50 ms and 100 ms, and an interval that ends at 125 ms: 1000 units are 125 ms, so 8 units a millisecond
    short = Bar("short", kinds(matmul=30, idle=20), 0.05)
    long = Bar("long", kinds(matmul=100), 0.1, low=0.075, high=0.125, has_mark=True)
    picture = stacked_bars.picture([short, long])
    first, second = picture["rows"]
    assert [(part["kind"], part["x"], part["width"]) for part in first["parts"]] == [
        ("matmul", "0.00", "240.00"),
        ("idle", "240.00", "160.00"),
    ]
    assert second["parts"][0]["width"] == "800.00"
    assert (second["mark"], second["whisker"]) == ("800.00", ("600.00", "1000.00"))
    assert (first["mark"], first["whisker"], first["hollow"]) == (None, None, None)
    assert first["parts"][0]["title"] == "matrix products 30 ms, 60.0%"


def test_a_bar_without_kinds_is_hollow():
    (row,) = stacked_bars.picture([Bar("x", None, 0.1)])["rows"]
    assert (row["parts"], row["hollow"]) == ([], "1000.00")


def test_rows_do_not_overlap_and_a_floor_is_thinner():
    bars = [Bar("floor", kinds(matmul=1), 1e-3, is_thin=True), Bar("step", kinds(matmul=2), 2e-3)] * 2
    picture = stacked_bars.picture(bars)
    for row, after in zip(picture["rows"], picture["rows"][1:], strict=False):
        assert row["y"] + row["height"] < row["whisker_y"] < after["text_y"] - 10
    assert picture["rows"][0]["height"] < picture["rows"][1]["height"]
    assert picture["rows"][-1]["whisker_y"] < picture["axis_y"] < picture["height"]


@pytest.mark.parametrize("longest", [1e-6, 0.9, 1.0, 7.3, 156.0, 99_999.0])
def test_an_axis_has_4_to_10_round_ticks(longest):
    distance = stacked_bars.tick(longest)
    assert 3 <= longest / distance <= 10
    assert re.fullmatch(r"[125]\.0*e[-+]\d+", f"{distance:.10e}")


def test_time_below_0_is_not_drawn_and_nothing_at_all_is_no_error():
    bar = Bar("x", kinds(matmul=10, attention=-3), 0.007)
    (row,) = stacked_bars.picture([bar])["rows"]
    assert [part["kind"] for part in row["parts"]] == ["matmul"]
    assert stacked_bars.picture([Bar("empty", kinds(), 0.0)])["rows"][0]["parts"] == []


def test_page_and_picture_have_the_same_colours():
    css = (ASSETS / "trace.css").read_text(encoding="utf8")
    found = dict(re.findall(r"\.k-(\w+) \{ fill: (#\w+);", css))
    assert found == {kind: colour for kind, colour in COLOURS.items() if kind != IDLE}
    light = (ASSETS / "page.css").read_text(encoding="utf8").split("@media")[0]
    assert f"--band: {COLOURS[IDLE]};" in light, "idle time has the colour of the page's bands"
