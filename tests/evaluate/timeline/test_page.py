"""history.html in a real browser: offline, without a message, at any width and in both colour schemes."""

from __future__ import annotations

from pathlib import Path

import browser
import pytest
from days import day, write_days
from reports import save

from evaluate.history import main

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
@pytest.mark.skipif(browser.find() is None, reason="no Chromium on this machine")
def test_the_page_opens_without_a_request_or_a_message_at_any_width(made: Path, tmp_path: Path) -> None:
    program = browser.find()
    assert program
    browser.check_views(program, made, tmp_path / "views")
    with browser.running(program, tmp_path / "profile") as opened:
        opened.open(made, 360)
        assert opened.value("document.querySelector('h1 ~ .headline').textContent").startswith("Slower")
        # three charts for each series; a point is a run, hollow on an odd day; one change
        count = "document.querySelectorAll('.series:first-of-type {}').length"
        assert opened.value(count.format("svg")) == 3
        assert opened.value(count.format("figure:first-child circle.run")) == 27
        assert opened.value(count.format("figure:first-child circle.odd")) == 3
        assert opened.value(count.format("figure:first-child path.change")) == 1
        assert opened.value(count.format("figure:first-child path.level")) == 2
        low, high = (opened.value(f"document.querySelectorAll('path.level')[{n}].getBBox().y") for n in (1, 0))
        assert low > high  # slower is lower


def test_text_of_a_result_is_no_markup(made: Path) -> None:
    text = made.read_text()
    assert HOSTILE not in text and "&lt;script&gt;alert(1)" in text
    assert "<script" not in text
