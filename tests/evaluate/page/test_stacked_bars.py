"""Coordinates of stacked bars: one axis from 0, parts in the order of the kinds."""

from __future__ import annotations

import re

import pytest

from evaluate.page import stacked_bars
from evaluate.report.kind_bars import Bar


def test_lengths_share_one_scale_that_the_longest_bar_sets():
    # 50 ms and 100 ms: 1000 units are 100 ms, so 10 units a millisecond
    picture = stacked_bars.picture([Bar("short", {"idle": 0.02, "matmul": 0.03}), Bar("long", {"matmul": 0.1})])
    first, second = picture["rows"]
    assert [(part["kind"], part["x"], part["width"]) for part in first["parts"]] == [
        ("matmul", "0.00", "300.00"),
        ("idle", "300.00", "200.00"),
    ]
    assert second["parts"][0]["width"] == "1000.00"
    assert first["parts"][0]["title"] == "matrix products 30 ms, 60.0%"
    assert first["y"] + first["height"] < second["text_y"] - 10
    assert second["y"] + second["height"] < picture["axis_y"] < picture["height"]


@pytest.mark.parametrize("longest", [1e-6, 0.9, 1.0, 7.3, 156.0, 99_999.0])
def test_an_axis_has_4_to_10_round_ticks(longest):
    distance = stacked_bars.tick(longest)
    assert 3 <= longest / distance <= 10
    assert re.fullmatch(r"[125]\.0*e[-+]\d+", f"{distance:.10e}")


def test_time_below_0_is_not_drawn_and_nothing_at_all_is_no_error():
    (row,) = stacked_bars.picture([Bar("x", {"matmul": 0.01, "attention": -0.003})])["rows"]
    assert [part["kind"] for part in row["parts"]] == ["matmul"]
    assert stacked_bars.picture([Bar("empty", {})])["rows"][0]["parts"] == []
