"""A matrix shows its progress: jobs in order, time left, plain lines without a terminal, 80 columns with one."""

import io
import json
import re
from unittest.mock import Mock

import pytest
from benches import STEP, Bench
from rich.console import Console

from example import example_result
from tests.support.launching import Launcher
from train import status
from train.runner.live_view import LiveView, live_lines
from train.runner.state import MatrixState
from train.runner.view import View, times
from utils.results.raw_samples import Step

MATRIX = ("MODEL=llama,qwen,mistral", "RUNS=5")


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return Bench(tmp_path, monkeypatch, [1000.0] * 2, [1000.0] * 2)


@pytest.fixture
def state(bench):
    return MatrixState.of(bench.jobs(*MATRIX, "TRAIN_ITERS=30"))


def finish(job, seconds, status="ok"):
    job.started, job.ended, job.state = 100.0, 100.0 + seconds, status
    job.result = example_result()


def test_time_left_comes_from_jobs_of_the_same_kind(state):
    for job in state.jobs[:6]:
        finish(job, 0.0, "skipped")
    assert state.remaining_seconds() is None, "jobs that were skipped do not make the rest look quick"
    for job in state.jobs[:6]:
        finish(job, {"mega": 10.0, "hf": 20.0}[job.job.framework])
    assert state.remaining_seconds() == pytest.approx((4 * 3 * (10 + 20),) * 2)


def test_plain_view_has_a_line_at_the_first_last_and_every_tenth_step(state, tmp_path):
    stream = io.StringIO()
    with View(state, tmp_path / "matrix.log", stream) as view:
        job = state.jobs[0]
        job.state, job.started = "running", 0.0
        view.job_started(job)
        for number in range(1, 31):
            job.take_step(Step(number, 30, 0.5, 0.5, 7.0, 0.4))
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


def drawn(state, width=100):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(live_lines(state, width))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("columns", [100, 80, 40, 24])
def test_live_lines_fit_the_terminal_and_name_job_step_and_time_left(state, columns):
    for job in state.jobs[:24]:
        finish(job, 3000.0)
    state.jobs[3].state = "failed"
    job = state.jobs[25]
    job.state, job.started = "running", 0.0
    assert "starting" in drawn(state)[0]
    job.take_step(Step(12, 500, 12.3456, 12.3, 7.0123, 61.0))
    shown = drawn(state, columns)
    assert all(len(line.rstrip()) <= columns for line in shown)
    job_line, matrix_line = " ".join(line.strip() for line in shown).split("24 of 30 jobs, 1 failed")
    assert job.title in job_line and "12/500" in job_line and "left" in job_line
    assert "left" in matrix_line and (columns < 80 or len(shown) == 2)


def test_terminal_gets_the_plain_lines_and_no_colour_where_none_is_wanted(state, tmp_path, monkeypatch):
    job, texts = state.jobs[0], []
    for no_color in ("", "1"):
        monkeypatch.setenv("NO_COLOR", no_color)
        console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard")
        with LiveView(state, tmp_path / f"matrix{no_color}.log", console) as view:
            job.state, job.started = "running", 0.0
            view.job_started(job)
            finish(job, 15.0, "failed")
            view.job_ended(job)
        texts.append(console.file.getvalue())
        assert (
            "--- job 1 of 30: failed" in texts[-1]
            and "--- job 1 of 30: failed" in (tmp_path / f"matrix{no_color}.log").read_text()
        )
    assert "\x1b[31m" in texts[0] and "\x1b[31m" not in texts[1]


def test_times_read_as_a_sentence():
    # 4 x 60 + 12 and 3 x 60 + 10 seconds, by hand
    assert times(252, (190, 190)) == "4:12 elapsed, about 3:10 left"
    assert times(252, (190, 3790)) == "4:12 elapsed, 3:10 to 1:03:10 left"
    assert times(4, None) == "0:04 elapsed, remaining time unknown"


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
    names = re.findall(r"  runs: train/train_cpu_(\w+)\.sh --run (\d)", ended.out)
    pairs = [f"{framework}_{model}" for model in ("llama", "qwen", "mistral") for framework in ("mega", "hf")]
    assert len(names) == 30 and names[:7] == [*((pair, "1") for pair in pairs), ("mega_llama", "2")], "interleaved"
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


# status.json names the phase that runs, also after a failure or an interrupt, and the state of each job.

ONE = ("RUNS=2", "FRAMEWORK=mega")


def ended(bench):
    return [bench.status()[key] for key in ("state", "phase")]


def test_each_phase_is_named_while_it_runs_and_the_end_has_the_report(bench):
    assert bench.run(*ONE, "--compare")[0] == 0
    assert bench.phases == ["data", "training", "training", "validation", "comparison"]
    assert ended(bench) == ["finished", "done"]
    assert bench.status()["report"] == str(bench.output / "compare.html")


@pytest.mark.parametrize(
    ("word", "exit_code", "code", "end"),
    [
        ("data.prepare", 2, 2, ["failed", "data"]),
        ("evaluate.validate", 1, 1, ["finished", "done"]),
        ("evaluate.compare", 3, 0, ["finished", "done"]),
        ("evaluate.compare", 1, 1, ["finished", "done"]),
    ],
)
def test_step_that_fails_is_in_the_exit_code_and_the_state(word, exit_code, code, end, bench):
    bench.exit_codes = {word: exit_code}
    assert bench.run(*ONE, "--compare")[0] == code
    assert ended(bench) == end


def test_damaged_data_keep_the_phase_of_the_checks(bench):
    bench.prefix.with_suffix(".bin").write_bytes(b"short")
    assert bench.run(*ONE)[0] == 2
    assert ended(bench) == ["failed", "checks"]


def test_full_disk_does_not_end_the_matrix(bench, monkeypatch):
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("train.runner.state.write_json", Mock(side_effect=full))
    code, _, error = bench.run(*ONE)
    assert code == 0 and error.count("is out of date") == 1


def test_a_file_of_a_user_ends_the_matrix_before_anything_starts_and_stays(bench):
    bench.output.mkdir()
    path = bench.output / "status.json"
    path.write_text("[]")
    code, _, error = bench.run(*ONE)
    assert code == 2 and "status.json: exists" in error and bench.started == []
    assert path.read_text() == "[]"
    path.unlink()
    bench.on_start = lambda job: path.write_text("[]") and None
    assert bench.run(*ONE)[2].count("is out of date") == 1 and path.read_text() == "[]"


def shown(folder, capsys):
    code = status.main([str(folder)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_matrix_that_runs_elsewhere_is_shown(bench, tmp_path, capsys):
    bench.said, seen = (STEP.format(3),), []
    bench.on_start = lambda job: seen.append(bench.status()) and None
    assert bench.run("RUNS=2", "FRAMEWORK=mega,hf")[0] == 0
    (tmp_path / "status.json").write_text(json.dumps(seen[1]))
    code, text, _ = shown(tmp_path, capsys)
    rows = [line.split() for line in text.splitlines()]
    assert code == 0 and text.startswith("running in phase training: 1 of 4 jobs, 0 failed\n")
    assert rows[4][:7] == ["1", "mega", "llama", "run", "1", "ok", "3/10"] and rows[6][5:7] == ["waiting", "-"]
    code, text, _ = shown(bench.output, capsys)
    assert code == 0 and text.startswith("finished: 4 of 4 jobs, 0 failed\n") and "left" not in text


def test_a_matrix_that_failed_or_was_killed_and_a_failed_job_are_exit_code_1(bench, capsys):
    bench.exit_codes = {"data.prepare": 2}
    bench.run(*ONE)
    code, text, _ = shown(bench.output, capsys)
    assert code == 1 and text.startswith("failed in phase data: 0 of 2 jobs, 0 failed\n")
    path = bench.output / "status.json"
    killed = {"state": "running", "updated_utc": "2026-11-20T00:00:00+00:00"}
    content = json.loads(path.read_text()) | killed
    path.write_text(json.dumps(content | {"warnings": ["\x1b[2J hf_" + "a" * 34]}))
    code, text, _ = shown(bench.output, capsys)
    assert code == 1 and "warning: not updated for" in text and "\x1b" not in text and "aaaa" not in text
    path.write_text(json.dumps(content | {"state": "finished", "phase": "done", "jobs_failed": 1}))
    code, text, _ = shown(bench.output, capsys)
    assert code == 1 and text.startswith("finished: 0 of 2 jobs, 1 failed\n")


@pytest.mark.parametrize("content", [None, "", "[]", '{"schema_version": 1, "state": "running", "jobs": []}', "{"])
def test_what_is_no_status_is_one_line(tmp_path, capsys, content):
    if content is not None:
        (tmp_path / "status.json").write_text(content)
    code, text, error = shown(tmp_path, capsys)
    assert (code, text, error.count("\n")) == (2, "", 1) and error.startswith(f"error: {tmp_path}/status.json: ")
