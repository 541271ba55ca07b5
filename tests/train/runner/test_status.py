"""status.json names the phase that runs, also after a failure or an interrupt."""

import json

import pytest

from example import example_result
from train import matrix as matrix_command
from train.job.processes import StopRequest
from train.runner import plan
from train.runner.state import JobState, MatrixState
from train.runner.status_file import StatusFile, is_status
from train.runner.times import times
from utils.errors import DataError
from utils.own_files import require_ours


@pytest.fixture
def one(tmp_path, monkeypatch):
    """A matrix of one method whose steps only note the phase that status.json has while they run."""
    (tmp_path / "logs").mkdir()
    where = (f"OUTPUT_DIR={tmp_path}", f"DATA_DIR={tmp_path / 'data'}", "MODEL=llama", "FRAMEWORK=mega", "RUNS=2")
    matrix, seen = plan.make("cpu", where), []

    def note(*arguments, **named):
        status = read(tmp_path)
        assert (status["state"], status["report"]) == ("running", None)
        seen.append(status["phase"])
        return 0

    def job(matrix, state, digest, view, status, stop):
        note()
        state.state, state.result = "ok", example_result()

    monkeypatch.setattr(matrix_command, "_script", note)
    monkeypatch.setattr(matrix_command, "run_job", job)
    monkeypatch.setattr(matrix_command, "follow_up", lambda *arguments: None)
    monkeypatch.setattr(plan, "data_digests", lambda config: note() or {"llama": "0" * 64})
    monkeypatch.setattr(matrix_command.processes, "adopt_orphans", lambda: None)
    return matrix, seen


def read(folder):
    return json.loads((folder / "status.json").read_text())


def run(matrix, stop=None):
    return matrix_command._run_all([matrix], stop or StopRequest(), lambda: True, is_compared=True)


def test_each_phase_is_named_while_it_runs_and_the_end_has_the_report(one, tmp_path):
    matrix, seen = one
    assert run(matrix) == 0
    assert seen == ["data", "checks", "training", "training", "validation", "comparison"]
    assert [read(tmp_path)[key] for key in ("state", "phase")] == ["finished", "done"]
    assert read(tmp_path)["report"] == str(tmp_path / "compare.html")


def test_a_failure_keeps_its_phase(one, tmp_path, monkeypatch):
    matrix, _ = one

    def fail(config):
        raise DataError("damaged")

    monkeypatch.setattr(plan, "data_digests", fail)
    with pytest.raises(DataError):
        run(matrix)
    assert [read(tmp_path)[key] for key in ("state", "phase")] == ["failed", "checks"]


def test_data_that_cannot_be_had_are_a_failure_of_their_phase(one, tmp_path, monkeypatch):
    matrix, _ = one
    monkeypatch.setattr(matrix_command, "_script", lambda *arguments: 2)
    assert run(matrix) == 2
    assert [read(tmp_path)[key] for key in ("state", "phase")] == ["failed", "data"]


def test_an_interrupt_keeps_its_phase(one, tmp_path, monkeypatch):
    matrix, _ = one
    stop = StopRequest()

    def interrupted(matrix, state, digest, view, status, stop):
        stop.signal = matrix_command.processes.signal.SIGTERM

    monkeypatch.setattr(matrix_command, "run_job", interrupted)
    assert run(matrix, stop) == 128 + 15
    assert [read(tmp_path)[key] for key in ("state", "phase")] == ["interrupted", "training"]


@pytest.fixture
def state(one):
    return MatrixState([JobState(number, job) for number, job in enumerate(one[0].jobs, 1)])


def test_a_file_of_a_user_stays_with_one_warning(state, tmp_path, capsys):
    (tmp_path / "status.json").write_text("[]")
    status = StatusFile(tmp_path, state)
    status.write()
    status.write()
    assert (tmp_path / "status.json").read_text() == "[]"
    assert capsys.readouterr().err.count("is out of date") == 1


def test_the_own_file_is_recognised_and_replaced(state, tmp_path):
    status = StatusFile(tmp_path, state)
    status.write()
    require_ours(is_status, tmp_path / "status.json")
    state.phase = "validation"
    status.write()
    assert read(tmp_path)["phase"] == "validation"


def test_times_read_as_a_sentence():
    # 4 x 60 + 12 and 3 x 60 + 10 seconds, by hand
    assert times(252, (190, 190)) == "4:12 elapsed, about 3:10 left"
    assert times(252, (190, 3790)) == "4:12 elapsed, 3:10 to 1:03:10 left"
    assert times(4, None) == "0:04 elapsed, remaining time unknown"
