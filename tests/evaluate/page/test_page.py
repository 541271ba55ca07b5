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
from markupsafe import Markup
from sides import STEPS, entry, run, side

from evaluate.checks.entries import Entry, Loaded
from evaluate.metrics.figures import NOT_WORKED_OUT, Figure, combined, unknown
from evaluate.page.page import ASSETS, embedded, environment, page, thinned
from evaluate.report import panels
from evaluate.report.comparison import Comparison, compare
from evaluate.report.forest_plot import axis_of
from evaluate.verdict.inference import Estimate
from tests.evaluate.report.test_scaling import nodes

HOSTILE = "<script>alert(1)</script>"
PHONE = 375
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))"


def compared(entries: list[Entry]) -> Comparison:
    return compare(Loaded(tuple(entries), ()), [Path("output")])


def hostile_page() -> str:
    """Return a page: a faster pair with a hostile device name, a pair that is not comparable, an uncounted result."""
    entries = [*side("nvd", 1.0, runs=3), *side("amd", 0.9, runs=3, gpu_info__device_name=HOSTILE)]
    entries += side("nvd", 1.0, runs=2, model="qwen")
    entries += side("amd", 0.9, runs=2, model="qwen", resolved_config__qkv_bias=True)
    dead = {"status": "oom", "reason": f"out of memory {HOSTILE}", "gpu_info__device_name": HOSTILE}
    entries.append(entry(run("amd", 9, **dead)))
    return page(compared(entries))


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
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[browser.Browser, Path]]:
    program = browser.find()
    if program is None:
        pytest.skip(f"no Chromium here (looked for {', '.join(browser.NAMES)}); install Debian's package chromium")
    folder = tmp_path_factory.mktemp("browser")
    path = folder / "compare.html"
    path.write_text(hostile_page(), encoding="utf8")
    with browser.running(program, folder / "profile") as opened:
        yield opened, path


@pytest.fixture
def tab(chromium: tuple[browser.Browser, Path]) -> browser.Browser:
    opened, path = chromium
    opened.open(path)
    return opened


def test_the_page_makes_no_request_and_logs_nothing(tab: browser.Browser, chromium: Any) -> None:
    tab.value(FRAMES)
    assert tab.requests == [chromium[1].resolve().as_uri()]
    assert tab.complaints == []
    # The policy is in force: an unlisted script does not run, and nothing is fetched.
    tab.value("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))")
    assert tab.value("fetch('http://127.0.0.1:9/').then(() => 'sent', error => String(error))").startswith("TypeError")
    assert tab.value("typeof window.ran") == "undefined"
    assert len(tab.complaints) >= 2 and all("Content Security Policy" in line for line in tab.complaints)


def test_tables_and_charts_are_there(tab: browser.Browser) -> None:
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


def test_untrusted_names_are_shown_as_text(tab: browser.Browser) -> None:
    assert HOSTILE in tab.value("document.querySelector('.card').innerText")
    assert HOSTILE in tab.value("document.querySelector('#group-0').innerText")
    scripts = tab.value("[...document.scripts].map(script => script.id)")
    assert scripts == ["data", ""], "only the two scripts of the page"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, 1280])
def test_the_page_never_scrolls_sideways(chromium: Any, width: int, scheme: str) -> None:
    opened, path = chromium
    opened.open(path, width, scheme=scheme)
    assert opened.value("document.documentElement.scrollWidth") <= width
    background = opened.value("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", background)[:3])) / 3
    assert (brightness < 64) == (scheme == "dark")


def test_it_prints_dark_on_white_and_nothing_is_cut_off(tab: browser.Browser) -> None:
    tab.resize(700)  # pixels of 1/96 inch: a sheet of A4 between its margins
    tab.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert tab.value("document.documentElement.scrollWidth") <= 700
    assert tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.value("getComputedStyle(document.getElementById('download')).display") == "none"


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(chromium: Any, scheme: str) -> None:
    opened, path = chromium
    opened.open(path, scheme=scheme)
    assert opened.value(CONTRAST) == []


def test_each_figure_shows_its_formula_by_keyboard(tab: browser.Browser) -> None:
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


def test_the_slider_reads_all_runs_at_a_step(tab: browser.Browser) -> None:
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


def test_the_mouse_reads_and_zooms_and_runs_can_be_hidden(tab: browser.Browser) -> None:
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


def test_the_button_saves_the_embedded_data(tab: browser.Browser) -> None:
    keep = "window.saved = null; URL.createObjectURL = blob => { window.saved = blob; return 'blob:x'; };"
    tab.value(f"{keep} HTMLAnchorElement.prototype.click = function () {{ window.file = this.download; }}")
    tab.value("document.getElementById('download').click()")
    assert tab.value("window.file") == "compare-data.json"
    saved = json.loads(tab.value("window.saved.text()"))
    assert saved["verdicts"][0]["verdict"] == "faster"
    first = saved["groups"][0]["rows"][0]["runs"][0]
    assert first["step_time_seconds"]["value"] == pytest.approx(run("nvd", 1, 1.0)["step_times"], rel=1e-5)


def test_markup_has_labels_for_screen_readers() -> None:
    found = Elements(hostile_page())
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


def test_without_a_pair_there_is_no_link_to_certificates_and_equal_titles_are_numbered() -> None:
    lone = [*side("nvd", 1.0, runs=1), *side("nvd", 1.0, runs=1, fingerprint__dataset_bin_sha256="7" * 64)]
    found = Elements(page(compared(lone)))
    targets = {str(attributes["href"])[1:] for tag, attributes in found.tags if tag == "a"}
    assert targets <= {attributes.get("id") for _, attributes in found.tags}
    assert {"llama tiny, method equal (1 of 2)", "llama tiny, method equal (2 of 2)"} <= set(found.texts)
    assert any(text.startswith("No verdict: ") for text in found.texts)


def test_the_page_shows_scaling_if_the_comparison_is_by_nodes() -> None:
    entries = [*nodes(1, 1.0), *nodes(2, 0.5)]
    asked = page(compare(Loaded(tuple(entries), ()), [Path("output")], "nodes"))
    assert "Scaling over nodes" in Elements(asked).texts and 'href="#scaling"' in asked
    assert "Scaling over nodes" not in page(compared(entries))


LOOKS = """[...document.querySelectorAll('.readout .system .swatch')].map((swatch) => {
  const [curve, mark] = swatch.querySelectorAll('path');
  const style = getComputedStyle(curve);
  return [style.stroke, style.strokeDasharray, mark.getAttribute('d')];
})"""


def test_curves_of_one_vendor_differ_in_dashes_and_marks(chromium: Any, tmp_path: Path) -> None:
    frameworks = ("mega", "hf", "bridge", "titan")
    entries = [found for number, name in enumerate(frameworks) for found in side("nvd", 1 + number, 3, framework=name)]
    path = tmp_path / "compare.html"
    path.write_text(page(compared(entries)), encoding="utf8")
    opened, _ = chromium
    opened.open(path)
    looks = opened.value(LOOKS)
    assert len(looks) == len({dashes for _, dashes, _ in looks}) == len({mark for _, _, mark in looks}) == 4
    drawn = opened.value("[...document.querySelectorAll('.chart .mark')].map(mark => mark.getAttribute('d').length)")
    assert len(drawn) == 2 * 4 * 3 and min(drawn) > 50, "marks on each run's curve in both charts"
    assert opened.complaints == []


def test_text_is_escaped_unless_it_is_markup() -> None:
    template = environment().from_string('<p class="{{ name }}">{{ text }}</p>')
    assert template.render(name='"x', text="<b>&\n") == '<p class="&#34;x">&lt;b&gt;&amp;\\n</p>'
    assert template.render(name="x", text=Markup("<b>x</b>")) == '<p class="x"><b>x</b></p>'
    block = environment().from_string("{{ data | tojson }}").render(data={"name": "</script><!--"})
    assert "<" not in block and json.loads(block) == {"name": "</script><!--"}


def test_a_figure_is_the_median_over_runs_and_keeps_the_reason_of_an_unknown() -> None:
    assert combined([Figure(1.0, "s", "how"), Figure(9.0, "s", "how"), Figure(2.0, "s", "how")]) == Figure(
        2.0, "s", "how"
    )
    partly = combined([Figure(1.0, "s", "how"), unknown("s", "no sensor"), None])
    assert partly == Figure(1.0, "s", f"how; unknown in 2 of 3 runs: no sensor; {NOT_WORKED_OUT}")
    assert combined([unknown("s", "no sensor"), unknown("s", "no sensor")]) == unknown("s", "no sensor")


def test_formulas_that_differ_in_whole_numbers_only_are_one() -> None:
    ways = [f"mean of {count} steady steps (6N/v1, 0.5 W, 2026-01-0{count % 3})" for count in (36, 12, 24)]
    assert combined([Figure(1.0, "s", how) for how in ways]).how == (
        "mean of 12 to 36 steady steps (6N/v1, 0.5 W, 2026-01-00)"
    )
    other = combined([Figure(1.0, "s", "mean of 3 {} steps"), Figure(1.0, "s", "median of 3 {} steps")])
    assert other.how == "mean of 3 {} steps; or median of 3 {} steps"


def test_thinning_keeps_the_extremes() -> None:
    values: list[float | None] = [1.0] * 1000
    values[333], values[777], values[500] = 9.0, 0.1, None
    kept = thinned(list(range(1, 1001)), values, 100)
    assert len(kept["step"]) <= 100 and kept["step"] == sorted(kept["step"])
    samples = dict(zip(kept["step"], kept["value"], strict=True))
    assert (samples[334], samples[778]) == (9.0, 0.1)
    assert thinned([1, 2, 3], [3.0, None, 1.0], 100) == {"step": [1, 3], "value": [3.0, 1.0]}


def test_too_many_samples_are_thinned_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = compared([*side("nvd", 1.0, runs=2), *side("amd", 0.9, runs=2)])
    assert "too many samples" not in page(comparison)
    monkeypatch.setattr("evaluate.page.page.MOST_SAMPLES", 2 * 4 * 50)
    whole = page(comparison)
    assert "too many samples" in whole and "(the limit is 400)" in whole
    rows = embedded(comparison)["groups"][0]["rows"]
    assert {len(one["loss_nats_per_token"]["step"]) for row in rows for one in row["runs"]} == {50}


@pytest.mark.parametrize(("low", "high"), [(0.99, 1.01), (0.4, 3.0), (0.0, float("inf"))])
def test_one_and_the_band_are_always_on_the_axis(low: float, high: float) -> None:
    found = Estimate(1.0, low, high, 0.5, 3.0, "these machines", (2, 2), (1, 1))
    axis = axis_of([found], 0.2)
    places = [axis.place(ratio) for ratio in (1 / 1.2, 1.0, 1.2)]
    assert places == sorted(places) and len(set(places)) == 3
    assert all(map(axis.holds, (1 / 1.2, 1.0, 1.2)))


def test_platforms_have_the_colours_of_the_plots() -> None:
    light = (ASSETS / "page.css").read_text().split("@media")[0]
    assert {
        name: re.search(rf"--{name}: (#\w+)", light)[1] for name in panels.PLATFORM_COLOURS
    } == panels.PLATFORM_COLOURS  # type: ignore[index]


def test_unchanged_results_give_an_unchanged_page() -> None:
    assert hostile_page() == hostile_page()
