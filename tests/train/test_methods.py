"""METHOD=both is two matrices, one after the other; a matrix has the frameworks that run here, and says each change."""

import re
import shutil
from functools import partial

import pytest
from checkout import ROOT

from train import matrix
from utils.errors import ConfigError
from utils.settings import config as configure
from utils.settings.config import load

ONE_JOB = ("--platform", "amd", "--dry-run", "GPUS_PER_NODE=8", "MODEL=llama", "RUNS=1")


def main(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["matrix", *arguments])
    return matrix.main()


@pytest.mark.parametrize(
    ("settings", "folders", "micro_batches"),
    [
        (["METHOD=both"], ["output", "output/best"], ["1", "2"]),
        (["METHOD=both", "LABEL=x"], ["output/x", "output/x_best"], ["1", "2"]),
        (["METHOD=best"], ["output/best"], ["2"]),
        (["METHOD=best", "MBS=4"], ["output/best"], ["4"]),
    ],
)
def test_both_is_an_equal_and_a_best_matrix_in_folders_of_their_own(
    monkeypatch, capsys, settings, folders, micro_batches
):
    assert main(monkeypatch, *ONE_JOB, "FRAMEWORK=mega", *settings) == 0
    plan = capsys.readouterr().out
    assert re.findall(rf"result: {ROOT}/(.*)/train_amd_mega_llama_run1", plan) == folders
    assert re.findall(r"^ +MBS +(\d)", plan, re.MULTILINE) == micro_batches


def test_both_without_best_settings_of_the_platform_is_bad_input(monkeypatch):
    assert main(monkeypatch, "--platform", "cpu", "METHOD=both") == 2


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Steps that the matrix command starts, in place of the steps themselves, and the exit code of each."""
    for name in ("config.env", "config.cpu.env"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "config.cpu-best.env").write_text("MBS=4\n")
    for name in ("load", "values_of"):
        monkeypatch.setattr(matrix.plan, name, partial(getattr(configure, name), root=tmp_path))
    steps, codes = [], {"equal": 0, "best": 0}

    def run(one, status, stop, is_locked):
        steps.append(one.config.method)
        return codes[one.config.method], codes[one.config.method] != 2

    def script(command, stop, refresh):
        steps.append([part.removeprefix(str(tmp_path)) for part in command[3 : command.index("--brief")]])
        return 0

    monkeypatch.setattr(matrix, "_run", run)
    monkeypatch.setattr(matrix.processes, "run_step", script)
    monkeypatch.setattr(matrix.processes, "adopt_orphans", lambda: None)
    return steps, codes


@pytest.mark.parametrize(
    ("of_equal", "wanted"),
    [
        (0, ["equal", "best", ["/output", "/output/best"]]),
        (1, ["equal", "best", ["/output", "/output/best"]]),  # a failed job stops neither the other method nor this
        (2, ["equal"]),  # without data nothing can go on
    ],
)
def test_methods_run_one_after_the_other_and_are_compared_together(started, monkeypatch, of_equal, wanted):
    steps, codes = started
    codes["equal"] = of_equal
    assert main(monkeypatch, "--platform", "cpu", "--compare", "METHOD=both") == of_equal
    assert steps == wanted


def test_the_framework_that_runs_in_anothers_place_is_said_with_the_plan(monkeypatch, capsys):
    assert main(monkeypatch, *ONE_JOB, "FRAMEWORK=nemo,mega") == 0
    printed = capsys.readouterr()
    assert re.findall(r"train_amd_(\w+)_llama\.sh", printed.out) == ["prim", "mega"]
    assert "FRAMEWORK=nemo" in printed.out + printed.err


@pytest.mark.parametrize(
    ("gpu", "micro_batch", "note"),
    [("MI355X", 4, None), ("MI210", 2, "METHOD=best: no recipe for MI210"), (None, 2, "METHOD=best: no known GPU")],
)
def test_the_best_method_takes_the_recipe_of_this_machines_gpu_or_says_whose_it_takes(
    monkeypatch, gpu, micro_batch, note
):
    monkeypatch.setattr(matrix.plan, "visible_gpus", lambda platform: 8)
    monkeypatch.setattr(matrix.plan, "visible_device", lambda platform: gpu)
    one = matrix.plan.make("amd", ["METHOD=best"])
    assert (one.config.micro_batch_size, one.config.best_device) == (micro_batch, gpu)
    notes = matrix.plan.notes(one)
    assert (not notes) if note is None else notes[0].startswith(note)
    assert matrix.plan.notes(matrix.plan.make("amd", ["METHOD=equal"])) == []


NONE, BOTH = (), ("bridge", "nemo")


def without_missing(patch, here, *arguments, **named):
    """Return what `without_missing` of the matrix returns where these frameworks have a Python."""

    def python_of(name, platform):
        if name not in here:
            raise ConfigError(f"{name}: no container")
        return "/python"

    patch.setitem(matrix.without_missing.__globals__, "python_of", python_of)
    return matrix.without_missing(*arguments, **named)


@pytest.mark.parametrize(
    ("platform", "settings", "here", "runs", "said"),
    [
        ("nvd", [], BOTH, ("mega", "hf", "bridge"), ()),
        ("nvd", [], ("nemo",), ("mega", "hf"), ("FRAMEWORK=all: bridge is left out: bridge: no container",)),
        ("nvd", ["FRAMEWORK=mega,nemo"], ("nemo",), ("mega", "nemo"), ()),
        ("cpu", ["FRAMEWORK=all"], BOTH, ("mega", "hf", "nemo"), ()),
        ("cpu", ["FRAMEWORK=all"], NONE, ("mega", "hf"), ("FRAMEWORK=all: nemo is left out: nemo: no container",)),
        ("cpu", [], NONE, ("mega", "hf"), ()),  # the overlay's own matrix asks for neither
        ("amd", [], NONE, ("mega", "prim", "hf"), ()),
        ("cpu", ["FRAMEWORK=nemo"], NONE, ("nemo",), ()),  # whoever names it gets the error of the job
        ("nvd", ["FRAMEWORK=bridge"], ("nemo",), ("bridge",), ()),
        # the other vendor's framework means NeMo only where Bridge is missing
        ("nvd", ["FRAMEWORK=mega,prim"], BOTH, ("mega", "bridge"), ()),
        ("nvd", ["FRAMEWORK=mega,prim"], ("bridge",), ("mega", "bridge"), ()),
        (
            *("nvd", ["FRAMEWORK=mega,prim"], ("nemo",), ("mega", "nemo")),
            ("FRAMEWORK=prim: nemo runs in place of bridge: bridge: no container",),
        ),
        ("nvd", ["FRAMEWORK=mega,prim"], NONE, ("mega", "bridge"), ()),
    ],
)
def test_a_matrix_leaves_out_or_replaces_what_has_no_python_here_and_says_so(
    monkeypatch, capsys, platform, settings, here, runs, said
):
    monkeypatch.delenv("FRAMEWORK", raising=False)
    narrowed = without_missing(monkeypatch, here, platform, settings)
    assert load(platform, 1, arguments=narrowed, environ={}).frameworks == runs
    assert tuple(capsys.readouterr().err.splitlines()) == said


@pytest.mark.parametrize(
    ("platform", "visible", "frameworks"),
    [("nvd", 0, ("mega", "hf", "bridge")), ("nvd", 8, ("mega", "hf")), ("cpu", 0, ("mega", "hf", "nemo"))],
    ids=["elsewhere", "here", "no environment is made on a CPU"],
)
def test_dry_run_plans_what_an_image_holds_or_can_be_made(monkeypatch, platform, visible, frameworks):
    monkeypatch.setitem(matrix.without_missing.__globals__, "visible_gpus", lambda platform: visible)
    planned = without_missing(monkeypatch, NONE, platform, ["FRAMEWORK=all"], is_dry_run=True)
    assert load(platform, 8, arguments=planned, environ={}).frameworks == frameworks
