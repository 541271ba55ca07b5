"""The history of simulated days whose truth is known: verdict, exit code, and what changed with it."""

from __future__ import annotations

import json
import re
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from bundles import pack, written
from changes import unknown
from reports import refused
from sides import START_UP_SECONDS, both, day, start_at, write, write_days

from evaluate import history
from evaluate.history import main
from evaluate.timeline.states import differences
from example import example_result

SPEED = "tokens_per_second_per_gpu"
LOSSES = [float(3 + 5 * 0.95**step) for step in range(100)]


def told(folder: Path, *arguments: object, code: int) -> dict[str, Any]:
    """Run the command with this folder for its output, check its exit code, and return history.json."""
    assert main([*map(str, arguments), "--output", str(folder / "out")]) == code
    return dict(json.loads((folder / "out" / "history.json").read_text()))


def only(*arguments: Any, code: int) -> dict[str, Any]:
    """Return the only series of what `told` returns."""
    (series,) = told(*arguments, code=code)["series"]
    return dict(series)


def track(series: dict[str, Any], quantity: str) -> dict[str, Any]:
    return next(one for one in series["tracks"] if one["quantity"] == quantity)


def versions(torch: str, driver: str = "550.1") -> dict[str, Any]:
    packages = {"torch": torch, "python": "3.12.1"}
    return {"provenance__framework_versions": packages, "gpu_info__driver_version": driver}


def test_a_slowdown_is_found_with_both_versions_that_changed_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = {"seconds": 1 / 0.95, **versions("2.8.0", "560.2")}
    latest = track(
        only(tmp_path, *write_days(tmp_path, 8, lambda n: slow if n >= 6 else versions("2.7.0")), code=3), SPEED
    )["latest"]
    assert latest["ratio"] == pytest.approx(0.95, abs=0.01)
    assert 0.93 < latest["interval"][0] < latest["ratio"] < latest["interval"][1] < 0.97
    assert (latest["since_utc"], latest["runs"]) == ("2026-10-07T04:00:00+00:00", [18, 6])
    changed = {(one["name"], one["before"], one["after"]) for one in latest["changed_with_it"]}
    assert changed == {("torch", "2.7.0", "2.8.0"), ("driver", "550.1", "560.2")}
    out = " ".join(capsys.readouterr().out.split())  # the terminal decides where a line ends
    assert out.startswith("Slower by more than 3.0%: llama tiny, nvd/mega on NVIDIA H100 80GB HBM3, host nvd-1.")
    assert "changed with it: torch 2.7.0 -> 2.8.0, driver 550.1 -> 560.2" in out


STEP, RISE, BAD_DAY = (1.0,) * 5 + (1.06,) * 5, (1.0,) * 4 + (1.02,) * 4, (1.0,) * 5 + (1.12,)
ONE_RUN = {"runs": 1}


@pytest.mark.parametrize(
    ("seconds", "made", "options", "code", "verdict", "changes", "latest", "odd"),
    [
        ((1.0,) * 6 + (0.94,) * 6, {}, (), 0, "faster", 1, 1 / 0.94, None),  # no regression
        # each step is below the band of 3 %, both are not
        ((1.0,) * 3 + (1.02,) * 3 + (1.04,) * 6, {"noise": 0.001}, (), 3, "slower", 2, 1 / 1.04, None),
        *(((1.0,) * 10, {"noise": noise}, (), 0, "steady", 0, None, None) for noise in (0.005, 0.02, 0.04)),
        (RISE, {"noise": 0.001}, (), 0, "steady", 1, None, None),  # within the band
        (RISE, {"noise": 0.001}, ("--band", "0.015"), 3, "slower", 1, 1 / 1.02, None),
        (STEP, {}, (), 3, "slower", 1, 1 / 1.06, None),
        (STEP, {}, ("--since", "2026-10-06"), 0, "steady", 0, None, None),  # an accepted change
        (BAD_DAY, {}, (), 3, "slower", 1, 1 / 1.12, None),  # nobody knows yet that it recovers
        (BAD_DAY + (1.0,) * 4, {}, (), 0, "steady", 0, None, "2026-10-06"),
        # five steps of 1 % add up
        (tuple(1.01**step for step in range(6)), {"noise": 0.001}, (), 3, "slower", 2, 1 / 1.01**4, None),
        (tuple(1.01 ** (step // 2) for step in range(12)), {"noise": 0.001}, (), 3, "slower", 1, 1 / 1.01**5, None),
        # one run a day: three bad days are an alarm
        ((1.0,) * 9 + (1.08,), ONE_RUN, (), 0, "suspected", 1, 1 / 1.08, None),
        ((1.0,) * 9 + (1.08,) * 3, ONE_RUN, (), 3, "slower", 1, 1 / 1.08, None),
        ((1.0, 2.0), ONE_RUN, (), 0, "too few runs", 0, None, None),
    ],
)
def test_the_latest_level_is_judged_by_the_first_and_the_band_in_any_order_of_the_folders(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    seconds: tuple[float, ...],
    made: dict[str, Any],
    options: tuple[str, ...],
    code: int,
    verdict: str,
    changes: int,
    latest: float | None,
    odd: str | None,
) -> None:
    folders = write_days(tmp_path, len(seconds), lambda n: {"seconds": seconds[n]}, **made)
    series = only(tmp_path, *folders[::-1], *options, code=code)
    found = track(series, SPEED)
    assert (series["verdict"], len(found["changes"])) == (verdict, changes)
    assert (found["latest"] and found["latest"]["ratio"]) == (latest and pytest.approx(latest, abs=0.012))
    assert not odd or [one["first_utc"][:10] for one in found["odd"]] == [odd]
    assert not odd or f"odd day {odd}" in capsys.readouterr().out


@pytest.mark.parametrize(("share", "code"), [(0.08, 3), (0.01, 0)])
def test_more_time_outside_the_steps_is_slower(
    tmp_path: Path, share: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The steps are as fast as before, and the loop around them takes longer: 8 % of it are in no step."""
    folders = write_days(tmp_path, 8)
    for folder in folders[5:]:
        for path in folder.glob("*.json"):
            result = json.loads(path.read_text())
            result["performance_metrics"]["loop_seconds"] = round(sum(result["step_times"]) / (1 - share), 3)
            start_at(result, datetime.fromisoformat(result["provenance"]["started_utc"]), START_UP_SECONDS + 10)
            path.write_text(json.dumps(result))
    series = only(tmp_path, *folders, code=code)
    assert track(series, SPEED)["word"] == "steady" and series["verdict"] == ("slower" if code else "steady")
    loop = track(series, "loop_over_steps")
    assert loop["word"] == series["verdict"]
    assert not code or loop["latest"]["ratio"] == pytest.approx(1 / (1 - share) / 1.001, rel=1e-4)
    assert ("outside the steps" in capsys.readouterr().out) == bool(code)


def test_a_version_without_effect_is_listed_and_is_no_change(tmp_path: Path) -> None:
    folders = write_days(tmp_path, 8, lambda n: versions("2.8.0" if n >= 4 else "2.7.0"))
    series = only(tmp_path, *folders, code=0)
    assert track(series, SPEED)["changes"] == []
    ((started, what),) = [(one["started_utc"], one["differing"]) for one in series["version_changes"]]
    assert (started[:10], what) == ("2026-10-05", [{"name": "torch", "before": "2.7.0", "after": "2.8.0"}])
    assert [(one["versions"]["torch"], one["runs"]) for one in series["by_version"]] == [("2.7.0", 12), ("2.8.0", 12)]


def test_a_run_in_two_folders_and_an_archive_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = write_days(tmp_path / "days", 6)
    shutil.copytree(folders[2], tmp_path / "again")
    packed = written(tmp_path / "packed", day(1))
    shutil.rmtree(folders[1])
    shutil.copytree(packed, folders[1], ignore=shutil.ignore_patterns("logs", ".*"))
    archive = pack(packed).replace(tmp_path / "day1.zip")
    found = told(tmp_path, *folders, tmp_path / "again", archive, code=0)
    assert [len(one["runs"]) for one in found["series"]] == [18]
    assert (len(found["copies"]), found["not_in_a_series"]) == (6, [])
    assert "6 copies of runs in several folders: counted once." in capsys.readouterr().out


def test_failed_rejected_and_undated_results_are_listed_and_in_no_series(tmp_path: Path) -> None:
    failed, rejected, undated = day(9)
    failed |= {"status": "oom", "reason": "out of memory"}
    rejected["performance_metrics"]["avg_step_time_seconds"] = 0.5
    unknown("provenance", "started_utc", "finished_utc")(undated)
    write(tmp_path / "bad", [failed, rejected, undated])
    (tmp_path / "bad" / "train_nvd_mega_llama_run9.json").write_text("{")
    found = told(tmp_path, *write_days(tmp_path, 6), tmp_path / "bad", code=0)
    assert [len(one["runs"]) for one in found["series"]] == [18]
    reasons = " ".join(sorted(f"{one['run']}: {one['reason']}" for one in found["not_in_a_series"]))
    assert re.search("run 1: out of memory.*run 2: .*avg_step_time_seconds.*run 3: .*no start time", reasons), reasons
    assert [Path(one["file"]).name for one in found["unreadable"]] == ["train_nvd_mega_llama_run9.json"]


def test_runs_with_another_setting_host_or_label_never_share_a_series(tmp_path: Path) -> None:
    others: tuple[dict[str, Any], ...] = (
        {},
        {"host": "nvd-2"},
        {"label": "try"},
        {"framework": "hf"},
        {"platform": "amd"},
        {"training_config__lr": 2e-3, "resolved_config__lr": 2e-3, "host": "nvd-3"},
        {"training_config__recompute": "full", "resolved_config__recompute": "full", "host": "nvd-4"},
        {"fingerprint__dataset_bin_sha256": "7" * 64, "host": "nvd-5"},
    )
    for place, other in enumerate(others):
        write(tmp_path / "in" / str(place), day(place, 1 + place / 500, **other))
    found = told(tmp_path, tmp_path / "in", code=0)
    assert sorted(len(series["runs"]) for series in found["series"]) == [3] * len(others)
    for name, count in (("host", 7), ("host,label", 6)):  # without the host, only day 1 differs from day 0 in nothing
        joined = told(tmp_path, tmp_path / "in", "--join", name, code=0)
        assert len(joined["series"]) == count


def test_a_loss_off_its_course_is_said_before_the_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    off = {"loss_values": [loss + 0.15 for loss in LOSSES], "provenance__git_commit": "4" * 40}
    folders = write_days(tmp_path, 8, lambda n: {"seconds": 0.9, **off} if n >= 5 else {})
    series = only(tmp_path, *folders, code=0)
    # the mean of the last tenth: 3 + x before, 3.15 + x after, x = 5 * mean(0.95**90 ... 0.95**99) = 0.0396
    tail = 5 * sum(0.95**step for step in range(90, 100)) / 10
    assert track(series, "last_loss")["latest"]["ratio"] == pytest.approx((3.15 + tail) / (3 + tail), rel=1e-3)
    assert re.match("loss changed: .*faster: .*no gain", series["sentence"])
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("Loss changed: llama tiny") and "code commit 000000000000 -> 444444444444" in out
    told(tmp_path, *folders, "--fail-on", "slower,loss", code=3)


def test_losses_are_compared_seed_by_seed(tmp_path: Path) -> None:
    """Another seed has another loss: no change as long as each seed keeps its own."""
    later = both(seed=43) | {"loss_values": [loss + 0.2 for loss in LOSSES]}
    folders = write_days(tmp_path, 8, lambda n: later if n >= 4 else {"loss_values": LOSSES})
    found = [one for one in only(tmp_path, *folders, code=0)["tracks"] if one["quantity"] == "last_loss"]
    assert [(one["seed"], one["word"]) for one in found] == [(42, "steady"), (43, "steady")]


def test_more_memory_is_reported_and_can_be_made_a_failure(tmp_path: Path) -> None:
    peak = "memory_metrics__peak_memory_allocated_gb"
    folders = write_days(tmp_path, 8, lambda n: {peak: 1.4 if n >= 5 else 1.2})
    series = only(tmp_path, *folders, code=0)
    assert track(series, "peak_memory_gb")["word"] == "more"
    assert any(line.startswith("more peak memory: 1.2 -> 1.4 GB (+16.7%") for line in series["details"])
    told(tmp_path, *folders, "--fail-on", "memory", code=3)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["{tmp}/missing"], 2),
        (["{tmp}/empty"], 2),
        (["{tmp}/days", "--band", "nan"], 2),
        (["{tmp}/days", "--since", "soon"], 2),
        (["{tmp}/days", "--join", "hots"], 2),
        (["{tmp}/days", "--fail-on", ""], 2),
        (["{tmp}/no.zip"], 2),
        (["{tmp}/days", "--since", "2099-01-01"], 1),
        (["{tmp}/unusable"], 1),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], code: int) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "no.zip").write_text("no archive")
    write_days(tmp_path / "days", 1, runs=1)
    write_days(tmp_path / "unusable", 1, runs=1, status="failed", reason="no GPU")
    refused(main, *(one.format(tmp=tmp_path) for one in arguments), "--output", tmp_path / "out", code=code)
    assert not (tmp_path / "out").exists()


def test_the_report_of_one_folder_lies_in_it_and_of_several_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = write_days(tmp_path / "days", 2)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # its own report is no input, and is replaced
        assert main([str(tmp_path / "days")]) == main([*map(str, folders)]) == 0
    for place in (tmp_path / "days", tmp_path / history.HISTORY_FOLDER):
        assert {path.name for path in place.iterdir() if path.is_file()} == {"history.html", "history.json"}


# What differs between two runs: everything on record that may change the speed, each thing once.


OF_IMAGE = {"provenance__image": "tprimat:nvd", "provenance__image_digest": "sha256:" + "a" * 64}
OTHER_IMAGE = OF_IMAGE | {"provenance__image_digest": "sha256:" + "b" * 64}
COMMIT = {"provenance__git_commit": "1" * 40}


@pytest.mark.parametrize(
    ("before", "changes", "lines"),
    [
        ({}, {"provenance__framework_versions": {"torch": "2.14.0"}}, ["torch 2.13.0 -> 2.14.0"]),
        ({}, {"provenance__framework_versions": {"torch": "2.13.0", "triton": "3.5"}}, ["triton none -> 3.5"]),
        ({}, {"provenance__environment": {"OMP_NUM_THREADS": "1"}}, ["environment OMP_NUM_THREADS none -> 1"]),
        ({}, COMMIT, ["code commit 000000000000 -> 111111111111"]),
        ({}, {"provenance__code_sha256": "8" * 64}, ["code 999999999999 -> 888888888888"]),
        ({}, COMMIT | {"provenance__code_sha256": "8" * 64}, ["code commit 000000000000 -> 111111111111"]),
        (
            {},
            {"provenance__framework_versions": {"torch": "2.14.0"}, "gpu_info__pytorch_version": "2.14.0"},
            ["torch 2.13.0 -> 2.14.0"],
        ),
        ({}, {"resolved_config__attention_backend": "flash"}, ["attention backend torch_sdpa -> flash"]),
        ({}, {"resolved_config__overlap_grad_reduce": True}, ["overlap grad reduce false -> true"]),
        # an image and its digest are one line
        (OF_IMAGE, OTHER_IMAGE, ["image digest aaaaaaaaaaaa -> bbbbbbbbbbbb"]),
        (OF_IMAGE, OTHER_IMAGE | {"provenance__image": "tprimat:new"}, ["container image tprimat:nvd -> tprimat:new"]),
        # what is unknown, or another run, is no change
        ({}, {"run": 3}, []),
        ({}, {"provenance__started_utc": "2026-11-22T00:00:00+00:00"}, []),
        ({}, {"resolved_config__seed": 43, "training_config__seed": 43}, []),
        ({}, {"provenance__framework_versions": None}, []),
        ({}, {"provenance__environment": None}, []),
        ({}, {"provenance__git_commit": None}, []),
        ({}, {"gpu_info__driver_version": "560.1"}, []),  # unknown before
    ],
)
def test_each_change_on_record_is_one_line(before: dict[str, Any], changes: dict[str, Any], lines: list[str]) -> None:
    found = differences(example_result(**before), example_result(**changes))
    assert [one.text for one in found] == lines
