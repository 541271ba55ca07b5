"""One function decides what the result of a job holds, whichever party reports how the job ended."""

from signal import SIGABRT, SIGINT, SIGKILL, SIGSEGV

import pytest

from example import example_result
from train.job.job import Job, log_path
from train.job.outcome import Attempt, LauncherEnd, _verdict, finalize_result, stamp
from train.job.supervise import Ending
from utils.results import store
from utils.results.step_line import Step
from utils.settings.config import load

STEP = Step(3, 30, 0.5, 0.5, 7.25, 0.4)
OK = example_result()
FAILED = example_result(status="failed", reason="Traceback\nRuntimeError: Connection closed by peer")
OOM = example_result(status="oom", reason="out of memory")

VERDICTS = {
    "ok and a clean end: the trainer's result stands": (Ending(0), OK, None),
    "a trainer's own failure stands": (Ending(1), FAILED, None),
    "oom outranks the signals that follow from it": (Ending(1, signals={1: SIGKILL}), OOM, None),
    "an abort follows from another rank's error": (Ending(1, signals={1: SIGABRT}), FAILED, None),
    "interrupted after everything was written": (Ending(-2, stopped_by=SIGINT), OK, None),
    "interrupted": (Ending(-2, STEP, stopped_by=SIGINT), None, ("failed", "interrupted by SIGINT after step 3 of 30")),
    "interrupted, and a rank lost its neighbour first": (
        Ending(-2, STEP, stopped_by=SIGINT),
        FAILED,
        ("failed", "interrupted by SIGINT"),
    ),
    "overdue": (Ending(-9, STEP, overdue="nothing was finished"), FAILED, ("timeout", "nothing was finished")),
    "written, then hung": (Ending(-9, STEP, overdue="nothing"), OK, ("timeout", "the result was written, but")),
    "killed": (Ending(1, STEP, signals={1: SIGKILL}), None, ("failed", "rank 1 was ended by SIGKILL after step 3")),
    "killed, and the neighbour wrote of its connection": (
        Ending(1, STEP, signals={1: SIGSEGV}),
        FAILED,
        ("failed", "the other ranks then ended with: RuntimeError: Connection closed by peer"),
    ),
    "killed by the kernel for want of memory": (
        Ending(1, STEP, signals={0: SIGKILL}, kernel_oom_kills=1),
        FAILED,
        ("oom", "the kernel ended 1 process(es) for want of memory"),
    ),
    "exit 0 without a result": (Ending(0, STEP, ["bye"]), None, ("failed", "exit code 0 after step 3 of 30 (loss")),
    "ok, then an error at the very end": (Ending(-6, STEP), OK, ("failed", "the result was complete, then")),
    "torchrun itself failed": (Ending(1, None, ["no port"]), None, ("failed", "before the first step was finished")),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_account_of_the_launcher_overrules_the_ranks_where_it_has_seen_more(case):
    ending, written, expected = VERDICTS[case]
    verdict = _verdict(ending, written)
    if expected is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert verdict[0] == expected[0] and expected[1] in verdict[1]


def test_last_lines_are_in_the_reason():
    assert "no port" in _verdict(Ending(1, None, ["no port"]), None)[1]


@pytest.fixture
def attempt(tmp_path):
    job = Job(load("cpu", arguments=[f"OUTPUT_DIR={tmp_path}"], environ={}), "mega", "llama", attempt=2)
    return Attempt(job, "1" * 64, "a command", "2026-11-22T00:00:00+00:00")


def of_this(attempt, **values):
    """A result of the attempt, with what a trainer would have measured."""
    return example_result(attempt=attempt.job.attempt, **values)


def test_first_result_of_a_rank_stays(attempt):
    failed = of_this(attempt, status="failed", reason="the cause")
    assert finalize_result(attempt, failed)
    for later in (of_this(attempt), failed | {"reason": "what followed from it"}):
        assert not finalize_result(attempt, later)
    assert store.read(attempt.job.result_path)["reason"] == "the cause"


def test_result_of_an_earlier_attempt_is_none_of_a_launcher_that_left_none(attempt):
    path = attempt.job.result_path
    store.write(example_result(attempt=1), path)
    log_path(attempt.job).parent.mkdir()
    log_path(attempt.job).touch()
    assert finalize_result(attempt, LauncherEnd(stamp(path), "the launcher was ended"))
    result = store.read(path)
    assert (result["status"], result["reason"], result["attempt"]) == ("failed", "the launcher was ended", 2)
    assert [old.name for old in (path.parent / store.SUPERSEDED).iterdir()] == [f"{path.stem}_attempt1.json"]


CAUSES = {
    "the matrix knows no cause that the launcher does not": (None, "failed", "interrupted", ("failed", "interrupted")),
    "Slurm ended the job": (
        "Slurm's limit",
        "failed",
        "by SIGTERM",
        ("timeout", "Slurm's limit; its launcher says: by SIGTERM"),
    ),
    "Slurm ended it after its last step": ("TIMEOUT", "ok", None, ("ok", None)),
}


@pytest.mark.parametrize("case", CAUSES)
def test_cause_from_outside_comes_before_what_the_launcher_wrote(case, attempt):
    cause, status, reason, expected = CAUSES[case]
    store.write(of_this(attempt, status=status, reason=reason), attempt.job.result_path)
    is_written = finalize_result(attempt, LauncherEnd(None, "left no result", "timeout", cause))
    result = store.read(attempt.job.result_path)
    assert (result["status"], result["reason"]) == expected
    assert is_written == (cause is not None and status != "ok")
    assert result["steps"] == of_this(attempt)["steps"], "what was measured stays"
