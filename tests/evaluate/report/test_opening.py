"""Every report opens with who, how much and for what it holds, and names what weakens or does not prove it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sides import entry, run, side

from evaluate.checks.entries import Entry, Loaded
from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN, Item
from evaluate.fairness.ranking import by_effect
from evaluate.page.page import page
from evaluate.report.comparison import Comparison, as_json, compare
from evaluate.report.plots import draw
from evaluate.report.tables import coloured
from evaluate.report.text import markdown, terminal
from evaluate.verdict.sentences import model_name
from evaluate.verdict.weaknesses import weaknesses
from tests.evaluate.fairness.test_pair_conditions import results as results_with_conditions

UNKNOWN_NORM = {
    "resolved_config__norm_eps": None,
    "resolved_config__reasons": {"norm_eps": "not read back", "sliding_window": "this model has none"},
}


def compared(entries: list[Entry], **options: Any) -> Comparison:
    return compare(Loaded(tuple(entries), ()), [Path("output")], **options)


def pair(runs: int = 3, **changes: Any) -> Comparison:
    """Return a comparison of two sides that differ by a tenth, the second one with these changes."""
    return compared(side("nvd", 1.0, runs) + side("amd", 0.9, runs, **changes))


@cache
def proven() -> Comparison:
    return pair()


@cache
def unproven() -> Comparison:
    return pair(**UNKNOWN_NORM)


@cache
def undecided() -> Comparison:
    return pair(runs=2)


def visible(text: str) -> str:
    """Return the text of a page without its data, script and style, on one line."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


@cache
def reports(made: Callable[[], Comparison]) -> dict[str, str]:
    """Return all reports of words, each on one line."""
    comparison = made()
    picture = " ".join(text.get_text() for text in draw(comparison).findobj(lambda one: hasattr(one, "get_text")))
    found = {
        "terminal": terminal(comparison, 100),
        "markdown": re.sub(r"[*]{2}", "", markdown(comparison)),
        "page": visible(page(comparison)),
        "picture": picture,
        "json": as_json(comparison)["verdicts"][0]["sentence"],
    }
    return {name: " ".join(text.split()) for name, text in found.items()}


def test_every_report_says_who_how_much_and_for_what_it_holds() -> None:
    wanted = re.compile(
        r"AMD Instinct MI300X is 1\.\d+x as fast as NVIDIA H100 80GB HBM3 \(1\.\d+ to 1\.\d+\), "
        r"Llama 3\.1 8B \(tiny size\), equal settings, for these machines"
    )
    for name, text in reports(proven).items():
        assert wanted.search(text), name
    assert wanted.match(reports(proven)["terminal"].removeprefix("faster: ")), "the terminal begins with it"
    assert wanted.match(markdown(proven()).splitlines()[2].removeprefix("**faster:** ")), "and so does the markdown"


@pytest.mark.parametrize(
    ("model", "size", "name"),
    [
        ("llama", "full", "Llama 3.1 8B"),
        ("qwen", "full", "Qwen2.5 7B"),
        ("mistral", "proxy", "Mistral 7B v0.1 (proxy size)"),
        ("gpt9", "full", "gpt9"),
    ],
)
def test_a_model_has_the_name_of_its_release(model: str, size: str, name: str) -> None:
    assert model_name({"model": model, "model_size": size}) == name


def test_the_basis_of_a_number_stands_beside_it() -> None:
    for name, text in reports(proven).items():
        assert "3 runs a side, 1 machine a side" in text, name
        assert "steps 11 to 100" in text, name


def test_an_unproven_setting_stands_in_the_headline_and_takes_the_bold_word_away() -> None:
    (judged,) = unproven().judged
    assert (judged.word, judged.is_proven) == ("faster", False)
    assert judged.headline.endswith(", for these machines; not proven: norm epsilon")
    for name, text in reports(unproven).items():
        assert "not proven: norm epsilon" in text, name
    assert "\x1b[1m" not in coloured(terminal(unproven(), 100))
    opening = markdown(unproven()).splitlines()[2]
    assert opening.startswith("faster if the work is the same: AMD") and "**" not in opening
    assert 'class="card w-faster unproven"' in page(unproven()) and "ratio hollow" in page(unproven())
    assert draw(unproven()).texts[0].get_weight() == "normal"
    assert as_json(unproven())["verdicts"][0]["unproven"] == ["norm epsilon"]


def test_a_proven_verdict_has_a_bold_word() -> None:
    assert coloured(terminal(proven(), 100)).startswith("\x1b[1mfaster\x1b[0m: AMD")
    assert markdown(proven()).splitlines()[2].startswith("**faster:** AMD")
    assert 'class="card w-faster"' in page(proven()) and "ratio hollow" not in page(proven())
    assert draw(proven()).texts[0].get_weight() == "bold"
    assert proven().judged[0].unproven == []


def test_a_device_called_like_a_verdict_gets_no_bold_word() -> None:
    named = pair(gpu_info__device_name="slower: x", **UNKNOWN_NORM)
    assert "\x1b[1m" not in coloured(terminal(named, 100))


def test_undecided_is_said_with_what_would_decide_it_in_every_report() -> None:
    (judged,) = undecided().judged
    assert judged.word == "undecided" and judged.would_decide
    clause = " ".join(judged.would_decide.split())
    for name, text in reports(undecided).items():
        assert "undecided" in text, name
        assert clause in text, name
    assert 'class="card w-undecided"' in page(undecided()) and "ratio hollow" in page(undecided())
    assert "\x1b[1m" not in coloured(terminal(undecided(), 100))
    assert "at the undecided ratio: 1 trillion tokens cost" in reports(undecided)["terminal"]


def test_a_pair_without_an_interval_says_so() -> None:
    single = pair(runs=1)
    assert re.search(r"is undecided: 1\.\d+x, no interval, Llama", single.judged[0].headline)
    assert "95 %:" not in visible(page(single)).partition("Systems")[0]
    assert "no valid interval" in page(single), "the label of the drawing"


def test_brackets_hold_95_percent_intervals_only() -> None:
    (judged,) = proven().judged
    assert judged.estimate and judged.estimate.low and judged.estimate.high
    for name, text in reports(proven).items():
        assert not re.search(r"\([\d.,]+ ?[-\u2013] ?[\d.,]+\)", text), name
        for ends in re.findall(r"\(([\d.]+) to ([\d.]+)\)", text):
            found = tuple(map(float, ends))
            assert found == pytest.approx((judged.estimate.low, judged.estimate.high), abs=0.006), (name, ends)
        assert "min to max" in text or name == "json"


def test_results_come_before_certificates_and_the_method_is_last() -> None:
    headings = re.findall(r"^## (.*)", markdown(proven()), re.MULTILINE)
    assert headings == ["llama tiny, method equal", "Certificates", "Method"]
    titles = [re.sub("<.*?>", "", title) for title in re.findall(r"<h2[^>]*>(.*?)</h2>", page(proven()))]
    assert titles == ["Verdicts", "llama tiny, method equal", "Certificates", "Method"]


def test_what_is_trained_alike_opens_the_report() -> None:
    both = side("nvd", 1.0, 3) + side("amd", 0.9, 3)
    both += side("nvd", 1.0, 3, method="best") + side("amd", 0.8, 3, method="best")
    assert [one.pair.method for one in compared(both).judged] == ["equal", "best"]


def test_certificates_are_ordered_by_effect_on_speed_within_a_state() -> None:
    names = ("seed", "environment NCCL_ALGO", "tokenizer", "micro batch", "precision", "framework versions")
    items = [Item(name, ALLOWED, "a", "b") for name in names]
    items += [Item("data", BLOCKING, "a", "b"), Item("layers", SAME, "1", "1"), Item("power cap", UNKNOWN, "x", "x")]
    assert [item.name for item in by_effect(items)] == [
        *("data", "power cap"),
        *("precision", "micro batch", "environment NCCL_ALGO", "framework versions", "seed", "tokenizer"),
        "layers",
    ]


def test_the_certificate_of_a_report_has_that_order() -> None:
    shown = pair(provenance__code_sha256="8" * 64, provenance__environment={"PYTORCH_TUNABLEOP_ENABLED": "1"})
    table = markdown(shown).partition("## Certificates")[2]
    assert table.index("| environment PYTORCH") < table.index("| code sha256")


def test_unknown_items_are_one_line_with_a_count() -> None:
    text = markdown(proven()).partition("## Certificates")[2]
    assert (
        "3 items are unknown: power cap (not recorded), clocks (not recorded), NUMA balancing (not recorded)." in text
    )
    assert "| power cap" not in text
    folded = re.findall(
        r"<details><summary>(\d+ items? (?:is|are) unknown)</summary>(.*?)</details>", page(proven()), re.S
    )
    assert [count for count, _ in folded] == ["3 items are unknown"] and "power cap" in folded[0][1]


def test_what_weakens_a_verdict_stands_on_its_card() -> None:
    held = results_with_conditions("nvd", 3)
    hot = results_with_conditions("amd", 3, throttled_percent={"socket_thermal": 12.0}, other_processes=2)
    dead = run("amd", 4, status="oom", reason="out of memory at step 3")
    weak = compared([entry(one) for one in (*held, *hot, dead)])
    lines = weaknesses(weak.judged[0])
    assert lines[0] == "AMD Instinct MI300X: 1 of 4 runs does not count: out of memory at step 3"
    assert any(
        line.startswith("slowing down: AMD Instinct MI300X: socket_thermal 12 % of the run; NVIDIA") for line in lines
    )
    assert any(line.startswith("other work: AMD Instinct MI300X: 2 processes on the GPUs; NVIDIA") for line in lines)
    assert as_json(weak)["verdicts"][0]["weaknesses"] == lines
    card = visible(page(weak)).partition("Systems")[0]
    for line in lines:
        assert line in card and line in " ".join(terminal(weak, 100).split()) and line in markdown(weak)


def test_a_verdict_under_good_conditions_is_not_weakened() -> None:
    fine = compared([entry(one) for one in (*results_with_conditions("nvd", 3), *results_with_conditions("amd", 3))])
    assert weaknesses(fine.judged[0]) == []
    assert "Weakened by" not in page(fine) and "weakened" not in terminal(fine, 100)


def test_conditions_that_are_not_on_record_are_named() -> None:
    assert weaknesses(proven().judged[0]) == ["unknown, and may differ: power cap, clocks, NUMA balancing"]


def test_a_device_has_no_price_range_against_itself() -> None:
    frameworks = compared(side("nvd", 1.0, 3) + side("nvd", 0.8, 3, framework="hf"), by="framework")
    (saving,) = (one.saving for one in frameworks.judged)
    assert saving and saving.percent.value is not None and saving.percent_range is None
    assert as_json(frameworks)["verdicts"][0]["saving"]["percent_range"] is None
    for name, text in reports(lambda: frameworks).items():
        assert "prices are" not in text, name
    assert "prices are 25% off" in reports(proven)["terminal"], "two devices have a price each"


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("made", [proven, unproven, undecided])
def test_the_terminal_keeps_its_width(width: int, made: Any) -> None:
    assert max(map(len, terminal(made(), width).splitlines())) <= width
