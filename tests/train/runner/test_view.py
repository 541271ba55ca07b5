"""A matrix shows its progress: jobs in order, time left, plain lines without a terminal, 80 columns with one."""

import io
import json

import pytest
from rich.console import Console

from example import example_result
from train.preflight import matrix_checks as preflight
from train.runner import plan
from train.runner.live_view import COLUMNS, LiveView, live_lines, row, short_row
from train.runner.state import RUNNING, SKIPPED, JobState, MatrixState
from train.runner.status_file import StatusFile
from train.runner.times import duration
from train.runner.view import View
from utils.errors import ConfigError
from utils.results import store
from utils.results.step_line import Step


@pytest.fixture
def matrix(tmp_path):
    settings = (
        f"OUTPUT_DIR={tmp_path}",
        f"DATA_DIR={tmp_path / 'data'}",
        "MODEL=llama,qwen,mistral",
        "RUNS=5",
        "GBS=64",
        "MBS=8",
    )
    return plan.make("cpu", settings)


@pytest.fixture
def state(matrix):
    return MatrixState([JobState(number, job) for number, job in enumerate(matrix.jobs, 1)])


def finish(job, seconds, status="ok"):
    job.started, job.ended, job.state = 100.0, 100.0 + seconds, status
    job.result = example_result()


def test_order_is_interleaved_unless_grouped_is_asked(matrix, tmp_path):
    first = [(job.framework, job.model, job.run) for job in matrix.jobs[:7]]
    pairs = [(framework, model, 1) for model in ("llama", "qwen", "mistral") for framework in ("mega", "hf")]
    assert len(matrix.jobs) == 30
    assert first == [*pairs, ("mega", "llama", 2)]
    grouped = plan.make("cpu", (*matrix.arguments, "ORDER=grouped"))
    assert [(job.model, job.run) for job in grouped.jobs[:6]] == [("llama", run) for run in (1, 2, 3, 4, 5, 1)]
    assert {job.name for job in grouped.jobs} == {job.name for job in matrix.jobs}


def test_time_left_comes_from_jobs_of_the_same_kind(state):
    assert state.remaining_seconds() is None
    for job in state.jobs[:6]:
        finish(job, {"mega": 10.0, "hf": 20.0}[job.job.framework])
    assert state.remaining_seconds() == pytest.approx((4 * 3 * (10 + 20),) * 2)


def test_skipped_jobs_do_not_make_the_rest_look_quick(state):
    for job in state.jobs[:6]:
        finish(job, 0.0, SKIPPED)
    assert state.remaining_seconds() is None


def test_plain_view_has_a_line_at_the_first_last_and_every_tenth_step(state, tmp_path):
    stream = io.StringIO()
    with View(state, tmp_path / "matrix.log", stream) as view:
        job = state.jobs[0]
        job.state, job.started = RUNNING, 0.0
        view.job_started(job)
        for number in range(1, 31):
            job.take_step(Step(number, 30, 0.5, 0.5, 7.0, 0.4))
            view.refresh()
            view.refresh()
        finish(job, 15.0)
        view.job_ended(job)
    said = stream.getvalue().splitlines()
    assert said[0] == "--- job 1 of 30: mega llama run 1"
    steps = [int(line.split("step ")[1].split("/")[0]) for line in said if line.startswith("    step")]
    assert steps == [1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 30]
    assert "job 1 of 30: ok, 0.500 s per step, 16,384 tokens/s/GPU" in said[-1]
    log = (tmp_path / "matrix.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in log] == said, "everything is in the log, with its time"


def drawn(state, width, height=24):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    for line in live_lines(state, width, height):
        console.print(line)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("step", [None, 1, 12, 500])
def test_live_lines_fit_80_columns_and_name_job_step_and_time_left(state, tmp_path, step):
    for job in state.jobs[:24]:
        finish(job, 3000.0)
    state.jobs[3].state = "failed"
    job = state.jobs[25]
    job.state, job.started = RUNNING, 0.0
    if step:
        job.take_step(Step(step, 500, 12.3456, 12.3, 7.0123, 61.0))
    lines = drawn(state, 80)
    assert len(lines) == 2 and all(len(line.rstrip()) <= 80 for line in lines)
    assert "26" in lines[0] and job.title in lines[0]
    assert (f"{step}/30" if step is None else f"{step}/500") in lines[0] or "starting" in lines[0]
    assert "24 of 30 jobs, 1 failed" in lines[1] and "left" in lines[1]


def test_live_lines_of_an_open_number_of_runs_show_both_ends_of_the_time_and_fit_80_columns(matrix, tmp_path):
    state = MatrixState.of(plan.make("cpu", (*matrix.arguments, "RUNS=auto")).jobs)
    state.started -= 20 * 3600
    for job in state.jobs[:6]:
        finish(job, 7200.0)
    (_, line) = drawn(state, 80)
    # 12 planned runs and 7 more of each of 6 jobs are left, of two hours each
    assert "6 of 18 jobs" in line and line.rstrip().endswith("24:00:00 to 108:00:00 left")
    assert len(line.rstrip()) <= 80


@pytest.mark.parametrize(("columns", "lines"), [(20, 5), (1, 1), (40, 3), (79, 24)])
def test_live_lines_of_a_small_terminal_fit_it_and_begin_with_job_and_time_left(state, columns, lines):
    for job in state.jobs[:24]:
        finish(job, 10.0)
    job = state.jobs[24]
    job.state, job.started = RUNNING, 0.0
    job.take_step(Step(12, 30, 1.0, 1.0, 7.0, 1.0))
    state.warnings = [("a", "busy")] * 2
    shown = drawn(state, columns, lines)
    assert len(shown) <= max(1, lines - 1) and all(len(line.rstrip()) <= columns for line in shown)
    if columns >= 20:
        assert shown[0].startswith("12/30 mega llama ru") and shown[1].startswith("about ")


def test_rows_of_a_small_terminal_begin_with_the_status(state):
    finish(state.jobs[28], 1.0, "timeout")
    assert short_row(state.jobs[28], 30).plain.startswith("29/30 timeout ")


def test_a_terminal_that_becomes_narrower_is_drawn_again_and_keeps_the_finished_jobs(state, tmp_path):
    console = Console(file=io.StringIO(), width=100, height=24, force_terminal=True, color_system=None)
    with LiveView(state, tmp_path / "matrix.log", console) as view:
        finish(state.jobs[0], 10.0)
        view.job_ended(state.jobs[0])
        console.size = (40, 10)
        before = len(console.file.getvalue())
        view.refresh()
        again = console.file.getvalue()[before:]
        view.refresh()
        finish(state.jobs[1], 10.0)
        view.job_ended(state.jobs[1])
    assert again.count("\x1b[2J") == 1, "cleared once"
    assert "1/30 ok mega llama run 1" in again
    assert "2/30 ok hf llama run 1" in console.file.getvalue()[before:]


def test_one_job_and_an_unknown_time_are_named_in_words(state, tmp_path):
    state.jobs = state.jobs[:1]
    (_, line) = drawn(state, 80)
    assert "0 of 1 job " in line and "elapsed, remaining time unknown" in line
    assert state.counts == "1 job, 0 failed" and state.good == "0 of 1 job has an ok result"


def test_rows_fit_80_columns(state):
    finish(state.jobs[29], 36000.0)
    finish(state.jobs[28], 1.0, "timeout")
    assert len(COLUMNS) <= 80
    assert all(len(row(job, 30).plain) <= 80 for job in state.jobs[28:])


def test_durations_read_as_clocks():
    assert [duration(seconds) for seconds in (None, 0.4, 59.6, 3599.6, 36061)] == [
        "-",
        "0:00",
        "1:00",
        "1:00:00",
        "10:01:01",
    ]


def test_status_file_is_json_of_every_job(state, tmp_path):
    state.jobs[0].state = RUNNING
    state.jobs[0].take_step(Step(3, 30, 0.5, 0.5, float("nan"), 0.4))
    StatusFile(tmp_path, state).write()
    status = json.loads((tmp_path / "status.json").read_text())
    assert status["jobs_total"] == 30 and status["state"] == "running"
    assert status["jobs"][0]["step"] == 3 and status["jobs"][0]["loss"] is None
    assert {job["state"] for job in status["jobs"][1:]} == {"waiting"}


def test_status_file_on_a_full_disk_does_not_end_the_matrix(state, tmp_path, capsys, monkeypatch):
    def full(*arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("train.runner.status_file.write_json", full)
    status = StatusFile(tmp_path, state)
    status.write()
    status.write()
    assert capsys.readouterr().err.count("is out of date") == 1


def test_dry_run_names_every_job_its_command_and_where_each_setting_came_from(matrix, tmp_path):
    said = plan.text(matrix)
    assert said.count("  runs: train/train_cpu_") == 30
    assert "train/train_cpu_hf_mistral.sh --run 5" in said
    lines = {line.split()[0]: line for line in said.splitlines() if line.startswith("  ") and "(" in line}
    assert lines["RUNS"].endswith("5  (argument)")
    assert "(config.cpu.env:" in lines["MODEL_SIZE"] and "(config.env:" in lines["WEIGHT_DECAY"]
    assert not list(tmp_path.iterdir()), "nothing was written"


def test_missing_script_is_named_before_anything_starts(matrix, monkeypatch, tmp_path):
    monkeypatch.setattr(preflight, "ROOT", tmp_path)
    with pytest.raises(ConfigError, match="train/train_cpu_hf_llama.sh: missing or not executable"):
        preflight.check(matrix)


def test_full_disk_is_named_with_what_is_needed(matrix, monkeypatch):
    usage = type("Usage", (), {"free": 5_000_000})
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: usage)
    # 30 jobs of a quarter and one MiB: 39.3 MB
    with pytest.raises(ConfigError, match=r"OUTPUT_DIR=.*5\.0 MB are free, about 39\.3 MB are needed"):
        preflight.check(matrix)


def test_time_of_the_matrix_comes_from_results_of_this_machine(matrix, tmp_path, monkeypatch):
    jobs = [job for job in matrix.jobs if job.framework == "mega" and job.model == "llama"]
    assert preflight.matrix_seconds(jobs)[0] is None
    asked = matrix.config.asked()
    earlier = example_result(training_config=asked)
    earlier["provenance"] |= {
        "started_utc": "2026-11-21T00:00:00+00:00",
        "finished_utc": "2026-11-21T00:01:40+00:00",
        "host": "here",
    }
    store.write(earlier, jobs[0].result_path)
    monkeypatch.setattr("platform.node", lambda: "elsewhere")
    assert preflight.matrix_seconds(jobs)[0] is None
    monkeypatch.setattr("platform.node", lambda: "here")
    assert preflight.matrix_seconds(jobs)[0] == pytest.approx((5 * 100, 5 * 100))


def test_memory_that_a_device_has_not_is_warned_of_with_what_fits(matrix, monkeypatch):
    jobs = matrix.jobs[:2]
    lines = preflight.memory_lines(jobs)
    assert [line.split(" about ")[0] for line in lines] == ["memory: mega llama", "memory: hf llama"]
    monkeypatch.setattr(preflight, "capacity_gb", lambda config: (0.6, "physical memory"))
    fits, warning = preflight.memory_lines(jobs)
    assert fits == "memory: mega llama about 0.5 GB of 0.6 GB (physical memory)"
    assert warning.startswith("warning: memory: hf llama: predicted, not run: at least 0.6 GB") and "MBS=" in warning
