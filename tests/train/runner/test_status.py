"""status.json names the phase that runs, also after a failure or an interrupt, and the state of each job."""

import json

import pytest
from benches import STEP, Bench

from train import status


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return Bench(tmp_path, monkeypatch, [1000.0] * 2, [1000.0] * 2)


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


def test_state_of_each_job_is_in_it(bench):
    bench.said = (STEP.format(3),)
    bench.on_start = lambda job: seen.append(bench.status()["jobs"])
    seen = []
    assert bench.run("RUNS=2", "FRAMEWORK=mega,hf")[0] == 0
    assert [job["state"] for job in seen[1]] == ["ok", "waiting", "waiting", "waiting"]
    assert bench.status()["jobs_total"] == 4 and bench.status()["jobs"][0]["step"] == 3


def test_full_disk_does_not_end_the_matrix(bench, monkeypatch):
    def full(*arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("train.runner.state.write_json", full)
    code, _, error = bench.run(*ONE)
    assert code == 0 and error.count("is out of date") == 1


def test_a_file_of_a_user_ends_the_matrix_before_anything_starts_and_an_own_one_is_replaced(bench):
    bench.output.mkdir()
    (bench.output / "status.json").write_text("[]")
    code, _, error = bench.run(*ONE)
    assert code == 2 and "status.json: exists" in error and bench.started == []
    assert (bench.output / "status.json").read_text() == "[]"
    (bench.output / "status.json").unlink()
    bench.on_start = lambda job: (bench.output / "status.json").write_text("[]") and None
    code, _, error = bench.run(*ONE)
    assert (bench.output / "status.json").read_text() == "[]" and error.count("is out of date") == 1
    (bench.output / "status.json").unlink()
    bench.on_start = lambda job: None
    assert [bench.run(*ONE)[0], bench.run(*ONE)[0]] == [0, 0] and ended(bench) == ["finished", "done"]


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
    content = json.loads(path.read_text())
    killed = {"state": "running", "jobs_failed": 0, "updated_utc": "2026-11-20T00:00:00+00:00"}
    path.write_text(json.dumps(content | killed | {"warnings": ["\x1b[2J hf_" + "a" * 34]}))
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
