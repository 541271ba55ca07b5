"""Results that make no pair are told why, and results that do make one need no reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from sides import compared, run, write

from evaluate import extract

LINE = (
    " [2024-04-06 02:{0:02d}:36] iteration {0:8d}/      50 | consumed samples: {1:12d} | elapsed time per iteration "
    "(ms): {2:.1f} | learning rate: 3.000000E-05 | global batch size:   128 | lm loss: {3:.6E} | loss scale: 1.0 | "
    "grad norm: 1.4{4:02d} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
"""A log in the form of Megatron-LM of 2024, which names no platform."""


def extracted(folder: Path, label: str, milliseconds: float, *more: str) -> None:
    """Extract the logs of three runs of one label."""
    for number in (1, 2, 3):
        seed = number + round(milliseconds) % 5
        times = [milliseconds * (1 + (step * (7 + 2 * seed) % 13 - 6) / 3000) for step in range(1, 51)]
        times[:2] = [3 * time for time in times[:2]]
        losses = [3 + 8 * 0.95**step + seed / 1e4 for step in range(1, 51)]
        lines = (
            LINE.format(step, 128 * step, time, loss, step * 3 % 89)
            for step, time, loss in zip(range(1, 51), times, losses, strict=True)
        )
        path = folder / f"{label}{number}.log"
        path.write_text("".join(lines))
        options = ["--model-name", "llama", "--num-gpus", "8", "--sequence-length", "2048", "--run", str(number)]
        output = ["--label", label, "--output", str(folder / "out" / label)]
        assert extract.main(["--log-file", str(path), *options, *output, *more]) == 0


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
        ((), (), "old on unknown"),
        (("--platform", "amd"), ("--platform", "amd"), "old on unknown"),
        (
            ("--platform", "amd"),
            (),
            "new and old differ in platform too (amd against unknown): extract the log again with --platform",
        ),
    ],
)
def test_logs_are_compared_by_label_and_told_what_to_do_where_one_side_names_no_platform(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], of_new: tuple[str, ...], of_old: tuple[str, ...], words: str
) -> None:
    extracted(tmp_path, "new", 901.0, *of_new)
    extracted(tmp_path, "old", 1002.0, *of_old)
    found = shown(tmp_path / "out", "label", capsys)
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
