"""status.json and status.html say which phase runs, also after a failure or an interrupt; the page needs no server."""

import json
import re
from html.parser import HTMLParser

import browser
import pytest

from example import example_result
from train import matrix as matrix_command
from train.job.processes import StopRequest
from train.runner import plan
from train.runner.state import RUNNING, JobState, MatrixState
from train.runner.status_file import RECOGNISERS, StatusFile
from train.runner.times import times
from utils.errors import DataError
from utils.own_files import require_ours
from utils.results.step_line import Step


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
    assert 'http-equiv="refresh"' not in (tmp_path / "status.html").read_text()


@pytest.fixture
def state(one):
    return MatrixState([JobState(number, job) for number, job in enumerate(one[0].jobs, 1)])


class _Page(HTMLParser):
    """Tags without an end, attributes that lead elsewhere, and progress bars of a page."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.bars = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.links += [found[name] for name in ("href", "src") if name in found]
        if tag == "progress":
            self.bars.append((int(found["value"]), int(found["max"])))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_has_the_state_of_the_json_and_reloads_only_while_the_matrix_runs(state, tmp_path):
    state.phase = "training"
    state.jobs[0].state = RUNNING
    state.jobs[0].take_step(Step(12, 30, 0.5, 0.5, 7.0, 0.4))
    state.warnings = [(f"job {n}", f"cores: {n} % busy") for n in (90, 95)]
    status = StatusFile(tmp_path, state)
    status.write()
    text = (tmp_path / "status.html").read_text()
    page = _Page(text)
    assert page.open == [] and page.links == [] and "<script" not in text
    assert page.bars == [(0, 2), (12, 30), (0, 30)]
    assert re.search(r'<meta http-equiv="refresh" content="\d+">', text)
    assert "step 12 of 30" in text and "warning: cores: 90 to 95 % busy (2 jobs)" in text
    state.report = tmp_path / "best" / "compare.html"
    status.end("finished")
    text = (tmp_path / "status.html").read_text()
    assert "refresh" not in text and _Page(text).links == ["best/compare.html"]


@pytest.mark.skipif(browser.find() is None, reason="no Chromium on this machine")
def test_the_page_opens_without_a_message_at_any_width_in_both_schemes(state, tmp_path):
    state.phase = "training"
    state.jobs[0].state, state.jobs[0].reason = "failed", "a rank was ended by SIGKILL: " + "a_long_word_" * 20
    state.jobs[1].state = RUNNING
    state.jobs[1].take_step(Step(12, 30, 0.5, 0.5, 7.0, 0.4))
    state.warnings = [("job 1", "cores: 90 % busy")]
    StatusFile(tmp_path, state).write()
    browser.check_views(browser.find(), tmp_path / "status.html", tmp_path / "profile")


def test_text_of_a_job_is_no_markup(state, tmp_path):
    state.jobs[0].state, state.jobs[0].reason = "failed", "<script>alert(1)</script> & more\nsecond line"
    StatusFile(tmp_path, state).write()
    text = (tmp_path / "status.html").read_text()
    assert "<script" not in text and "&lt;script&gt;alert(1)" in text and "second line" not in text


def test_a_page_of_a_user_stays_with_one_warning(state, tmp_path, capsys):
    (tmp_path / "status.html").write_text("<title>mine</title>")
    status = StatusFile(tmp_path, state)
    status.write()
    status.write()
    assert (tmp_path / "status.html").read_text() == "<title>mine</title>"
    assert capsys.readouterr().err.count("is out of date") == 1


def test_own_files_are_recognised_and_replaced(state, tmp_path):
    status = StatusFile(tmp_path, state)
    status.write()
    before = {name: (tmp_path / name).read_text() for name in RECOGNISERS}
    for name, is_ours in RECOGNISERS.items():
        require_ours(is_ours, tmp_path / name)
    state.phase = "validation"
    status.write()
    assert "validating the results" in (tmp_path / "status.html").read_text()
    assert all((tmp_path / name).read_text() != text for name, text in before.items())


def test_times_read_as_a_sentence():
    # 4 x 60 + 12 and 3 x 60 + 10 seconds, by hand
    assert times(252, (190, 190)) == "4:12 elapsed, about 3:10 left"
    assert times(252, (190, 3790)) == "4:12 elapsed, 3:10 to 1:03:10 left"
    assert times(4, None) == "0:04 elapsed, remaining time unknown"
