"""Results that make no pair are told why, and results that do make one need no reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from sides import Result, compared, run, runs, write


def of_log(label: str, seconds: float, platform: str) -> list[Result]:
    """Return the results of three logs of one label; `platform` is unknown where the log names none."""
    found = runs("amd", seconds, label=label, source="log")
    return [result | {"platform": platform} for result in found]


def shown(folder: Path, by: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `evaluate.compare` prints, without line breaks."""
    capsys.readouterr()
    compared(folder, "--by", by)
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return " ".join(printed.out.split())


@pytest.mark.parametrize(
    ("of_new", "of_old", "words"),
    [
        ("unknown", "unknown", "old on AMD Instinct MI300X"),
        ("amd", "amd", "old on AMD Instinct MI300X"),
        ("amd", "unknown", "differ in platform too (amd against unknown): extract the log again with --platform"),
    ],
)
def test_logs_are_compared_by_label_and_told_what_to_do_where_one_side_names_no_platform(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], of_new: str, of_old: str, words: str
) -> None:
    results = of_log("new", 0.9, of_new) + of_log("old", 1.0, of_old)
    found = shown(write(tmp_path, results), "label", capsys)
    assert words in found and ("No verdict" in found) == (of_new != of_old)


@pytest.mark.parametrize(
    ("by", "name"),
    [("platform", "nvd"), ("framework", "mega"), ("machine", "nvd-1"), ("nodes", "8"), ("label", "no label")],
)
def test_one_side_has_its_name_in_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str, name: str
) -> None:
    found = shown(write(tmp_path, [run("nvd", number) for number in (1, 2)]), by, capsys)
    reason = found.partition("all results have one ")[2]
    assert name in reason[:60], found


@pytest.mark.parametrize(
    ("by", "change", "words"),
    [
        ("platform", {"model": "qwen"}, "amd and nvd differ in model too (qwen against llama)"),
        ("platform", {"framework": "hf"}, "amd and nvd differ in framework too (hf against mega)"),
        ("label", {"label": "x"}, "no label and x differ in platform too (nvd against amd)"),
        ("machine", {}, "amd-1 and nvd-1 differ in platform too (amd against nvd)"),
        ("platform", {}, ""),
    ],
)
def test_two_sides_that_differ_in_more_are_told_in_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], by: str, change: dict[str, str], words: str
) -> None:
    found = shown(write(tmp_path, [run("nvd"), run("amd", 1, 0.9, **change)]), by, capsys)
    assert words in found and ("No verdict" in found) == bool(words)
