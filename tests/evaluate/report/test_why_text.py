"""The section "why" in words: three sentences, a table of kinds, and one line where nothing is attributed."""

from __future__ import annotations

import re

import pytest
from explained import (
    FACTORS,
    A,
    B,
    attributed,
    comparison,
    kinds,
    refused,
    side_a,
    side_b,
    unprofiled,
)

from evaluate.floor.parts import Loss
from evaluate.report import why_text
from evaluate.report.text import markdown

OF_A = (
    f"A step of {A} takes 130 ms, 30.0 ms (30.0%) above its floor of 100 ms; the largest loss, 11.5% of the step, is "
    "in idle (the device waits for the host): 15.0 ms, launch gaps and other waits of the host."
)
OF_B = (
    f"A step of {B} takes 156 ms, 66.0 ms (73.3%) above its floor of 90.0 ms; the largest loss, 23.1% of the step, is "
    "in matrix products: 36.0 ms over the floor, mostly aten::mm (4096, 1024) x (1024, 4096)."
)


def test_three_sentences_the_factors_then_the_slower_side_then_the_faster():
    assert why_text.sentences(attributed()) == [FACTORS, OF_B, OF_A]
    swapped = attributed(side_b(), side_a())
    assert why_text.sentences(swapped) == [FACTORS, OF_B, OF_A], "the slower side comes first on either place"


def test_without_a_profile_the_difference_is_named_and_not_divided():
    _, slower, faster = why_text.sentences(attributed(b=unprofiled(side_b())))
    assert slower == (
        f"A step of {B} takes 156 ms, 66.0 ms (73.3%) above its floor of 90.0 ms; without a profile of this job the "
        "difference is not divided by kind."
    )
    assert faster == OF_A


def test_a_side_at_its_floor_has_no_largest_loss():
    at_floor = side_a(step_seconds=0.1, measured_by_kind=side_a().floor_by_kind, losses=(Loss("matmul", 0.0, "x"),))
    said = why_text.sentences(attributed(a=at_floor))[2]
    assert said.endswith("takes 100 ms, at its floor of 100 ms; no kind of time is above its floor.")
    below = side_a(step_seconds=0.098, losses=(Loss("matmul", -0.002, "x"),))
    assert "takes 98.0 ms, 2.00 ms (2.0%) below its floor of 100 ms" in why_text.sentences(attributed(a=below))[2]


def test_a_loss_that_no_operator_explains_reads_as_time():
    lost = side_a(losses=(Loss("unattributed", 0.013, "unattributed: 13.0 ms over the floor"),))
    said = why_text.sentences(attributed(a=lost))[2]
    assert said.endswith("the largest loss, 10.0% of the step, is in unattributed time: 13.0 ms over the floor.")


def test_a_refused_pair_is_one_line():
    said = why_text.sentences(refused("the probe is of another day"))
    assert said == ["How much of the ratio is hardware is unknown: the probe is of another day."]
    assert why_text.bars(refused("x")) == []


def test_the_table_has_floor_and_measured_milliseconds_of_both_sides():
    header, rows = why_text.kind_table(attributed())
    assert header == ("Kind", f"{A}, floor (ms)", f"{A}, measured (ms)", f"{B}, floor (ms)", f"{B}, measured (ms)")
    assert rows == [
        ("matrix products", "60", "66", "50", "86"),
        ("attention", "10", "10", "15", "25"),
        ("memory-bound operators", "20", "24", "15", "15"),
        ("optimizer", "5", "5", "5", "5"),
        ("exposed communication", "5", "9", "5", "5"),
        ("copies between host and device", "0", "1", "0", "0"),
        ("idle (the device waits for the host)", "0", "15", "0", "20"),
        ("sum", "100", "130", "90", "156"),
        ("step of the counted runs", "", "130", "", "156"),
    ]


def test_a_side_without_a_profile_has_a_floor_only_and_the_reason():
    why = attributed(unprofiled(side_a()), unprofiled(side_b()))
    header, rows = why_text.kind_table(why)
    assert header == ("Kind", f"{A}, floor (ms)", f"{B}, floor (ms)")
    assert rows[-1] == ("sum", "100", "90")
    reason = "not measured: no profile of this job; PROFILING=true records one"
    assert why_text.remarks(why)[1] == f"{A}: floor from probe_nvd_node1.json; {reason}"
    one = attributed(b=unprofiled(side_b()))
    assert len(why_text.kind_table(one)[0]) == 4
    assert [reason in line for line in why_text.remarks(one)] == [False, False, True, False]


def test_the_notes_have_the_arithmetic_the_sources_and_the_remarks():
    assert why_text.remarks(attributed()) == [
        "A step of A takes 130 ms and at least 100 ms; so 0.833x = 1.11 x 0.750.",
        f"{A}: floor from probe_nvd_node1.json; measured by kind from profiles/train_nvd_mega_llama_run1",
        f"{B}: floor from probe_amd_node2.json; measured by kind from profiles/train_amd_mega_llama_run1",
        f"{B}: the probe ran 3 hours after the first run",
    ]


def test_bars_have_the_floor_with_its_spread_and_the_step_with_its_interval():
    a_floor, a_step, b_floor, b_step = why_text.bars(attributed())
    assert (a_floor.low, a_floor.high) == pytest.approx((0.098, 0.102))  # 2 % of 100 ms
    assert (b_floor.low, b_floor.high) == pytest.approx((0.0891, 0.0909))  # 1 % of 90 ms
    assert (a_step.low, a_step.high, b_step.low, b_step.high) == (0.129, 0.131, 0.154, 0.158)
    assert [bar.length for bar in (a_floor, a_step, b_floor, b_step)] == pytest.approx([0.1, 0.13, 0.09, 0.156])
    assert [bar.is_thin for bar in (a_floor, a_step)] == [True, False]
    assert a_step.name == f"{A}, measured: 130 ms"


def test_a_single_run_has_no_whisker_and_a_side_without_a_profile_no_parts():
    step = why_text.bars(attributed(unprofiled(side_a(step_low=None, step_high=None))))[1]
    assert (step.low, step.high, step.kinds, step.parts) == (None, None, None, [])
    assert step.length == step.reach == 0.13
    assert step.name == f"{A}, measured: 130 ms, not by kind (no profile)"


def test_markdown_has_the_section_between_verdicts_and_groups():
    text = markdown(comparison(attributed(), refused("no probe of the second machine")))
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles[0] == "Why" and titles.count("Why") == 1
    section = text.partition("## Why\n")[2].partition("\n## ")[0]
    assert section.count("\n### ") == 2
    for line in (FACTORS, "36.0 ms over the floor, mostly aten::mm", "| matrix products | 60 | 66 | 50 | 86 |"):
        assert line in section
    assert section.rstrip().endswith("is hardware is unknown: no probe of the second machine.")


def test_markdown_without_an_attribution_is_that_of_before():
    plain = comparison(None)
    assert "## Why" not in markdown(plain)
    only_refused = markdown(comparison(refused("no probe")))
    assert only_refused.count("is hardware is unknown: no probe.") == 1
    assert why_text.EXPLANATION not in only_refused


def test_names_of_others_are_shown_literally():
    hostile = side_a(name="**<b>|x", remarks=("# `c`",), measured_by_kind=kinds(matmul=130))
    section = markdown(comparison(attributed(a=hostile))).partition("## Why\n")[2].partition("\n## ")[0]
    assert "<b>" not in section and "`c`" not in section and "**" not in section
