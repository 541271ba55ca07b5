"""A profiled step of our own log is left out with its reason, and its loss still has to be a number."""

import math

from utils.logs.reader import read_log
from utils.results.step_line import format_profiled, format_step


def log_of(path, loss=6.0):
    lines = [format_step("CPU", step, 8, 0.5, 0.5, 6.0, 1.2) for step in range(1, 9)]
    lines[3] = format_profiled("CPU", 4, 8, loss, 1.2)
    path.write_text("".join(lines))
    return read_log([path], "auto", {"world_size": 1, "global_batch_size": 8, "sequence_length": 128})


def test_a_profiled_step_is_left_out_of_the_steps_and_no_fault_of_the_run(tmp_path):
    run = log_of(tmp_path / "run.log")
    assert [step.number for step in run.steps] == [1, 2, 3, 5, 6, 7, 8]
    assert dict(run.excluded) == {4: "profiled"}
    assert (run.status, run.problems) == ("ok", ())
    assert "iteration 4 is left out: profiled" in run.notes


def test_a_profiled_step_with_a_loss_that_is_no_number_ends_as_nan(tmp_path):
    assert log_of(tmp_path / "run.log", loss=math.nan).status == "nan"
