"""The section "why" of compare.html: bars, sentences, table and aligned operators; a real browser opens the page."""

from __future__ import annotations

import re

import browser
import pytest
from explained import FACTORS, A, B, attributed, comparison, refused, side_a, side_b, unprofiled
from made_traces import MadeTrace

from evaluate.page.page import page
from evaluate.report.trace_text import aligned_rows
from evaluate.timing import breakdown
from evaluate.timing.pairing import Aligned
from evaluate.timing.shapes import Work
from evaluate.timing.tables import OperatorRow
from tests.evaluate.page.test_page import Elements

HOSTILE = "<img src=x onerror=alert(1)>"


def trace(path, *, kernel="nvjet_tst", microseconds=100):
    """Return the breakdown of a step of 1 ms with one matrix product and one reduction of 200 us."""
    it = MadeTrace(deviceProperties=[{"id": 0, "name": "made up"}])
    it.step(3, 0, 1000)
    types = {"Input type": ["c10::BFloat16", "c10::BFloat16"]}
    it.op("aten::mm", 0, 20, **{"Input Dims": [[4096, 1024], [1024, 4096]], **types})
    it.kernel(kernel, 100, microseconds, launched=5)
    it.op("aten::sum", 20, 10, **{"Input Dims": [[4096, 4096]]})
    it.kernel("at::native::reduce_kernel", 400, 200, launched=25)
    return breakdown.of_file(it.write(path))


@pytest.fixture
def profiles(tmp_path):
    return trace(tmp_path / "a.json"), trace(tmp_path / "b.json", kernel="Cijk_Alik", microseconds=150)


def profiled(profiles, **changes):
    """Return the pair with the traces of both profiles; `changes` are of side a."""
    return attributed(side_a(trace=profiles[0], **changes), side_b(trace=profiles[1]))


def section(text):
    return text.partition('<section id="why"')[2].partition("</section>")[0]


def test_a_pair_has_bars_sentences_and_a_table(profiles):
    text = page(comparison(profiled(profiles)))
    found = section(text)
    assert 'href="#why"' in text
    assert re.findall(r'<rect class="part k-(\w+)"', found)[:5] == [
        *("matmul", "attention", "memory_bound", "optimizer", "communication_exposed"),
    ]
    shown = [words for words in Elements(found).texts if words.strip()]
    assert f"{A}, floor: 100 ms" in shown and f"{B}, measured: 156 ms" in shown
    assert FACTORS in shown
    assert found.count('<svg class="bars"') == 1
    # the widest reach is 158 ms, so the floor of 100 ms ends at 1000 * 100 / 158 = 632.9
    last = re.search(r'k-communication_exposed" x="([\d.]+)" y="\d+" width="([\d.]+)"', found)
    assert last
    assert float(last[1]) + float(last[2]) == pytest.approx(632.9, abs=0.1)


def test_operators_of_both_profiles_are_aligned_in_folded_details(profiles):
    found = section(page(comparison(profiled(profiles))))
    details = found.partition("<details>")[2]
    assert "2 operators of both profiles, largest difference first" in details
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", details.partition("<tbody>")[2])
    # 150 us against 100 us: 0.05 ms a step more on the second side
    assert cells[:6] == ["matrix product", "matmul", "(4096, 1024) x (1024, 4096)", "0.1", "0.15", "+0.05"]
    assert "<details>" not in section(page(comparison(attributed())))


def test_a_rounding_error_is_no_difference():
    work = Work("matrix product", "", None, None)
    rows = [OperatorRow("aten::mm", "matmul", work, 1, seconds, "") for seconds in (0.3, 0.1 + 0.2)]
    shown = aligned_rows([Aligned("matmul", "matrix product", "", *rows)], 1)
    assert rows[0].seconds != rows[1].seconds
    assert shown[0][5] == "+0"


def test_a_pair_without_profiles_has_floors_and_the_reason():
    found = section(page(comparison(attributed(unprofiled(side_a()), unprofiled(side_b())))))
    assert found.count('class="hollow"') == 2
    assert found.count("not measured: no profile of this job; PROFILING=true records one") == 2


def test_a_refused_pair_is_one_line_without_bars():
    found = section(page(comparison(refused("the probe is of another day"))))
    assert "is hardware is unknown: the probe is of another day." in found
    assert "<svg" not in found and "<table" not in found


def test_without_an_attribution_the_page_is_that_of_before():
    text = page(comparison(None))
    assert 'id="why"' not in text and "#why" not in text and ".bars" not in text


def test_names_are_shown_as_text(profiles):
    text = page(comparison(profiled(profiles, name=HOSTILE, remarks=(HOSTILE,))))
    assert "<img" not in text
    assert "&lt;img" in section(text)


def test_identifiers_are_unique_and_heads_have_a_scope(profiles):
    found = Elements(page(comparison(profiled(profiles), profiled(profiles), refused("x"))))
    names = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(names) == len(set(names))
    assert all(attributes.get("scope") for tag, attributes in found.tags if tag == "th")
    assert all(a.get("aria-label") or a.get("aria-hidden") for tag, a in found.tags if tag == "svg")
    assert not any(name.startswith("on") or name == "style" for _, attributes in found.tags for name in attributes)
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch(r"h\d", tag)]
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))


@pytest.mark.skipif(browser.find() is None, reason="no Chromium on this machine")
def test_the_page_opens_without_a_message_at_any_width_in_both_schemes(tmp_path, profiles):
    path = tmp_path / "compare.html"
    shown = comparison(profiled(profiles), attributed(b=unprofiled(side_b())), refused("no probe"))
    path.write_text(page(shown), encoding="utf8")
    browser.check_views(browser.find(), path, tmp_path / "profile")
