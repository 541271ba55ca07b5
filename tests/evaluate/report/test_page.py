"""compare.html and history.html in a browser: no request, no message, and usable by keyboard and on a phone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import browser
import pytest
from reports import report, visible
from sides import day, run, runs, write, write_days

from evaluate import history

RENDERS = True
HOSTILE = "<script>alert(1)</script>"
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[browser.Tab, Path]]:
    """A page of a faster pair with a hostile device name, a pair that is not comparable, an uncounted result."""
    results = [*runs("nvd", 1.0), *runs("amd", 0.9, gpu_info__device_name=HOSTILE)]
    results += runs("nvd", 1.01, 2, model="qwen") + runs("amd", 0.91, 2, model="qwen", resolved_config__qkv_bias=True)
    dead = {"status": "oom", "reason": f"out of memory {HOSTILE}", "gpu_info__device_name": HOSTILE}
    made = report(tmp_path_factory.mktemp("hostile"), [*results, run("amd", 9, **dead)], formats="html")
    with browser.running() as opened:
        yield opened, made.folder / "compare.html"


def test_the_page_makes_no_request_logs_nothing_and_shows_tables_and_charts(chromium: Any) -> None:
    tab, path = chromium
    tab.open(path)
    tab.value(FRAMES)
    assert (tab.requests, tab.complaints) == ([path.resolve().as_uri()], [])
    # The policy is in force: an unlisted script does not run, and nothing is fetched.
    tab.value("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))")
    assert tab.value("fetch('http://127.0.0.1:9/').then(() => 'sent', error => String(error))").startswith("TypeError")
    assert tab.value("typeof window.ran") == "undefined"
    assert len(tab.complaints) >= 2 and all("Content Security Policy" in line for line in tab.complaints)
    words = tab.value("[...document.querySelectorAll('.card .word')].map(word => word.textContent)")
    assert [word.split(maxsplit=1)[1] for word in words] == ["faster", "not comparable"]
    assert tab.value("[...document.querySelectorAll('figure svg')].every(svg => svg.getBBox().width > 100)")
    assert all(HOSTILE in tab.value(f"document.querySelector('{one}').innerText") for one in (".card", "table"))
    assert tab.value("document.scripts.length") == 2, "that of the page, and the one above that did not run"


# Contrast ratio and its least value for text: WCAG 2.2, success criterion 1.4.3.
CONTRAST = """(() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((c) => c / 255);
    const [r, g, b] = parts.map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
  };
  const found = [];
  for (const e of document.querySelectorAll("p, li, th, td, a, button, h1, h2, h3, small, span, summary")) {
    if (!e.textContent.trim()) continue;
    const pair = [light(getComputedStyle(e).color), light(behind(e))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) found.push([e.className, e.textContent.slice(0, 30), ratio]);
  }
  return found;
})()"""


def has_contrast_and_prints_dark_on_white(tab: browser.Tab, path: Path) -> None:
    for scheme in ("light", "dark"):
        tab.open(path, scheme=scheme)
        assert tab.value(CONTRAST) == []
        background = tab.value("getComputedStyle(document.body).backgroundColor")
        brightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
        assert (brightness < 64) == (scheme == "dark")
    tab.print_on(700, "dark")
    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def shows_each_formula_by_keyboard(tab: browser.Tab, _: Path) -> None:
    label = "document.activeElement.getAttribute('aria-label')"
    tab.value("document.querySelector('.figure').focus()")
    tab.value(FRAMES)  # in which the page scrolls to the figure
    assert tab.value("document.getElementById('tip').innerText") == "GBS x SL / mean steady step time / GPUs"
    assert tab.value("document.activeElement.getAttribute('aria-describedby')") == "tip"
    for key, opening in (("ArrowRight", "Throughput per GPU, B "), ("ArrowDown", "Throughput, B ")):
        tab.page.keyboard.press(key)
        assert tab.value(label).startswith(opening)
    tab.page.keyboard.press("Escape")
    assert tab.value("document.getElementById('tip').hidden")
    assert tab.value("document.querySelectorAll('.figure[tabindex=\"0\"]').length") == 2, "one tab stop for each table"
    assert tab.value("[...document.querySelectorAll('.figure')].every(figure => figure.title)")


def sorts_a_table_by_number_and_name(tab: browser.Tab, _: Path) -> None:
    first = (
        "[...document.querySelector('table').tBodies[0].rows].map(row => row.cells[0].innerText.slice(0, 1)).join('')"
    )
    click = "document.querySelectorAll('table thead th')[{}].querySelector('button').click()"
    orders = []
    for column in (4, 4, 0, 0):  # seconds of a step, and the name
        tab.value(click.format(column))
        orders.append((tab.value(first), tab.value("document.querySelector('[aria-sort]').ariaSort")))
    assert orders == [("BA", "ascending"), ("AB", "descending"), ("AB", "ascending"), ("BA", "descending")]
    assert tab.value("document.querySelectorAll('[aria-sort]').length") == 1


def copies_a_table_without_a_formula(tab: browser.Tab, _: Path) -> None:
    tab.value("document.querySelector('td').textContent = '=HYPERLINK(1), 2'")
    tab.value(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (text) => { window.copied = text; }}})"
    )
    tab.value("document.querySelector('.copy').click()")
    header, first, _ = tab.value("window.copied").split("\n")
    assert header == "System,Runs,tokens/s/GPU,min to max,Step (s),Memory (GB),First loss,Last loss"
    assert first.startswith('"A nvd/mega NVIDIA H100 80GB HBM3, host nvd-1","\'=HYPERLINK(1), 2","1,02')


@pytest.mark.full("every control of compare.html in Chromium, about 10 s")
@pytest.mark.parametrize(
    "use",
    [
        shows_each_formula_by_keyboard,
        sorts_a_table_by_number_and_name,
        copies_a_table_without_a_formula,
        has_contrast_and_prints_dark_on_white,
    ],
)
def test_the_page_can_be_used_by_keyboard_and_mouse_and_printed(
    chromium: Any, use: Callable[[browser.Tab, Path], None]
) -> None:
    tab, path = chromium
    tab.open(path)
    use(tab, path)


MARKUP = """((found = (what) => [...document.querySelectorAll(what)]) => [
  ...found("th:not([scope]), svg:not([aria-label]), [style]").map((one) => one.outerHTML.slice(0, 99)),
  ...["header", "nav", "main"].filter((tag) => !document.querySelector(tag)),
  ...found("h1, h2, h3, h4").map((one) => one.tagName[1]).filter((level, at, all) => level > 1 + +(all[at - 1] || 0)),
  ...found("[id]").map((one) => one.id).filter((id, at, all) => all.indexOf(id) !== at),
  ...found("a[href]").map((one) => one.hash.slice(1)).filter((name) => !document.getElementById(name)),
  ...found("*").flatMap((one) => one.getAttributeNames()).filter((name) => name.startsWith("on")),
])()"""
"""Faults of the markup: no label, no landmark, a level left out, a name twice, a link to nothing, a handler."""


def test_markup_has_labels_for_screen_readers_and_equal_titles_are_numbered(chromium: Any, tmp_path: Path) -> None:
    tab, path = chromium
    lone = [run("nvd", 1), run("nvd", 1, fingerprint__dataset_bin_sha256="7" * 64)]
    without_a_pair = report(tmp_path, lone, formats="html")
    for one in (path, without_a_pair.folder / "compare.html"):
        tab.open(one)
        assert tab.value(MARKUP) == []
    text = visible(without_a_pair.page)
    assert all(f"llama tiny, method equal ({n} of 2)" in text for n in (1, 2)) and "No verdict: " in text


# history.html


@pytest.fixture(scope="module")
def of_history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a slowdown, a second series with a hostile host, and a failed run."""
    folder = tmp_path_factory.mktemp("history")
    write_days(folder / "in", 10, lambda number: {"seconds": 1.06 if number >= 7 else 1.12 if number == 3 else 1.0})
    failed = day(4, platform="amd", runs=1, status="failed", reason=HOSTILE)
    write(folder / "in" / "amd", day(3, platform="amd", host=HOSTILE) + failed)
    assert history.main([str(folder / "in"), "--output", str(folder / "out")]) == 3
    return folder / "out" / "history.html"


@pytest.mark.full("history.html in Chromium, about 5 s")
def test_the_history_opens_without_a_request_or_a_message_at_any_width(chromium: Any, of_history: Path) -> None:
    opened, _ = chromium
    for width, scheme in product((1280, 360), ("light", "dark")):
        opened.open(of_history, width, scheme=scheme)
        assert (opened.requests, opened.complaints) == ([of_history.as_uri()], [])
        assert opened.value("document.documentElement.scrollWidth") <= width
    assert opened.value("document.querySelector('main p').textContent").startswith("Slower")
    labels = opened.value("[...document.querySelectorAll('figure svg')].map(svg => svg.getAttribute('aria-label'))")
    assert labels[:2] == [
        "Throughput (tokens/s/GPU) over time: 30 runs, 1 changes of level",
        "Training loop over its steps (x) over time: 30 runs, 0 changes of level",
    ]


def test_text_of_a_result_is_no_markup_of_a_history(of_history: Path) -> None:
    text = of_history.read_text()
    assert HOSTILE not in text and "&lt;script&gt;alert(1)" in text and text.count("<script") == 1
