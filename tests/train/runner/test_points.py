"""The points of a sweep: every combination once, each under a label of its own, and nothing that cannot be swept."""

from __future__ import annotations

import itertools
import re

import pytest

from train.runner.points import arguments_of, sweep_of
from utils.errors import ConfigError
from utils.results.store import write_json
from utils.results.sweep_file import Point, Sweep, SweepError, path_of, read
from utils.settings.keys import KEYS

ONE_JOB = ("FRAMEWORK=mega", "MODEL=llama")


def test_every_combination_is_one_point_in_the_order_of_the_values():
    sweep = sweep_of("cpu", [*ONE_JOB, "MBS=2,8", "SL=64,128,256", "GBS=16"])
    wanted = [{"MBS": mbs, "SL": sl} for mbs, sl in itertools.product(["2", "8"], ["64", "128", "256"])]
    assert [point.settings for point in sweep.points] == wanted
    assert "GBS=16" in arguments_of(sweep, sweep.points[3])
    assert {"MBS=8", "SL=64"} <= set(arguments_of(sweep, sweep.points[3]))


def test_frameworks_and_models_of_the_settings_files_are_axes_too():
    sweep = sweep_of("cpu", ["MBS=2,4", "MODEL=llama,qwen"])  # config.cpu.env: FRAMEWORK=mega,hf
    assert list(sweep.axes) == ["MBS", "MODEL", "FRAMEWORK"]
    assert len(sweep.points) == 8


def test_a_point_is_run_once_unless_the_number_of_runs_is_given():
    assert "RUNS=1" in arguments_of(*_first([*ONE_JOB, "MBS=2,4"]))
    assert "RUNS=5" in arguments_of(*_first([*ONE_JOB, "MBS=2,4", "RUNS=5"]))


def _first(arguments):
    sweep = sweep_of("cpu", arguments)
    return sweep, sweep.points[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["MBS=2,4", "TP=1,2"],
        ["LABEL=mine", "MBS=2,4"],
        ["DATASET=/a/b,/a-b"],  # the same letters where a label allows only some
        ["SLURM_ACCOUNT=" + ",".join(f"{'x' * 100}{number}" for number in range(3))],
    ],
)
def test_labels_are_valid_and_different(arguments):
    sweep = sweep_of("cpu", [*ONE_JOB, *arguments])
    labels = [point.label for point in sweep.points]
    assert len(set(labels)) == len(labels)
    for label in labels:
        assert KEYS["LABEL"].parse(label) == label
        assert label.startswith("mine_" if "LABEL=mine" in arguments else "sweep_")
        assert len(label) <= 80


def test_the_label_of_a_sweep_is_not_that_of_another_with_the_same_letters():
    one, other = (sweep_of("cpu", [*ONE_JOB, f"DATASET={path}"]).points[0].label for path in ("/a/b,/c", "/a-b,/c"))
    assert one != other
    assert re.fullmatch(r"sweep_DATASET-a-b_[0-9a-f]{12}", one)


BAD = {
    "no axis": (["MBS=2"], "two values"),
    "nothing": ([], "two values"),
    "unknown key": (["MBZ=2,4"], "MBZ"),
    "no assignment": (["MBS"], "MBS"),
    "value twice": (["MBS=2,2"], "MBS=2,2"),
    "empty value": (["MBS=2,"], "MBS=2,"),
    "label": (["LABEL=a,b", "MBS=1,2"], "LABEL=a,b"),
    "label of another folder": (["LABEL=../out", "MBS=1,2"], "LABEL=../out"),
    "label of the suite's": (["LABEL=logs", "MBS=1,2"], "LABEL=logs"),
    "a slip in one value": (["MODEL=llama,lama"], "did you mean llama?"),
    "a word among numbers": (["MBS=2,two"], "MBS=two"),
    "runs": (["RUNS=1,2"], "RUNS=1,2"),
    "all frameworks": (["FRAMEWORK=all", "MBS=1,2"], "FRAMEWORK=all"),
    "all models": (["MODEL=all", "MBS=1,2"], "MODEL=all"),
    "both methods": (["METHOD=both", "MBS=1,2"], "METHOD=both"),
    "slurm": (["LAUNCHER=slurm", "MBS=1,2"], "LAUNCHER=slurm"),
    "too many": ([f"MBS={','.join(map(str, range(1, 40)))}", f"SL={','.join(map(str, range(2, 42)))}"], "1000"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused_with_the_setting_in_the_message(name):
    arguments, named = BAD[name]
    with pytest.raises(ConfigError, match=re.escape(named)):
        sweep_of("cpu", [*ONE_JOB, *arguments])


def test_the_file_of_a_sweep_reads_back_as_it_was_written(tmp_path):
    sweep = sweep_of("cpu", [*ONE_JOB, "MBS=2,4"])
    sweep.points[1].state, sweep.points[1].reason = "failed", "exit code 1"
    path = path_of(tmp_path, sweep.name)
    path.parent.mkdir()
    write_json(sweep.as_dict(), path)
    assert read(path) == sweep


@pytest.mark.parametrize(
    "change",
    [
        {"sweep_version": 2},
        {"axes": ["MBS"]},
        {"points": [{"settings": {"SL": "1"}, "label": "a", "state": "ok", "reason": None}]},
        {"points": [{"settings": {"MBS": "1"}, "label": "../a", "state": "ok", "reason": None}]},
        {"points": [{"settings": {"MBS": "1"}, "label": "a", "state": "good", "reason": None}]},
        {"points": 3},
        {"name": None},
    ],
)
def test_another_file_is_refused(tmp_path, change):
    good = Sweep("s", "cpu", {"MBS": ["1", "2"]}, {}, [Point({"MBS": "1"}, "s_MBS1")])
    path = tmp_path / "s.json"
    write_json(good.as_dict() | change, path)
    with pytest.raises(SweepError, match=re.escape(str(path))):
        read(path)
