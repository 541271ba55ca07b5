"""compare.html in a real browser: no request, no console message, and usable by keyboard and on a phone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import browser
import pytest
from reports import report
from sides import STEPS, run, runs

HOSTILE = "<script>alert(1)</script>"
PHONE = 375
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))"


def hostile_page(folder: Path) -> str:
    """Return a page: a faster pair with a hostile device name, a pair that is not comparable, an uncounted result."""
    results = [*runs("nvd", 1.0), *runs("amd", 0.9, gpu_info__device_name=HOSTILE)]
    results += runs("nvd", 1.01, 2, model="qwen") + runs("amd", 0.91, 2, model="qwen", resolved_config__qkv_bias=True)
    dead = {"status": "oom", "reason": f"out of memory {HOSTILE}", "gpu_info__device_name": HOSTILE}
    return report(folder, [*results, run("amd", 9, **dead)], formats="html").page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return hostile_page(tmp_path_factory.mktemp("hostile"))


class Elements(HTMLParser):
    """Start tags and texts of a page, as the parser of the standard library reads them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory, page: str) -> Iterator[tuple[browser.Browser, Path]]:
    program = browser.find()
    if program is None:
        pytest.skip(f"no Chromium here (looked for {', '.join(browser.NAMES)}); install Debian's package chromium")
    folder = tmp_path_factory.mktemp("browser")
    path = folder / "compare.html"
    path.write_text(page, encoding="utf8")
    with browser.running(program, folder / "profile") as opened:
        yield opened, path


def test_the_page_makes_no_request_logs_nothing_and_shows_tables_and_charts(chromium: Any) -> None:
    tab, path = chromium
    for scheme in ("light", "dark"):
        tab.open(path, PHONE, scheme=scheme)
        assert tab.value("document.documentElement.scrollWidth") <= PHONE
    tab.open(path)
    tab.value(FRAMES)
    assert tab.requests == [path.resolve().as_uri()]
    assert tab.complaints == []
    # The policy is in force: an unlisted script does not run, and nothing is fetched.
    tab.value("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))")
    assert tab.value("fetch('http://127.0.0.1:9/').then(() => 'sent', error => String(error))").startswith("TypeError")
    assert tab.value("typeof window.ran") == "undefined"
    assert len(tab.complaints) >= 2 and all("Content Security Policy" in line for line in tab.complaints)
    words = tab.value("[...document.querySelectorAll('.card .word')].map(word => word.textContent)")
    assert [word.split(maxsplit=1)[1] for word in words] == ["faster", "not comparable"]
    assert tab.value("document.querySelectorAll('.card svg.forest').length") == 1
    # 3 + 3 runs of llama and 2 + 2 of qwen, each with a step time and a loss
    assert tab.value("document.querySelectorAll('.chart .curve').length") == 2 * 10
    assert tab.value("[...document.querySelectorAll('.chart .curve')].every(c => c.getTotalLength() > 100)")
    assert tab.value("[...document.querySelectorAll('.forest *')].filter(e => e.children.length).length") == 0
    headings = tab.value("[...document.querySelectorAll('h1, h2, h3')].map(heading => heading.textContent)")
    assert (
        headings.index("Verdicts")
        < headings.index("Systems")
        < headings.index("Certificates")
        < headings.index("Method")
    )
    assert "Results that do not count" in headings
    first = tab.value("document.querySelectorAll('#certificates h3')[1].nextElementSibling.textContent")
    assert "QKV biasdiffers, not comparablefalsetrue" in first.replace("\n", "")
    assert HOSTILE in tab.value("document.querySelector('.card').innerText")
    assert HOSTILE in tab.value("document.querySelector('#group-0').innerText")
    scripts = tab.value("[...document.scripts].map(script => script.id)")
    assert scripts == ["data", "", ""], "those of the page, and the one above that did not run"


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


def has_contrast_and_prints_dark_on_white(tab: browser.Browser, path: Path) -> None:
    for scheme in ("light", "dark"):
        tab.open(path, scheme=scheme)
        assert tab.value(CONTRAST) == []
        background = tab.value("getComputedStyle(document.body).backgroundColor")
        brightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
        assert (brightness < 64) == (scheme == "dark")
    tab.resize(700)  # pixels of 1/96 inch: a sheet of A4 between its margins
    tab.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert tab.value("document.documentElement.scrollWidth") <= 700
    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.value("getComputedStyle(document.getElementById('download')).display") == "none"


def shows_each_formula_by_keyboard(tab: browser.Browser) -> None:
    tab.value("document.querySelector('.metrics .figure').focus()")
    tab.value(FRAMES)  # in which the page scrolls to the figure
    assert tab.value("document.getElementById('tip').innerText") == "GBS x SL / mean steady step time / GPUs"
    assert tab.value("document.activeElement.getAttribute('aria-describedby')") == "tip"
    tab.press("ArrowRight")
    assert tab.value("document.activeElement.getAttribute('aria-label')").startswith("Throughput per GPU, B ")
    tab.press("ArrowDown")
    assert tab.value("document.activeElement.getAttribute('aria-label')").startswith("Throughput, B ")
    tab.press("Escape")
    assert tab.value("document.getElementById('tip').hidden")
    assert tab.value("document.activeElement.title") == "GBS x SL / mean steady step time"
    assert tab.value("document.querySelectorAll('.metrics [tabindex=\"0\"]').length") == 2, (
        "one tab stop for each table"
    )
    assert tab.value("[...document.querySelectorAll('.figure')].every(figure => figure.title)")
    silent = "[...document.querySelectorAll('.figure.unknown')].filter(f => f.title === '' || f.title === 'unknown')"
    assert tab.value(f"{silent}.length") == 0
    folded = "[...document.querySelectorAll('.metrics')].map(table => table.parentElement.nextElementSibling)"
    assert tab.value(f"{folded}.every(list => list.tagName === 'DETAILS' && !list.open)")
    assert "no matrix-multiply rate was measured" in tab.value(f"{folded}.map(list => list.textContent).join()")


READ = "[...document.querySelectorAll('.curves .readout .run')].slice(0, 2).map(r => r.cells[1].textContent)"


def read_out(values: list[float]) -> list[str]:
    return [f"{value:.4g}" for value in values]


def reads_all_runs_at_a_step_by_slider(tab: browser.Browser) -> None:
    # the baseline comes first: the first two runs are those of NVIDIA
    times = [run("nvd", number, 1.0)["step_times"] for number in (1, 2)]
    assert tab.value(READ) == read_out([one[STEPS - 1] for one in times])
    tab.value("document.querySelector('.curves input[type=range]').focus()")
    tab.press("ArrowLeft")
    assert tab.value(READ) == read_out([one[STEPS - 2] for one in times])
    tab.press("Home")
    assert tab.value(READ) == read_out([one[0] for one in times])
    wait = "new Promise(done => { const live = document.querySelector('[aria-live]'); const look = () => "
    announced = tab.value(f"{wait}live.textContent ? done(live.textContent) : setTimeout(look, 20); look(); }})")
    assert announced.startswith("Step 1. A nvd/mega") and "nats/token" in announced


def reads_zooms_and_hides_by_mouse(tab: browser.Browser) -> None:
    tab.value("document.querySelector('.chart').scrollIntoView({block: 'center'})")
    box = tab.value(
        "(b => [b.left, b.top, b.width, b.height])(document.querySelector('.chart').getBoundingClientRect())"
    )
    x, y = box[0] + box[2] / 4, box[1] + box[3] / 2
    tab.mouse("mouseMoved", x, y)
    step = tab.value("Number(document.querySelector('.curves input[type=range]').value)")
    assert 15 < step < 35, "a quarter of the chart, which has an axis on its left"
    assert tab.value(READ)[0] == f"{run('nvd', 1, 1.0)['step_times'][step - 1]:.4g}"
    live = "new Promise(done => setTimeout(() => done(document.querySelector('[aria-live]').textContent), 400))"
    assert tab.value(live) == "", "only the slider is announced, not the mouse"
    tab.mouse("mousePressed", x, y)
    tab.mouse("mouseMoved", box[0] + box[2] / 2, y)
    tab.mouse("mouseReleased", box[0] + box[2] / 2, y)
    bounds = tab.value(
        "[...document.querySelectorAll('.curves')[0].querySelectorAll('[type=number]')].map(b => +b.value)"
    )
    assert bounds[0] == step and 35 < bounds[1] < 60
    tab.value("document.querySelector('.readout [type=checkbox]').click()")
    assert tab.value("document.querySelector('.chart').querySelectorAll('.curve').length") == 3
    assert tab.value(READ) == ["\u2013", "\u2013"]


def saves_the_embedded_data(tab: browser.Browser) -> None:
    keep = "window.saved = null; URL.createObjectURL = blob => { window.saved = blob; return 'blob:x'; };"
    tab.value(f"{keep} HTMLAnchorElement.prototype.click = function () {{ window.file = this.download; }}")
    tab.value("document.getElementById('download').click()")
    assert tab.value("window.file") == "compare-data.json"
    saved = json.loads(tab.value("window.saved.text()"))
    assert saved["verdicts"][0]["verdict"] == "faster"
    first = saved["groups"][0]["rows"][0]["runs"][0]
    assert first["step_time_seconds"]["value"] == pytest.approx(run("nvd", 1, 1.0)["step_times"], rel=1e-5)


LOOKS = """[...document.querySelectorAll('.readout .system .swatch')].map((swatch) => {
  const [curve, mark] = swatch.querySelectorAll('path');
  const style = getComputedStyle(curve);
  return [style.stroke, style.strokeDasharray, mark.getAttribute('d')];
})"""


def tells_curves_of_one_vendor_apart(tab: browser.Browser, folder: Path) -> None:
    frameworks = ("mega", "hf", "bridge", "titan")
    results = [one for number, name in enumerate(frameworks) for one in runs("nvd", 1 + number, framework=name)]
    tab.open(report(folder, results, formats="html").folder / "compare.html")
    looks = tab.value(LOOKS)
    assert len(looks) == len({dashes for _, dashes, _ in looks}) == len({mark for _, _, mark in looks}) == 4
    drawn = tab.value("[...document.querySelectorAll('.chart .mark')].map(mark => mark.getAttribute('d').length)")
    assert len(drawn) == 2 * 4 * 3 and min(drawn) > 50, "marks on each run's curve in both charts"
    assert tab.complaints == []


@pytest.mark.full("every control of compare.html in Chromium, about 15 s")
def test_the_page_can_be_used_by_keyboard_and_mouse_and_printed(chromium: Any, tmp_path: Path) -> None:
    tab, path = chromium
    uses = (
        *(shows_each_formula_by_keyboard, reads_all_runs_at_a_step_by_slider),
        *(reads_zooms_and_hides_by_mouse, saves_the_embedded_data),
    )
    for use in uses:
        tab.open(path)
        use(tab)
    tells_curves_of_one_vendor_apart(tab, tmp_path)
    has_contrast_and_prints_dark_on_white(tab, path)


def test_markup_has_labels_for_screen_readers(page: str) -> None:
    found = Elements(page)
    assert all(attributes.get("scope") for tag, attributes in found.tags if tag == "th")
    assert all(attributes.get("aria-label") for tag, attributes in found.tags if tag == "svg")
    assert {"header", "nav", "main"} <= {tag for tag, _ in found.tags}
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    names = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(names) == len(set(names))
    targets = {a["href"] for tag, a in found.tags if tag == "a"}
    assert {str(target)[1:] for target in targets} <= set(names)
    assert not any(name.startswith("on") or name == "style" for _, attributes in found.tags for name in attributes)


def test_without_a_pair_there_is_no_link_to_certificates_and_equal_titles_are_numbered(tmp_path: Path) -> None:
    lone = [run("nvd", 1), run("nvd", 1, fingerprint__dataset_bin_sha256="7" * 64)]
    found = Elements(report(tmp_path, lone, formats="html").page)
    targets = {str(attributes["href"])[1:] for tag, attributes in found.tags if tag == "a"}
    assert targets <= {attributes.get("id") for _, attributes in found.tags}
    assert {"llama tiny, method equal (1 of 2)", "llama tiny, method equal (2 of 2)"} <= set(found.texts)
    assert any(text.startswith("No verdict: ") for text in found.texts)


def embedded(page: str) -> list[dict[str, Any]]:
    """Return the runs of the data that the page holds."""
    text = re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert text
    return [one for group in json.loads(text[1])["groups"] for row in group["rows"] for one in row["runs"]]


def test_too_many_samples_are_thinned_with_a_notice_and_extremes_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [*runs("nvd", 1.0, 2), *runs("amd", 0.9, 2)]
    whole = report(tmp_path / "whole", results, formats="html").page
    assert "too many samples" not in whole
    assert {len(one["loss_nats_per_token"]["step"]) for one in embedded(whole)} == {STEPS}
    monkeypatch.setattr("evaluate.page.page.MOST_SAMPLES", 2 * 4 * 50)
    page = report(tmp_path / "thinned", results, formats="html").page
    assert "too many samples" in page and "(the limit is 400)" in page
    for one, all_of in zip(embedded(page), embedded(whole), strict=True):
        kept, values = one["step_time_seconds"], all_of["step_time_seconds"]["value"]
        assert len(kept["step"]) <= 50 and kept["step"] == sorted(kept["step"])
        assert {min(values), max(values)} <= set(kept["value"])


def test_one_and_the_band_are_always_on_the_axis(tmp_path: Path) -> None:
    """The drawing of a ratio far from 1 also has the line of 1 and the whole band inside it."""
    page = report(tmp_path, [*runs("nvd", 1.0), *runs("amd", 0.4)], "--band", "0.2", formats="html").page
    forest = re.search(r'<svg[^>]*class="forest"[^>]*>.*?</svg>', page, re.DOTALL)
    assert forest
    left, _, width, _ = map(float, re.search(r'viewBox="([^"]+)"', forest[0])[1].split())  # type: ignore[index]
    band = re.search(r'<rect[^>]*class="band"[^>]*>', forest[0])
    assert band
    x, length = (float(re.search(rf' {key}="([\d.]+)"', band[0])[1]) for key in ("x", "width"))  # type: ignore[index]
    assert length > 0 and left <= x and x + length <= left + width


def test_unchanged_results_give_an_unchanged_page(page: str, tmp_path: Path) -> None:
    again = hostile_page(tmp_path)
    places = re.compile(r"(?:/[\w.-]+)+/(?:in|report)\b")
    assert places.sub("", again) == places.sub("", page)
