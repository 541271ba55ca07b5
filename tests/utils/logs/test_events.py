"""Event files that TensorBoard 2.21 wrote (EventFileWriter, with numbers of ours) give those numbers back."""

from pathlib import Path

import pytest

from utils.logs.reader import LogFormatError, read_log

LOGS = Path(__file__).parent / "samples"
TIMES = {1: 20.0, 2: 12.048, 3: 4.0, 4: 2.0, 5: 3.2, 6: 2.56}
LOSSES = {1: 11.75, 2: 11.625, 3: 11.25, 4: 11.0, 5: 10.75, 6: 10.5}
RATES = {1: 1.5e-4, 2: 3.0e-4, 3: 2.7e-4, 4: 1.5e-4, 5: 4.0e-5, 6: 0.0}
NORMS = {1: 8.5, 2: 7.25, 3: 6.125, 4: 5.5, 5: 4.75, 6: 4.0}


def column(run, name):
    return {step.number: getattr(step, name) for step in run.steps}


@pytest.mark.parametrize(("name", "framework", "left_out"), [("megatron", "mega", [2]), ("nemo", "nemo", [])])
def test_an_event_file_gives_its_scalars(name, framework, left_out):
    run = read_log([LOGS / f"events.out.tfevents.{name}"], known={"total_steps": 6})
    assert (run.framework, run.status, list(run.excluded)) == (framework, "ok", left_out)
    for field, values in (
        ("step_time_seconds", TIMES),
        ("loss", LOSSES),
        ("learning_rate", RATES),
        ("grad_norm", NORMS),
    ):
        assert column(run, field) == {number: value for number, value in values.items() if number not in left_out}


def test_without_the_number_of_steps_it_cannot_be_told_whether_a_run_ended():
    run = read_log([LOGS / "events.out.tfevents.nemo"])
    assert (run.status, len(run.steps)) == ("failed", 6)
    assert "does not say how many iterations" in (run.reason or "")


def test_an_event_file_that_ends_anywhere_gives_what_it_holds_or_less(tmp_path):
    data = (LOGS / "events.out.tfevents.nemo").read_bytes()
    path = tmp_path / "events.out.tfevents.cut"
    counts = set()
    for end in range(0, len(data), 7):
        path.write_bytes(data[:end])
        try:
            steps = column(read_log([path]), "step_time_seconds")
        except LogFormatError:
            steps = {}
        assert steps.items() <= TIMES.items()
        counts.add(len(steps))
    assert counts == set(range(7))


@pytest.mark.parametrize("at", range(0, 400, 5))
def test_a_broken_byte_is_no_crash(tmp_path, at):
    data = bytearray((LOGS / "events.out.tfevents.nemo").read_bytes())
    data[at] ^= 0xFF
    path = tmp_path / "events.out.tfevents.broken"
    path.write_bytes(bytes(data))
    try:
        run = read_log([path])
    except LogFormatError:
        return
    assert len(run.steps) <= 7
