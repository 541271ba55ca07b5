"""Results that make no pair are told why, and results that do make one need no reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from reports import report
from sides import Result, run, runs

LOG_OF = {side: runs("amd", seconds, label=side, source="log") for side, seconds in (("new", 0.9), ("old", 1.0))}
"""Results of three logs of a label; `platform` is unknown where the log names none."""
UNNAMED = {side: [result | {"platform": "unknown"} for result in results] for side, results in LOG_OF.items()}
ONE_SIDE = [run("nvd", number) for number in (1, 2)]


@pytest.mark.parametrize(
    ("results", "by", "words", "has_verdict"),
    [
        # logs are compared by label, and told what to do where one side names no platform
        (UNNAMED["new"] + UNNAMED["old"], "label", "old on AMD Instinct MI300X", True),
        (LOG_OF["new"] + LOG_OF["old"], "label", "old on AMD Instinct MI300X", True),
        (
            LOG_OF["new"] + UNNAMED["old"],
            "label",
            "differ in platform too (amd against unknown): extract the log again with --platform",
            False,
        ),
        # one side has its name in the reason
        (ONE_SIDE, "platform", "all results have one platform: nvd", False),
        (ONE_SIDE, "framework", "all results have one framework: mega", False),
        (ONE_SIDE, "machine", "all results have one machine: nvd-1", False),
        (ONE_SIDE, "nodes", "all results have one number of GPUs: 8", False),
        (ONE_SIDE, "label", "all results have one label: no label", False),
        # two sides that differ in more are told in what
        (
            [run("nvd"), run("amd", 1, 0.9, model="qwen")],
            "platform",
            "amd and nvd differ in model too (qwen against llama)",
            False,
        ),
        (
            [run("nvd"), run("amd", 1, 0.9, framework="hf")],
            "platform",
            "amd and nvd differ in framework too (hf against mega)",
            False,
        ),
        (
            [run("nvd"), run("amd", 1, 0.9, label="x")],
            "label",
            "no label and x differ in platform too (nvd against amd)",
            False,
        ),
        (
            [run("nvd"), run("amd", 1, 0.9)],
            "machine",
            "amd-1 and nvd-1 differ in platform too (amd against nvd)",
            False,
        ),
        ([run("nvd"), run("amd", 1, 0.9)], "platform", "", True),
    ],
)
def test_results_that_make_no_pair_are_told_why(
    tmp_path: Path, results: list[Result], by: str, words: str, has_verdict: bool
) -> None:
    found = report(tmp_path, results, "--by", by, formats="json,md")
    printed = " ".join(found.printed.split())
    assert words in printed and "Traceback" not in found.errors
    assert (bool(found.json["verdicts"]), found.json["by"]) == (has_verdict, by)
    for text in (found.printed, found.markdown.splitlines()[2]):
        assert text.startswith("No verdict: ") != has_verdict, text
