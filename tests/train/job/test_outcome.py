"""Which word counts when a job has ended: the trainer's own, or the launcher's that has seen more."""

from signal import SIGABRT, SIGINT, SIGKILL, SIGSEGV

import pytest

from example import example_result
from train.job.outcome import _verdict
from train.job.supervise import Ending
from utils.results.step_line import Step

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
def test_word_that_counts(case):
    ending, written, expected = VERDICTS[case]
    verdict = _verdict(ending, written)
    if expected is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert verdict[0] == expected[0] and expected[1] in verdict[1]


def test_last_words_are_in_the_reason():
    assert "no port" in _verdict(Ending(1, None, ["no port"]), None)[1]
