"""A matrix shows its progress: jobs in order, time left, plain lines without a terminal, 80 columns with one."""

import io

import pytest
from benches import Bench
from rich.console import Console

from example import example_result
from tests.support.launching import Launcher
from train.runner.live_view import COLUMNS, LiveView, MatrixState, View, duration, live_lines, row, short_row, times
from utils.results.raw_samples import Step

RUNNING, SKIPPED = "running", "skipped"


MATRIX = ("MODEL=llama,qwen,mistral", "RUNS=5")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return Bench(tmp_path, monkeypatch, [1000.0], [1000.0])


@pytest.fixture
def state(bench):
    return MatrixState.of(bench.jobs(*MATRIX, "TRAIN_ITERS=30"))


def finish(job, seconds, status="ok"):
    job.started, job.ended, job.state = 100.0, 100.0 + seconds, status
    job.result = example_result()


def test_time_left_comes_from_jobs_of_the_same_kind(state):
    for job in state.jobs[:6]:
        finish(job, 0.0, SKIPPED)
    assert state.remaining_seconds() is None, "jobs that were skipped do not make the rest look quick"
    for job in state.jobs[:6]:
        finish(job, {"mega": 10.0, "hf": 20.0}[job.job.framework])
    assert state.remaining_seconds() == pytest.approx((4 * 3 * (10 + 20),) * 2)


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


def test_live_lines_of_an_open_number_of_runs_show_both_ends_of_the_time_and_fit_80_columns(bench):
    state = MatrixState.of(bench.jobs(*MATRIX, "RUNS=auto"))
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


def test_a_terminal_that_becomes_narrower_gets_short_rows_from_then_on(state, tmp_path):
    console = Console(file=io.StringIO(), width=100, height=24, force_terminal=True, color_system=None)
    with LiveView(state, tmp_path / "matrix.log", console) as view:
        for job, columns in zip(state.jobs, (100, 40), strict=False):
            console.size = (columns, 10)
            finish(job, 10.0)
            view.job_ended(job)
    shown = console.file.getvalue()
    assert COLUMNS in shown and "1/30   mega llama run 1" in shown and "2/30 ok hf llama run 1" in shown


def test_one_job_and_an_unknown_time_are_named_in_words(state, tmp_path):
    state.jobs = state.jobs[:1]
    (_, line) = drawn(state, 80)
    assert "0 of 1 job " in line and "elapsed, remaining time unknown" in line
    assert state.counts == "1 job, 0 failed" and state.good == "0 of 1 job has an ok result"


def test_rows_fit_80_columns_and_those_of_a_small_terminal_begin_with_the_status(state):
    finish(state.jobs[29], 36000.0)
    finish(state.jobs[28], 1.0, "timeout")
    assert len(COLUMNS) <= 80
    assert all(len(row(job, 30).plain) <= 80 for job in state.jobs[28:])
    assert short_row(state.jobs[28], 30).plain.startswith("29/30 timeout ")


def test_times_read_as_a_sentence():
    # 4 x 60 + 12 and 3 x 60 + 10 seconds, by hand
    assert times(252, (190, 190)) == "4:12 elapsed, about 3:10 left"
    assert times(252, (190, 3790)) == "4:12 elapsed, 3:10 to 1:03:10 left"
    assert times(4, None) == "0:04 elapsed, remaining time unknown"
    read = {None: "-", 0.4: "0:00", 59.6: "1:00", 3599.6: "1:00:00", 36061: "10:01:01"}
    assert {seconds: duration(seconds) for seconds in read} == read


def test_warnings_of_a_launcher_before_its_first_step_are_shown_at_the_end_and_in_the_log(bench):
    step = "[CPU] Step 1/6 | 1.000 s | avg 1.000 s | loss 8.0000 | 1.0 GB\n"
    bench.said = (
        "warning: gpu 0: is 97 % busy\n",
        "a line\n",
        "  warning: indented\n",
        step,
        "warning: of a library\n",
    )
    code, said, _ = bench.run("RUNS=1", "FRAMEWORK=mega")
    assert (
        code == 0 and said.count("warning: ") == 1 and "warning: gpu 0: is 97 % busy" in said.split("=== validation")[1]
    )
    log = (bench.output / "logs" / "matrix.log").read_text()
    assert "Z     warning: gpu 0: is 97 % busy\n" in log and "library" not in log


def test_dry_run_names_every_job_its_command_and_where_each_setting_came_from(tmp_path, monkeypatch):
    launcher = Launcher(tmp_path, monkeypatch)
    ended = launcher.plan(*MATRIX, platform="cpu")
    commands = [line.split(": ")[1] for line in ended.out.splitlines() if "  runs: train/train_cpu_" in line]
    pairs = [f"{framework}_{model}" for model in ("llama", "qwen", "mistral") for framework in ("mega", "hf")]
    assert len(commands) == 30
    names = [(command.split(".sh")[0].removeprefix("train/train_cpu_"), command.split()[2]) for command in commands]
    assert names[:7] == [*((pair, "1") for pair in pairs), ("mega_llama", "2")], "interleaved"
    lines = {line.split()[0]: line for line in ended.out.splitlines() if line.startswith("  ") and "(" in line}
    assert lines["RUNS"].endswith("5  (argument)")
    assert "(config.cpu.env:" in lines["MODEL_SIZE"] and "(config.env:" in lines["WEIGHT_DECAY"]
    assert not launcher.output.exists(), "nothing was written"


def test_full_disk_is_named_with_what_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 5_000_000}))
    launcher = Launcher(tmp_path, monkeypatch)
    ended = launcher.plan(*MATRIX, f"DATASET={launcher.prefix}", platform="cpu")
    # 30 jobs of a quarter and one MiB: 39.3 MB
    assert ended.code == 2 and " 5.0 MB are free, about 39.3 MB are needed" in ended.err
