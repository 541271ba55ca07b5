"""METHOD=both is two matrices, one after the other: each with its own settings and folder, compared in two groups."""

import shutil
from functools import partial

import pytest

from train import matrix
from train.runner import plan
from utils.settings import combinations
from utils.settings import config as configure
from utils.settings.config import ROOT


@pytest.fixture
def rooted(tmp_path, monkeypatch):
    """Settings of a folder with an overlay of best settings for a CPU, which the suite itself does not have."""
    for name in ("config.env", "config.cpu.env"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "config.cpu-best.env").write_text("MBS=4\n")
    monkeypatch.setattr(plan, "load", partial(configure.load, root=tmp_path))
    monkeypatch.setattr(plan, "values_of", partial(configure.values_of, root=tmp_path))
    return tmp_path


def made(*arguments):
    return [plan.make("cpu", method).config for method in plan.by_method("cpu", arguments)]


@pytest.mark.parametrize(
    ("label", "folders"), [((), ["output", "output/best"]), (("LABEL=x",), ["output/x", "output/x_best"])]
)
def test_both_is_an_equal_and_a_best_matrix_in_folders_of_their_own(rooted, label, folders):
    equal, best = made("METHOD=both", *label)
    assert (equal.method, equal.micro_batch_size) == ("equal", 8)
    assert (best.method, best.micro_batch_size) == ("best", 4)
    assert [str(config.results_dir.relative_to(rooted)) for config in (equal, best)] == folders


def test_a_single_method_is_one_matrix_with_the_arguments_as_they_were(rooted):
    assert plan.by_method("cpu", ["METHOD=best", "MBS=2"]) == [("METHOD=best", "MBS=2")]


@pytest.fixture
def started(rooted, monkeypatch, tmp_path):
    """The matrix command with its steps replaced: the list of started steps, and the exit code of each."""
    steps = []
    codes = {"equal": 0, "best": 0, "compare": 0}

    def run(one, stop, is_locked, status):
        steps.append(one.config.method)
        return codes[one.config.method], codes[one.config.method] != 2

    def script(command, title, stop, status, environment=None):
        folders = command[3 : command.index("--brief")]
        steps.append((title, [part.removeprefix(str(rooted)) for part in folders]))
        return codes["compare"]

    monkeypatch.setattr(matrix, "_run", run)
    monkeypatch.setattr(matrix, "_script", script)
    monkeypatch.setattr(matrix.processes, "adopt_orphans", lambda: None)
    return steps, codes


def main(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["matrix", "--platform", "cpu", *arguments])
    return matrix.main()


def test_methods_run_one_after_the_other_and_are_compared_together(started, monkeypatch):
    steps, _ = started
    assert main(monkeypatch, "--compare", "METHOD=both") == 0
    assert steps == ["equal", "best", ("comparison", ["/output", "/output/best"])]


def test_a_failed_method_stops_neither_the_other_nor_the_comparison_and_is_in_the_exit_code(started, monkeypatch):
    steps, codes = started
    codes["equal"] = 1
    assert main(monkeypatch, "--compare", "METHOD=both") == 1
    assert len(steps) == 3


def test_data_that_cannot_be_had_end_it(started, monkeypatch):
    steps, codes = started
    codes["equal"] = 2
    assert main(monkeypatch, "--compare", "METHOD=both") == 2
    assert steps == ["equal"]


def test_both_without_best_settings_of_the_platform_is_bad_input_before_anything_starts(started, monkeypatch, rooted):
    (rooted / "config.cpu-best.env").unlink()
    assert main(monkeypatch, "METHOD=both") == 2
    assert started[0] == []


def test_the_framework_that_runs_in_anothers_place_is_said_with_the_plan(monkeypatch):
    monkeypatch.setattr(combinations, "AVAILABLE_FRAMEWORKS", ("mega", "hf", "nemo", "prim"))
    monkeypatch.setattr(plan, "visible_gpus", lambda platform: 8)
    one = plan.make("amd", ["FRAMEWORK=nemo,mega"])
    assert [job.framework for job in one.jobs[:2]] == ["prim", "mega"]
    assert [note.split(":")[0] for note in plan.notes(one)] == ["FRAMEWORK=nemo"]


@pytest.mark.parametrize(
    ("gpu", "micro_batch", "notes"),
    [("MI355X", 4, []), ("MI210", 2, ["no recipe for MI210"]), (None, 2, ["no known GPU"])],
)
def test_the_best_method_takes_the_recipe_of_this_machines_gpu_or_says_whose_it_takes(
    monkeypatch, gpu, micro_batch, notes
):
    monkeypatch.setattr(combinations, "AVAILABLE_FRAMEWORKS", ("mega", "hf", "nemo", "prim"))
    monkeypatch.setattr(plan, "visible_gpus", lambda platform: 8)
    monkeypatch.setattr(plan, "visible_device", lambda platform: gpu)
    one = plan.make("amd", ["METHOD=best"])
    assert (one.config.micro_batch_size, one.config.best_device) == (micro_batch, gpu)
    assert [
        note.removeprefix("METHOD=best: ")[: len(text)] for note, text in zip(plan.notes(one), notes, strict=True)
    ] == notes
    equal = plan.make("amd", ["METHOD=equal"])
    assert plan.notes(equal) == [] and equal.config.best_device is None
