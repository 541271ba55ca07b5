"""status.json names the phase that runs, also after a failure or an interrupt, and the state of each job."""

import pytest
from benches import STEP, Bench


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
        ("data.sh", 2, 2, ["failed", "data"]),
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

    monkeypatch.setattr("train.runner.status_file.write_json", full)
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
