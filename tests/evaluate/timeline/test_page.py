"""history.html in a real browser: offline, without a message, at any width and in both colour schemes."""

from __future__ import annotations

from pathlib import Path

import browser
import pytest
from days import day, write_days
from matplotlib.figure import Figure
from reports import save

from evaluate.bundle import as_input
from evaluate.history import main
from evaluate.timeline import history, panels

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a slowdown, a second series with a hostile host, and a failed run."""
    folder = tmp_path_factory.mktemp("history")
    write_days(folder / "in", 10, lambda n: {"seconds": 1.06 if n >= 7 else 1.12 if n == 3 else 1.0})
    save(folder / "in" / "amd", *day(3, platform="amd", host=HOSTILE))
    failed = day(4, platform="amd", runs=1, status="failed", reason=HOSTILE)[0]
    save(folder / "in" / "failed", failed)
    assert main([str(folder / "in"), "--output", str(folder / "out")]) == 3
    return folder / "out" / "history.html"


@pytest.mark.full("history.html in Chromium, about 5 s")
def test_the_page_opens_without_a_request_or_a_message_at_any_width(made: Path) -> None:
    browser.check_views(made)
    with browser.running() as opened:
        opened.open(made, 360)
        assert opened.value("document.querySelector('main p').textContent").startswith("Slower")
        labels = opened.value("[...document.querySelectorAll('figure svg')].map(svg => svg.getAttribute('aria-label'))")
        assert labels[:2] == [
            "Throughput (tokens/s/GPU) over time: 30 runs, 1 changes of level",
            "Peak memory (GB) over time: 30 runs, 0 changes of level",
        ]


def test_a_panel_has_a_point_a_run_hollow_on_an_odd_day_and_lower_where_it_is_slower(tmp_path: Path) -> None:
    write_days(tmp_path, 10, lambda n: {"seconds": 1.06 if n >= 7 else 1.12 if n == 3 else 1.0})
    (story,) = history.build(as_input.load([tmp_path]), [tmp_path]).stories
    axes = Figure().subplots()
    panels.tracks(story)[0].draw(axes)
    points = {line.get_markerfacecolor(): len(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"}
    assert sorted(points.values()) == [3, 27] and points["#ffffff"] == 3
    before, after = (line.get_ydata()[0] for line in axes.lines if line.get_marker() == "_")
    assert after < before and [text.get_text() for text in axes.texts] == ["A"]


def test_text_of_a_result_is_no_markup(made: Path) -> None:
    text = made.read_text()
    assert HOSTILE not in text and "&lt;script&gt;alert(1)" in text
    assert text.count("<script") == 1
