"""`evaluate.compare`: groups, rows and notes, the files it writes, its options and its exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
from checkout import ROOT
from reports import refused
from sides import Result, both, compared, failed_early, runs, summarise, write

from evaluate.compare import main
from example import example_result, put

SIX = {f"train_{number:03}.json" for number in range(6)}
ENDS = ("html", "json", "md", "png")
Captured = pytest.CaptureFixture[str]


def result(step: float = 0.5, **changes: Any) -> Result:
    """Return a result whose steady steps take `step` seconds each: 8192 / step tokens/s on one device."""
    found = example_result(step_times=[2.0, 0.6, 0.55, *[step] * 7])
    summarise(found)
    return put(found, changes)


def groups(folder: Path, *results: Result) -> list[dict[str, Any]]:
    return list(compared(write(folder, results), "--format", "json,md")["groups"])


UNKNOWN_DATA = {"fingerprint__dataset_bin_sha256": None, "fingerprint__reasons": {"dataset_bin_sha256": "not computed"}}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"model": "qwen"}),
        ({}, {"model_size": "proxy"}),
        ({}, {"method": "best"}),
        ({}, {"fingerprint__dataset_bin_sha256": "7" * 64}),
        (UNKNOWN_DATA, UNKNOWN_DATA),  # it equals no other data
        ({}, both(precision="bf16")),
        ({}, {"training_config__sequence_length": 256}),
        ({}, {"training_config__global_batch_size": 32}),
    ],
)
def test_unlike_results_never_share_a_group(tmp_path: Path, one: dict[str, Any], other: dict[str, Any]) -> None:
    found = groups(tmp_path, result(**one), result(framework="hf", **other))
    assert [len(group["rows"]) for group in found] == [1, 1]


def test_the_geometric_mean_and_the_spread_are_over_runs(tmp_path: Path) -> None:
    ((row,),) = (group["rows"] for group in groups(tmp_path, result(run=1), result(0.25, run=2), result(run=3)))
    # 8192 / 0.5 = 16384 twice and 8192 / 0.25 = 32768 once
    mean = pytest.approx(20642.5, abs=0.1)
    expected = {"mean": mean, "median": 16384, "min": 16384, "max": 32768, "runs": [16384, 32768, 16384]}
    assert row["tokens_per_second_per_gpu"] == expected
    assert row["step_time_seconds"]["mean"] == pytest.approx((0.5 * 0.25 * 0.5) ** (1 / 3))


@pytest.mark.parametrize(("others", "rows"), [((), [1]), (({"fingerprint__dataset_bin_sha256": "7" * 64},), [1, 1, 1])])
def test_a_run_that_failed_early_joins_the_row_that_matches_if_there_is_only_one(
    tmp_path: Path, others: tuple[dict[str, Any], ...], rows: list[int]
) -> None:
    found = groups(tmp_path, result(), *(result(**one) for one in others), failed_early(run=2))
    assert [len(group["rows"]) for group in found] == rows
    assert max(row["runs_found"] for group in found for row in group["rows"]) == 3 - len(rows[:2])


@pytest.mark.parametrize(
    "other",
    [
        {"provenance__host": "elsewhere"},
        {"gpu_info__device_name": "Other CPU"},
        {"platform": "nvd", "gpu_info__device_name": "NVIDIA H900"},
        {"framework": "hf"},
        {"label": "sweep_mbs4"},
        both(micro_batch_size=4, gradient_accumulation=16),
        both(ep=2),
        both(routing="balanced"),
    ],
)
def test_other_systems_are_rows_of_their_own(tmp_path: Path, other: dict[str, Any]) -> None:
    (group,) = groups(tmp_path, result(), result(**other))
    assert [row["runs_counted"] for row in group["rows"]] == [1, 1]
    names = re.findall(r"^\| ([AB] .*?\|.*?)\|", (tmp_path / "compare.md").read_text(), re.MULTILINE)
    assert len({name[2:] for name in names}) == 2, "the table must distinguish the rows"


def vendors(**changes: Any) -> list[Result]:
    return runs("nvd", 1.0) + runs("amd", 0.9, **changes)


@pytest.mark.parametrize(("columns", "no_color"), [("80", ""), ("100", "1")])
def test_output_fits_the_terminal_and_has_colour_unless_no_color_is_set(
    tmp_path: Path, columns: str, no_color: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for variable, value in (("COLUMNS", columns), ("NO_COLOR", no_color), ("TERM", "xterm")):
        monkeypatch.setenv(variable, value)
    long = "A device with quite a long name that no table has room for"
    rejected = result(run=2, framework="hf", gpu_info__device_name=long * 2, resolved_config__tp=4)
    compared(write(tmp_path, [*vendors(gpu_info__device_name=long), result(), rejected]))
    text = capsys.readouterr().out
    assert ("\x1b[1mfaster\x1b[0m" in text) != bool(no_color)
    lines = re.sub(r"\x1b\[\d*m", "", text).splitlines()
    assert lines[0].startswith("faster: A device with") and max(map(len, lines)) <= int(columns)


def test_unchanged_results_give_unchanged_files_and_files_of_a_comparison_are_no_results(
    tmp_path: Path, capsys: Captured
) -> None:
    write(tmp_path, vendors())
    found = []
    for _ in range(2):
        assert main([str(tmp_path)]) == 0 and "\x1b" not in capsys.readouterr().out
        found.append({path.name: path.read_bytes() for path in tmp_path.iterdir()})
    assert found[0] == found[1] and set(found[0]) == {*SIX, *(f"compare.{end}" for end in ENDS)}


@pytest.mark.parametrize("names", [*ENDS, "png,md", "html,json"])
def test_only_the_wanted_files_are_written(tmp_path: Path, names: str, capsys: Captured) -> None:
    write(tmp_path / "in", [result()])
    assert main([str(tmp_path / "in"), "--output", str(tmp_path / "deep" / "out"), "--format", names]) == 3
    said = {word.rstrip(",").split("/")[-1] for word in capsys.readouterr().err.split()[1:]}
    assert {path.name for path in tmp_path.glob("*/*/*")} == {f"compare.{name}" for name in names.split(",")} == said
    assert len(list((tmp_path / "in").iterdir())) == 1


def test_with_many_runs_the_failure_of_the_process_that_draws_the_picture_is_reported(tmp_path: Path) -> None:
    text = "compare.MANY_RUNS = 1; from evaluate.report import pictures; "
    text += "pictures.png = lambda *_, **__: open('/dev/full/compare.png'); sys.exit(compare.main(sys.argv[1:]))"
    arguments = [str(write(tmp_path / "in", [result()])), "--output", str(tmp_path / "out")]
    command = [sys.executable, "-c", f"import sys; from evaluate import compare; {text}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n"), [*(tmp_path / "out").iterdir()]) == (1, 1, []), done.stderr
    assert done.stderr.startswith("error: ") and "compare.png" in done.stderr


@pytest.mark.parametrize(
    "option",
    [
        "--format=",
        "--band=1",
        "--target-loss=-1",
        "--target-loss=inf",
        "--by=colour",
        "--baseline=intel",
        *(f"--token-budget={text}" for text in ("0", "-1e12", "nan", "inf", "many")),
        "--prices={in}/missing",
        "--prices={in}/half",
        "--prices={in}/negative",
    ],
)
def test_bad_input_is_one_line_and_2(tmp_path: Path, option: str) -> None:
    write(tmp_path, [result(), result(framework="hf")])
    (tmp_path / "half").write_text("{")
    (tmp_path / "negative").write_text('{"currency": "EUR", "prices": {"X": {"price": -1}}}')
    name, _, value = option.replace("{in}", str(tmp_path)).partition("=")
    assert (value if name == "--prices" else name) in refused(main, tmp_path, f"{name}={value}")
    assert not list(tmp_path.glob("compare.*"))


def test_the_target_loss_of_the_command_is_reached_on_the_curve_of_each_run(tmp_path: Path) -> None:
    content = compared(write(tmp_path, vendors()), "--target-loss", "4.5", "--format", "json,md,html", code=0)
    found = [row["metrics"]["time_to_target_loss"] for row in content["groups"][0]["rows"]]
    # the mean of ten steps from step s on is 3 + 5 x 0.95^(s - 1) x 0.8025: under 4.5 from s = 21 on, step 21 to 30
    assert (content["target_loss"], *(one["value"] for one in found)) == pytest.approx((4.5, 30, 27), rel=0.01)
    for name in ("md", "html"):
        assert "until the mean loss of 10 steps is 4.5, at step 30" in (tmp_path / f"compare.{name}").read_text()


def test_every_number_of_the_json_has_its_inputs(tmp_path: Path) -> None:
    found = compared(write(tmp_path, vendors()), code=0)
    (verdict,) = found["verdicts"]
    a, b = (geometric_mean(one["tokens_per_second_per_gpu"] for one in side) for side in verdict["inputs"])
    assert verdict["ratio"] == pytest.approx(b / a)
    assert [[one["file"] for one in side] for side in verdict["inputs"]] == verdict["files"]
    for row in found["groups"][0]["rows"]:
        metrics = row["metrics"].values()
        assert metrics and all(one["how"] and len(one["runs"]) == row["runs_counted"] for one in metrics)


@pytest.mark.parametrize(
    ("by", "changes", "names"),
    [
        ("platform", {"platform": "amd", "gpu_info__device_name": "AMD Instinct MI300X"}, ["AMD", "Example CPU"]),
        ("framework", {"framework": "hf"}, ["hf on Example CPU", "mega on Example CPU"]),
        ("machine", {"provenance__host": "other"}, ["example on Example CPU", "other on Example CPU"]),
        ("label", {"label": "sweep_mbs4"}, ["no label on Example CPU", "sweep_mbs4 on Example CPU"]),
    ],
)
def test_sides_differ_in_the_requested_property(
    tmp_path: Path, by: str, changes: dict[str, Any], names: list[str]
) -> None:
    (verdict,) = compared(write(tmp_path, [result(), result(**changes)]), "--by", by)["verdicts"]
    found = sorted((verdict["a"], verdict["b"]))
    assert all(name.startswith(wanted) for name, wanted in zip(found, names, strict=True)), found


@pytest.mark.parametrize(("content", "words"), [(failed_early(), "out of memory"), ([], "wanted an object")])
def test_no_single_ok_result_exits_1_and_still_shows_the_reasons(
    tmp_path: Path, content: Any, words: str, capsys: Captured
) -> None:
    compared(write(tmp_path, [content]), "--format", "json,md", code=1)
    output = capsys.readouterr()
    assert words in " ".join(output.out.split()) and words in (tmp_path / "compare.md").read_text()
    assert output.err.splitlines()[-1].startswith("error: ")
