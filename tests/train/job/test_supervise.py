"""The output of the ranks is read correctly: steps, torchrun's report of killed ranks, and the lines before it."""

from signal import SIGKILL, SIGSEGV

import pytest

from train.job.rank_output import RankOutput
from train.job.supervise import _overdue
from utils.settings.config import load

STEP = "[CPU] Step {}/30 | 0.174 s | avg 0.174 s | loss 8.3360 | 0.5 GB\n"
# printed by torchrun of torch 2.13 when rank 1 of two was killed and rank 0 then lost its connection
REPORT = """\
[rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:2246
W1121 10:11:26.100000 18609 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 18623 closing signal SIGTERM
E1121 10:11:26.155000 18609 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) local_rank: 1 (pid: 18624) of binary: python
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
Failures:
[0]:
  time      : 2026-11-21_10:11:26
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 18623)
  error_file: <N/A>
Root Cause (first observed failure):
[1]:
  time      : 2026-11-21_10:11:26
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 18624)
  traceback : Signal {number} received by PID 18624
============================================================
"""  # noqa: E501


def read(tmp_path, text):
    output = RankOutput(tmp_path / "log")
    for line in text.splitlines(keepends=True):
        output.take(line)
    output.close()
    return output


@pytest.mark.parametrize("number", [SIGKILL, SIGSEGV])
def test_rank_that_was_killed_is_known_and_the_one_that_torchrun_ended_is_not_blamed(tmp_path, number):
    output = read(tmp_path, REPORT.format(code=-number, number=int(number)))
    assert output.signals == {1: number}


def test_kill_by_torchrun_itself_is_no_cause(tmp_path):
    said = "W1121 10:11:56.1 1 api.py:9] Unable to shutdown process 18624 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL\n"  # noqa: E501
    assert read(tmp_path, said + REPORT.format(code=-9, number=9)).signals == {}


def test_exit_code_of_a_rank_is_no_signal(tmp_path):
    assert read(tmp_path, REPORT.format(code=1, number=0)).signals == {}


def test_last_words_are_those_of_the_ranks_without_steps_and_without_torchruns_report(tmp_path):
    output = read(tmp_path, STEP.format(1) + "before\n\n" + STEP.format(2) + REPORT.format(code=-9, number=9))
    assert output.last_lines[0] == "before"
    assert list(output.last_lines)[1:] == ["[rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:2246"]
    assert output.last_step.number == 2
    assert (tmp_path / "log").read_text().count("Step") == 2


def test_log_on_a_full_disk_is_given_up_and_said(tmp_path, capsys):
    output = RankOutput(tmp_path / "log")
    output.close()
    output._log = open("/dev/full", "w")  # noqa: SIM115, PTH123
    output.take("one\n")
    output.take(STEP.format(3))
    assert output.log_error.startswith(f"the disk of {tmp_path} is full (")
    assert output.last_step.number == 3, "the job is watched on"
    assert capsys.readouterr().out.startswith("one\n")


WAITS = {
    "before the first step": (0, 9.0, None),
    "too long before the first step": (0, 11.0, "no step was finished in 11 s (START_TIMEOUT_SECONDS=10)"),
    "between two steps": (3, 4.0, None),
    "too long between two steps": (3, 6.0, "after step 3 of 30"),
    "the end takes as long as the start may": (30, 6.0, None),
    "too long for an end": (30, 11.0, "(START_TIMEOUT_SECONDS=10)"),
}


@pytest.mark.parametrize("wait", WAITS)
def test_limit_is_that_of_the_phase(tmp_path, monkeypatch, wait):
    step, seconds, said = WAITS[wait]
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    output = read(tmp_path, STEP.format(step) if step else "starting\n")
    monkeypatch.setattr("time.monotonic", lambda: 1000.0 + seconds)
    config = load("cpu", 1, arguments=["START_TIMEOUT_SECONDS=10", "STEP_TIMEOUT_SECONDS=5"], environ={})
    overdue = _overdue(output, config, started=1000.0)
    assert overdue is None if said is None else said in overdue
