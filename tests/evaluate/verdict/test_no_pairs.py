"""Results that make no pair are told why, and results that do make one need no reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from sides import entry, run

from evaluate import compare, extract
from evaluate.verdict.no_pairs import _OF, reason
from evaluate.verdict.pairs import BY, pairs

LINE = (
    " [2024-04-06 02:{0:02d}:36] iteration {0:8d}/      50 | consumed samples: {1:12d} | elapsed time per iteration "
    "(ms): {2:.1f} | learning rate: 3.000000E-05 | global batch size:   128 | lm loss: {3:.6E} | loss scale: 1.0 | "
    "grad norm: 1.4{4:02d} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def log(path: Path, milliseconds: float, seed: int) -> Path:
    """Write a log in the form of Megatron-LM of 2024, which names no platform."""
    path.write_text(
        "".join(
            LINE.format(
                step,
                128 * step,
                milliseconds * (1 + (step * (7 + 2 * seed) % 13 - 6) / 3000) * (3 if step < 3 else 1),
                3 + 8 * 0.95**step + seed / 1e4,
                step * 3 % 89,
            )
            for step in range(1, 51)
        )
    )
    return path


def extracted(folder: Path, label: str, milliseconds: float, *more: str) -> None:
    """Extract the logs of three runs of one label."""
    for number in (1, 2, 3):
        path = log(folder / f"{label}{number}.log", milliseconds, number + round(milliseconds) % 5)
        options = ["--model-name", "llama", "--num-gpus", "8", "--sequence-length", "2048", "--run", str(number)]
        output = ["--label", label, "--output", str(folder / "out" / label)]
        assert extract.main(["--log-file", str(path), *options, *output, *more]) == 0


@pytest.mark.parametrize("platform", [(), ("--platform", "amd")], ids=["without a platform", "with a platform"])
def test_logs_are_compared_by_label_with_and_without_a_platform(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], platform: tuple[str, ...]
) -> None:
    extracted(tmp_path, "new", 901.0, *platform)
    extracted(tmp_path, "old", 1002.0, *platform)
    code = compare.main([str(tmp_path / "out"), "--by", "label", "--format", "md,json,html"])
    shown = capsys.readouterr()
    assert code in (0, compare.NOTHING_COMPARABLE) and "Traceback" not in shown.err
    assert "No verdict" not in shown.out and "old on unknown" in " ".join(shown.out.split())


def test_logs_of_which_one_side_names_no_platform_are_told_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extracted(tmp_path, "new", 901.0, "--platform", "amd")
    extracted(tmp_path, "old", 1002.0)
    arguments = [str(tmp_path / "out"), "--by", "label", "--format", "json"]
    assert compare.main(arguments) == compare.NOTHING_COMPARABLE
    shown = " ".join(capsys.readouterr().out.split())
    assert "new and old differ in platform too (amd against unknown): extract the log again with --platform" in shown


@pytest.mark.parametrize("by", BY)
def test_one_side_has_its_name_in_the_reason(by: str) -> None:
    found = reason([entry(run("nvd", number)) for number in (1, 2)], by)
    assert found.startswith("all results have one ")
    assert {"platform": "nvd", "framework": "mega", "machine": "nvd-1", "nodes": "8", "label": "no label"}[by] in found


@pytest.mark.parametrize(
    ("by", "change", "words"),
    [
        ("platform", {"model": "qwen"}, "amd and nvd differ in model too (qwen against llama)"),
        ("platform", {"framework": "hf"}, "amd and nvd differ in framework too (hf against mega)"),
        ("label", {"label": "x"}, "no label and x differ in platform too (nvd against amd)"),
        ("machine", {}, "amd-1 and nvd-1 differ in platform too (amd against nvd)"),
    ],
)
def test_two_sides_that_differ_in_more_are_told_in_what(by: str, change: dict[str, str], words: str) -> None:
    entries = [entry(run("nvd")), entry(run("amd", 1, 0.9, **change))]
    assert pairs(entries, by) == []
    assert reason(entries, by) == words


def test_every_property_of_a_comparison_has_its_list() -> None:
    assert _OF.keys() == BY.keys()


def test_two_sides_that_make_a_pair_differ_in_nothing_more() -> None:
    entries = [entry(run("nvd")), entry(run("amd", 1, 0.9))]
    assert pairs(entries, "platform") and reason(entries, "platform") == ""
