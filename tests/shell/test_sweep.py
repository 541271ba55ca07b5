"""A sweep that is interrupted continues where it stopped: real scripts, a real trainer, two ranks."""

from __future__ import annotations

import json
import signal

import pytest
from toydata import write_toy_data

from tests.support.matrices import RunningMatrix, wait_until_gone

pytestmark = pytest.mark.full("three real jobs of mega, about 40 s")
POINTS = ("FRAMEWORK=mega", "MBS=2,3,4", "TRAIN_ITERS=6")
"""GBS=8 is no multiple of two ranks with a micro batch of 3."""


def states(output):
    return [point["state"] for point in json.loads((output / "sweeps" / "sweep.json").read_text())["points"]]


def test_after_an_interrupt_the_same_command_trains_only_what_is_missing(tmp_path):
    output, prefix = tmp_path / "output", write_toy_data(tmp_path / "data" / "text")
    first = RunningMatrix(output, prefix, *POINTS, script="sweep.sh")
    first.wait_for(lambda: "=== point 3 of 3: MBS=4" in first.said)
    first.process.send_signal(signal.SIGINT)
    assert first.wait() == 128 + signal.SIGINT
    assert wait_until_gone(first) == []
    assert "1 of 3 points are left" in first.said
    assert states(output) == ["ok", "impossible", "waiting"]
    before = (output / "sweep_MBS2" / "train_cpu_mega_llama_run1.json").read_bytes()

    second = RunningMatrix(output, prefix, *POINTS, script="sweep.sh")
    assert second.wait() == 0, second.said
    assert states(output) == ["ok", "impossible", "ok"]
    assert (output / "sweep_MBS2" / "train_cpu_mega_llama_run1.json").read_bytes() == before
    assert (output / "sweep_MBS4" / "train_cpu_mega_llama_run1.json").exists()
    assert (output / "sweeps" / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert "best: MBS=" in second.said and "2 ok, 1 impossible" in second.said
