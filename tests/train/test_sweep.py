"""A sweep: every combination is a point, once, each under a label of its own, and nothing that cannot be swept.

RUNS=auto: a matrix gets the runs that its results ask for, alone, interrupted, on Slurm and on another node.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import threading

import pytest
from benches import FAILS, Bench, Ran, rounds

from evaluate.report.sweeps import SweepError, read
from train import sweep
from utils.results import store, sweep_file
from utils.results.store import write_json
from utils.results.sweep_file import Point, Sweep
from utils.settings.keys import KEYS

ONE_JOB = ("FRAMEWORK=mega", "MODEL=llama", "GBS=16")


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs `train.sweep`; `started` has the commands of the points, none of which trains, `codes` their exit codes."""

    def start(command, **options):
        if "train.matrix" in command:
            run.started.append(command)
        return Ran(next((code for word, code in run.codes.items() if word in command), 0))

    def run(*arguments):
        """Return exit code, planned points, errors and the file of the sweep."""
        run.started.clear()
        where = (f"OUTPUT_DIR={tmp_path / 'output'}", f"DATA_DIR={tmp_path / 'data'}")
        with monkeypatch.context() as patch:
            patch.setattr("sys.argv", ["sweep", "--platform", "cpu", *where, *arguments])
            patch.setattr("subprocess.Popen", start)
            code = sweep.main()
        said, error = capsys.readouterr()
        return code, [line.split("  ")[-1] for line in said.splitlines()[1:]], error

    def points(name="sweep"):
        return read(tmp_path / "output" / "sweeps" / f"{name}.json").points

    run.started, run.codes, run.points = [], {}, points
    return run


def test_every_combination_is_one_point_in_the_order_of_the_values(run):
    code, points, error = run("--dry-run", *ONE_JOB, "MBS=2,8", "SL=64,128,256")
    assert code == 0, error
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


BAD = {
    "no axis": (["MBS=2"], "two values"),
    "value twice": (["MBS=2,2"], "MBS=2,2"),
    "empty value": (["MBS=2,"], "MBS=2,"),
    "label": (["LABEL=a,b", "MBS=1,2"], "LABEL=a,b"),
    "label of another folder": (["LABEL=../out", "MBS=1,2"], "LABEL=../out"),
    "label of the suite's": (["LABEL=logs", "MBS=1,2"], "LABEL=logs"),
    "a word among numbers": (["MBS=2,two"], "MBS=two"),
    "runs": (["RUNS=1,2"], "RUNS=1,2"),
    "all frameworks": (["FRAMEWORK=all", "MBS=1,2"], "FRAMEWORK=all"),
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


# RUNS=auto

STEADY = [1000 * math.exp(step) for step in (-0.002, 0.0, 0.002)] * 4
"""s = 0.2 %: known within 0.5 % after three runs."""
RESTLESS = [1000.0, 1020.0, 990.0, 1010.0, 995.0, 1005.0, 1000.0]
"""Half widths after 3 to 7 runs, worked out with scipy: 3.8, 2.1, 1.5, 1.1 and 0.92 %."""
WILD = [1000.0, 1200.0] * 5
SEVEN_AND_THREE = [*rounds(1, 3, "mega", "hf"), *rounds(4, 7, "mega")]
OTHER_NODE = ("NNODES=2", "MASTER_ADDR=n0", "NODE_RANK=1")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return lambda mega, hf=STEADY: Bench(tmp_path, monkeypatch, mega, hf)


def test_each_job_gets_the_runs_that_its_own_results_ask_for_in_rounds(bench):
    ours = bench(RESTLESS)
    code, said, _ = ours.run()
    assert code == 0 and ours.started == SEVEN_AND_THREE
    assert "--- job 1 of 6 to 20: mega llama run 1" in said and "--- job 10 of 10 to 13: ok" in said
    assert "mega llama: 3 runs, mean known within +-3.8 % (95 %), +-1 % wanted: another run follows" in said
    assert "runs: mega llama: 7 runs, mean known within +-0.92 % (95 %)" in said
    assert "runs: hf llama: 3 runs, mean known within +-0.5 % (95 %)" in said
    assert ours.status()["runs_ended"]["mega llama"].startswith("7 runs") and ours.status()["jobs_total"] == 10
    _, (line,) = ours.plan()
    assert line.startswith("plan: 10 jobs, 10 with an ok result already; RUNS=auto")
    assert ours.plan()[0].count("has an ok result, is skipped") == 10 and "more, by" not in ours.plan()[0]


@pytest.mark.parametrize(
    ("mega", "hf", "settings", "wanted"),
    [
        (RESTLESS, STEADY, ("ORDER=grouped",), [*rounds(1, 7, "mega"), *rounds(1, 3, "hf")]),
        (WILD, STEADY, (), [*rounds(1, 3, "mega", "hf"), *rounds(4, 10, "mega")]),
        ([*STEADY[:1], FAILS, *STEADY[2:]], STEADY, (), [*rounds(1, 3, "mega", "hf"), ("mega", 4)]),
        ([FAILS] * 10, WILD, ("RUNS=4",), rounds(1, 4, "mega", "hf")),
    ],
    ids=["grouped", "ten are the most", "a failed run is replaced", "a number is tried as often as it says"],
)
def test_runs_of_a_matrix(bench, mega, hf, settings, wanted):
    assert bench(mega, hf).train(*settings) == wanted


@pytest.mark.parametrize("interrupted_run", (1, 4, 6, 7, 10))
def test_interrupted_matrix_goes_on_to_the_runs_of_an_undisturbed_one(bench, interrupted_run):
    ours = bench(RESTLESS)
    code, _, said = ours.run(interrupted_run=interrupted_run)
    assert code == 143 and ours.started == SEVEN_AND_THREE[:interrupted_run] and "run the same command again" in said
    assert [ours.status()[key] for key in ("state", "phase")] == ["interrupted", "training"]
    assert ours.train() == SEVEN_AND_THREE[interrupted_run - 1 :]
    assert ours.train() == [], "a finished matrix is not trained again"
    assert ours.status()["jobs_total"] == 10


def test_a_number_and_auto_go_on_from_the_runs_of_one_another(bench):
    ours = bench(RESTLESS)
    assert ours.train("RUNS=4") == rounds(1, 4, "mega", "hf")
    assert ours.train() == rounds(5, 7, "mega")
    assert ours.train("RUNS=5") == [("hf", 5)]
    assert ours.train("RUNS=2") == [] and ours.train() == []
    ours.speeds["mega"] = STEADY
    assert ours.train("FORCE=1") == rounds(1, 3, "mega", "hf"), "a forced matrix counts only its own runs"


def test_job_that_fails_twice_is_not_tried_again_and_the_others_are(bench):
    ours = bench([FAILS] * 10)
    code, said, _ = ours.run()
    assert code == 1 and ours.started == [*rounds(1, 2, "mega", "hf"), ("hf", 3)]
    assert "mega llama: 0 runs and 2 failed; no further one, because 2 failed" in said
    result = json.loads(ours.job("mega", 1).result_path.read_text())
    assert "the launcher of the job ended with exit code 1" in result["reason"] and result["attempt"] == 1
    assert ours.train() == rounds(1, 2, "mega"), "the same command tries failed runs again, as with a number"
    ours.train("FORCE=1")
    kept = ours.output / store.SUPERSEDED / "train_cpu_hf_llama_run1_attempt1.json"
    assert json.loads(kept.read_text())["status"] == "ok", "of an earlier attempt"


def test_plan_states_the_least_and_the_most_and_what_is_left(bench, monkeypatch):
    ours = bench(RESTLESS)
    said, (plan_line, time_line) = ours.plan()
    rule = "RUNS=auto: 3 to 10 runs of each job, until its mean tokens/s/GPU is known within +-1 % (95 %)"
    assert plan_line == f"plan: 6 to 20 jobs, 0 with an ok result already; {rule}"
    assert time_line.startswith("time: unknown")
    assert said.count("  runs: train/train_cpu_") == 6 and f"then at most 14 more, by {rule}" in said
    monkeypatch.setattr("platform.node", lambda: "example")  # the host of the results, whose times count
    ours.train(interrupted_run=8)  # mega 1 to 4, hf 1 to 3
    said, (plan_line, time_line) = ours.plan("COOLDOWN_SECONDS=5")
    assert plan_line.startswith("plan: 8 to 13 jobs, 7 with an ok result already")
    # each took 10 s by its result: one run of mega is left, 5 more may follow, each after a pause of 5 s
    assert time_line.startswith("time: at least 0:10, at most 1:25 (") and "then at most 5 more" in said


@pytest.mark.parametrize(("runs", "least", "most", "target"), [("auto", 3, 10, 1.0), ("5", 5, 5, None)])
def test_result_records_the_rule(bench, runs, least, most, target):
    ours = bench([FAILS] * 10)
    ours.train(f"RUNS={runs}")
    result = store.read(ours.job("mega", 1).result_path)
    rule = {key: result["repeats"][key] for key in ("runs", "least", "most", "target_percent")}
    assert rule == {"runs": runs, "least": least, "most": most, "target_percent": target}


def test_auto_on_slurm_submits_the_next_round_when_the_results_of_the_last_are_there(bench, monkeypatch):
    monkeypatch.setenv("TPRIMAT_MACHINE", "")
    ours = bench(RESTLESS)
    code, said, error = ours.submit()
    assert code == 0, said + error
    assert [one for one in ours.rounds if one] == [
        rounds(1, 3, "mega", "hf"),
        *([("mega", run)] for run in range(4, 8)),
    ]


def test_another_node_waits_for_the_result_of_node_0_and_starts_the_same_runs(bench, monkeypatch):
    ours = bench([*RESTLESS[:2], FAILS, *RESTLESS[3:], *STEADY])
    undisturbed = ours.train("NNODES=2", "MASTER_ADDR=n0")
    for path in ours.output.rglob("train_*.json"):
        path.unlink()
    monkeypatch.setattr("train.runner.run_job.POLL_SECONDS", 0.005)

    def write_failure(job):
        result = job.empty_result("failed", "a reason", "1" * 64, "c", "2026-01-01T00:00:00+00:00")
        store.write(result, job.result_path)

    def on_start(job):
        place = ours.output / "logs" / f".nodes2_{job.name}.nodes"
        place.mkdir()

        def finalize():  # as node 0 does, later than this node's launcher ends
            if ours.write(job):
                write_failure(job)
            place.rmdir()

        threading.Timer(0.05, finalize).start()
        return True

    write_failure(ours.job("mega", 1, "NNODES=2", "MASTER_ADDR=n0"))  # of an earlier attempt
    ours.on_start = on_start
    code, said, error = ours.run(*OTHER_NODE)
    assert code == 0, said + error
    assert ours.started == undisturbed and len(undisturbed) > 6


def test_another_node_counts_a_job_of_which_node_0_leaves_no_result_as_failed(bench, monkeypatch):
    ours = bench([FAILS] * 10, [FAILS] * 10)
    monkeypatch.setattr("train.runner.run_job.RESULT_SECONDS", 0.02)
    monkeypatch.setattr("train.runner.run_job.POLL_SECONDS", 0.005)
    assert ours.run(*OTHER_NODE, "FRAMEWORK=mega")[0] == 1
    assert len(ours.started) == 2
    assert ours.run(*OTHER_NODE, "RUNS=1")[0] == 1 and ours.started == rounds(1, 1, "mega", "hf")
    assert not list(ours.output.rglob("*.json")), "node 0 writes the results"
    assert ours.run(*OTHER_NODE, "FRAMEWORK=mega", interrupted_run=1)[0] == 143 and len(ours.started) == 1
