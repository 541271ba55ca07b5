"""A sweep that is interrupted continues where it stopped: real scripts, a real trainer, two ranks."""

from __future__ import annotations

import signal

import pytest
from toydata import write_toy_data

from tests.support.matrices import RunningMatrix, wait_until_gone
from utils.own_files import is_png
from utils.results import sweep_file
from utils.results.sweep_file import FAILED, IMPOSSIBLE, OK, RUNNING, WAITING

POINTS = ("FRAMEWORK=mega", "MBS=2,3,4", "TRAIN_ITERS=6")
"""GBS=8 is no multiple of two ranks with a micro batch of 3."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    return folder / "output", write_toy_data(folder / "data" / "text")


def states(output):
    return [point.state for point in sweep_file.read(sweep_file.path_of(output, "sweep")).points]


def test_after_an_interrupt_the_same_command_trains_only_what_is_missing(place):
    output, prefix = place
    first = RunningMatrix(output, prefix, *POINTS, script="sweep.sh")
    first.wait_for(lambda: "=== point 3 of 3: MBS=4" in first.said)
    assert states(output) == [OK, IMPOSSIBLE, WAITING]
    first.process.send_signal(signal.SIGINT)
    assert first.wait() == 128 + signal.SIGINT
    assert wait_until_gone(first) == []
    assert "1 of 3 points are left" in first.said
    assert states(output) == [OK, IMPOSSIBLE, WAITING]
    assert not {RUNNING, FAILED} & set(states(output))
    before = (output / "sweep_MBS2" / "train_cpu_mega_llama_run1.json").read_bytes()

    second = RunningMatrix(output, prefix, *POINTS, script="sweep.sh")
    assert second.wait() == 0
    assert states(output) == [OK, IMPOSSIBLE, OK]
    assert (output / "sweep_MBS2" / "train_cpu_mega_llama_run1.json").read_bytes() == before
    assert (output / "sweep_MBS4" / "train_cpu_mega_llama_run1.json").exists()
    assert is_png(output / "sweeps" / "sweep.png")
    assert "best: MBS=" in second.said and "2 ok, 1 impossible" in second.said
