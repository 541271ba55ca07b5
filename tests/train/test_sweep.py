"""The plan of a sweep: a point that cannot fit or is refused is marked with its reason and is not started."""

from __future__ import annotations

import sys

import pytest

from train import sweep
from utils.results import sweep_file

SETTINGS = ("FRAMEWORK=mega", "MODEL=llama", "GBS=8", "SL=128")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the command; `started` has the settings of the points that were started, none of which trains."""
    started = []

    def record(command, stop):
        started.extend([command] if "train.matrix" in command else [])
        return 0

    def starter(*arguments):
        place = f"OUTPUT_DIR={tmp_path / 'output'}"
        monkeypatch.setattr(sys, "argv", ["sweep", "--platform", "cpu", *SETTINGS, place, *arguments])
        return sweep.main()

    monkeypatch.setattr(sweep, "_run", record)
    starter.started = started
    return starter


def test_a_point_that_exceeds_the_memory_is_marked_with_its_terms_and_not_started(run, monkeypatch, tmp_path, capsys):
    needed = {1: 0.4, 4: 0.6}  # GB of a rank, by micro batch
    monkeypatch.setattr(sweep.fit, "lower_bound_gb", lambda found: needed[found], raising=True)
    monkeypatch.setattr(sweep.fit, "estimate", lambda config, framework, spec: config.micro_batch_size)
    monkeypatch.setattr(sweep.fit, "terms_text", lambda found: "weights 0.1")
    monkeypatch.setattr(sweep.fit, "changes_that_fit", lambda *arguments: [])
    monkeypatch.setattr(sweep, "capacity_gb", lambda config: (0.5, "a test"))
    assert run("MBS=1,4") == 0
    first, second = sweep_file.read(tmp_path / "output" / "sweeps" / "sweep.json").points
    assert (first.state, second.state) == (sweep_file.OK, sweep_file.DOES_NOT_FIT)
    assert "at least 0.6 GB are needed of a device with 0.5 GB" in second.reason
    assert len(run.started) == 1 and "MBS=1" in run.started[0]
    assert "does not fit  MBS=4" in capsys.readouterr().out


def test_fit_ignore_starts_it_anyway(run, monkeypatch):
    monkeypatch.setattr(sweep, "capacity_gb", lambda config: (1e-6, "a test"))
    assert run("MBS=1,4", "FIT=ignore") == 0
    assert len(run.started) == 2


def test_a_refused_point_is_impossible_and_the_others_run(run, tmp_path):
    assert run("MBS=1,3") == 0  # 8 sequences do not divide by 3 on each of two ranks
    states = [point.state for point in sweep_file.read(tmp_path / "output" / "sweeps" / "sweep.json").points]
    assert states == [sweep_file.OK, sweep_file.IMPOSSIBLE]


def test_a_failed_point_is_exit_1_after_the_others_have_run(run, monkeypatch):
    monkeypatch.setattr(sweep, "_run", lambda command, stop: run.started.append(command) or int("MBS=1" in command))
    assert run("MBS=1,4") == 1
    assert sum("train.matrix" in command for command in run.started) == 2


def test_without_a_possible_point_nothing_is_written(run, tmp_path, capsys):
    assert run("MBS=3,5") == 2
    assert not (tmp_path / "output").exists()
    assert capsys.readouterr().err.startswith("error: no point is possible: ")


def test_a_file_of_a_user_stays(run, tmp_path):
    path = sweep_file.path_of(tmp_path / "output", "sweep")
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert run("MBS=1,4") == 2
    assert path.read_text() == "{}" and not run.started
