"""A sweep: every combination is a point, once, each under a label of its own, and nothing that cannot be swept."""

from __future__ import annotations

import itertools
import re

import pytest

from train import sweep
from utils.results import sweep_file
from utils.results.store import write_json
from utils.results.sweep_file import Point, Sweep, SweepError, read
from utils.settings.keys import KEYS

ONE_JOB = ("FRAMEWORK=mega", "MODEL=llama", "GBS=16")


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs `train.sweep`; `started` has the commands of the points, none of which trains, `codes` their exit codes."""

    class Ended:
        def __init__(self, command, **options):
            run.started.extend([command] if "train.matrix" in command else [])
            self._code = next((code for word, code in run.codes.items() if word in command), 0)

        def poll(self):
            return self._code

        wait = poll

    def run(*arguments):
        """Return exit code, planned points, errors and the file of the sweep."""
        run.started.clear()
        where = (f"OUTPUT_DIR={tmp_path / 'output'}", f"DATA_DIR={tmp_path / 'data'}")
        with monkeypatch.context() as patch:
            patch.setattr("sys.argv", ["sweep", "--platform", "cpu", *where, *arguments])
            patch.setattr("subprocess.Popen", Ended)
            code = sweep.main()
        said, error = capsys.readouterr()
        return code, [line.split("  ")[-1] for line in said.splitlines()[1:]], error

    def points(name="sweep"):
        return read(tmp_path / "output" / "sweeps" / f"{name}.json").points

    run.started, run.codes, run.points = [], {}, points
    return run


def settings_of(run, *arguments):
    code, points, error = run("--dry-run", *ONE_JOB, *arguments)
    assert code == 0, error
    return points


def test_every_combination_is_one_point_in_the_order_of_the_values(run):
    points = settings_of(run, "MBS=2,8", "SL=64,128,256")
    wanted = itertools.product(["2", "8"], ["64", "128", "256"])
    assert [point.split(" (")[0] for point in points] == [f"MBS={mbs} SL={sl}" for mbs, sl in wanted]


def test_frameworks_and_models_of_the_settings_files_are_axes_too(run):
    code, points, _ = run("--dry-run", "MBS=2,4", "MODEL=llama,qwen")  # config.cpu.env: FRAMEWORK=mega,hf
    assert code == 0 and len(points) == 8
    assert all({word.split("=")[0] for word in point.split()} >= {"MBS", "MODEL", "FRAMEWORK"} for point in points)


@pytest.mark.parametrize(("more", "runs"), [((), "RUNS=1"), (("RUNS=5",), "RUNS=5")])
def test_a_point_is_run_once_unless_the_number_of_runs_is_given(more, runs, run):
    assert run(*ONE_JOB, "MBS=2,4", *more)[0] == 0
    assert [runs in command for command in run.started] == [True, True]
    assert "MBS=4" in run.started[1] and "GBS=16" in run.started[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["MBS=2,4", "SL=64,128"],
        ["LABEL=mine", "MBS=2,4"],
        ["DATASET=/a/b,/a-b"],  # the same letters where a label allows only some
        ["SLURM_ACCOUNT=" + ",".join(f"{'x' * 100}{number}" for number in range(3))],
    ],
)
def test_labels_are_valid_and_different(arguments, run):
    run(*ONE_JOB, *arguments)
    labels = [point.label for point in run.points("mine" if "LABEL=mine" in arguments else "sweep")]
    assert len(set(labels)) == len(labels) > 1
    for label in labels:
        assert KEYS["LABEL"].parse(label) == label
        assert label.startswith("mine_" if "LABEL=mine" in arguments else "sweep_")
        assert len(label) <= 80


def test_the_label_of_a_sweep_is_not_that_of_another_with_the_same_letters(run):
    labels = []
    for path in ("/a/b,/c", "/a-b,/c"):
        run(*ONE_JOB, f"DATASET={path}")
        labels.append(run.points()[0].label)
    one, other = labels
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
def test_bad_arguments_are_refused_with_the_setting_in_the_message(name, run):
    arguments, named = BAD[name]
    code, _, error = run(*ONE_JOB, *arguments)
    assert code == 2 and error.startswith("error: ") and named in error


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


def test_a_point_that_exceeds_the_memory_is_marked_with_its_terms_and_not_started(run, monkeypatch):
    of = sweep.fit.lower_bound_gb
    needed = {}
    monkeypatch.setattr(sweep.fit, "lower_bound_gb", lambda found: needed.setdefault(of(found), of(found)))
    run("--dry-run", *ONE_JOB, "MBS=1,8")
    small, large = sorted(needed)
    monkeypatch.setattr(sweep, "capacity_gb", lambda config: ((small + large) / 2, "a test"))
    code, said, _ = run(*ONE_JOB, "MBS=1,8")
    first, second = run.points()
    assert code == 0 and (first.state, second.state) == (sweep_file.OK, sweep_file.DOES_NOT_FIT)
    assert f"at least {large:.1f} GB are needed of a device with" in second.reason and "weights" in second.reason
    assert len(run.started) == 1 and "MBS=1" in run.started[0]
    assert run(*ONE_JOB, "MBS=1,8", "FIT=ignore")[0] == 0 and len(run.started) == 2


def test_a_refused_point_is_impossible_and_a_failed_one_is_exit_1_after_the_others_have_run(run):
    run.codes["MBS=1"] = 5
    assert run(*ONE_JOB, "MBS=1,3,4")[0] == 1  # 16 sequences do not divide by 3 on each of two ranks
    assert [point.state for point in run.points()] == [sweep_file.FAILED, sweep_file.IMPOSSIBLE, sweep_file.OK]


def test_without_a_possible_point_nothing_is_written(run, tmp_path):
    code, _, error = run(*ONE_JOB, "MBS=3,5")
    assert code == 2 and error.startswith("error: no point is possible: ")
    assert not (tmp_path / "output").exists()


def test_a_file_of_a_user_stays(run, tmp_path):
    path = tmp_path / "output" / "sweeps" / "sweep.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert run(*ONE_JOB, "MBS=1,4")[0] == 2
    assert path.read_text() == "{}" and not run.started
