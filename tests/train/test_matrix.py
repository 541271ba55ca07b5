"""The command of a matrix: settings and data are taken as found once, methods and frameworks, the setup before it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from checkout import ROOT
from toydata import write_toy_data

from tests.support.matrices import RunningMatrix, wait_until_gone
from train import matrix
from utils import models
from utils.dataset import manifest
from utils.errors import ConfigError
from utils.settings.config import load, values_of
from utils.settings.layers import read_file


@pytest.mark.full("a real matrix of one job, about 20 s")
def test_edited_settings_file_and_a_recorded_digest_are_not_read_again_while_a_matrix_runs(checkout, tmp_path):
    prefix = write_toy_data(tmp_path / "text")
    asked = read_file(checkout / "config.env", "config.env")
    digest = "0" * 64
    for path in (prefix.with_suffix(".bin"), prefix.with_suffix(".idx")):
        manifest._record(tmp_path / "cache", {str(path): manifest._state(path) | {"sha256": digest}})
    one_rank = ("CPU_RANKS=1", "TRAIN_ITERS=6", "FRAMEWORK=mega")
    matrix = RunningMatrix(tmp_path / "output", prefix, *one_rank, root=checkout)
    matrix.wait_for(lambda: "=== data" in matrix.said)
    text = (checkout / "config.env").read_text()
    (checkout / "config.env").write_text(text.replace(f"SEED={asked['SEED'].text}", "SEED=4321"))
    assert matrix.wait() == 0, matrix.said
    result = matrix.result("mega")
    assert result["training_config"]["seed"] == int(asked["SEED"].text)
    assert values_of("cpu", [], {}, checkout)["SEED"].text == "4321", "a job that is started by hand reads the files"
    assert result["fingerprint"]["dataset_bin_sha256"] == digest  # recorded as of an unchanged file: nobody has read it


@pytest.mark.parametrize("text", ["", "[]", '{"SEED": ["1"]}'])
def test_variable_that_is_not_ours_is_refused(text):
    with pytest.raises(ConfigError, match="TPRIMAT_SETTINGS: cannot be read"):
        values_of("cpu", [], {"TPRIMAT_SETTINGS": text})


# A matrix whose output folder vanishes while it runs ends there; nothing is made anew in its place.


@pytest.mark.full("a real matrix up to its first job, about 30 s")
def test_matrix_whose_output_folder_is_renamed_ends_there_and_leaves_no_new_one(tmp_path):
    prefix, output = write_toy_data(tmp_path / "data" / "text"), tmp_path / "output"
    matrix = RunningMatrix(output, prefix, "TRAIN_ITERS=6", fault=f"mega:0:3:rename:{output}")
    assert matrix.wait() == 1, matrix.said
    assert "was deleted, renamed or replaced; no job is started" in matrix.said
    assert "hf llama run 1" not in matrix.said and not output.exists()
    assert wait_until_gone(matrix) == []


# METHOD=both is two matrices, one after the other; a matrix has the frameworks that run here, and says each change.

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


@pytest.mark.parametrize(
    ("of_equal", "wanted"),
    [
        (0, ["equal", "best", ["/output", "/output/best"]]),
        (1, ["equal", "best", ["/output", "/output/best"]]),  # a failed job stops neither the other method nor this
        (2, ["equal"]),  # without data nothing can go on
    ],
)
def test_methods_run_one_after_the_other_and_are_compared_together(monkeypatch, tmp_path, of_equal, wanted):
    steps = []

    def run(one, status, stop, is_locked):
        steps.append(one.config.method)
        code = of_equal if one.config.method == "equal" else 0
        return code, code != 2

    def script(command, stop, refresh):
        steps.append([part.removeprefix(str(tmp_path)) for part in command[3 : command.index("--brief")]])
        return 0

    monkeypatch.setattr(matrix, "_run", run)
    monkeypatch.setattr(matrix.processes, "run_step", script)
    monkeypatch.setattr(matrix.processes, "adopt_orphans", lambda: None)
    monkeypatch.setattr(matrix.plan, "visible_gpus", lambda platform: 8)
    where = (f"OUTPUT_DIR={tmp_path / 'output'}", f"DATA_DIR={tmp_path / 'data'}")
    assert main(monkeypatch, "--platform", "amd", "--compare", "METHOD=both", "FRAMEWORK=mega", *where) == of_equal
    assert steps == wanted


@pytest.mark.parametrize(
    ("platform", "settings", "jobs", "said"),
    [
        (
            "amd",
            ["GPUS_PER_NODE=8", "FRAMEWORK=nemo,mega"],
            ["prim_llama", "mega_llama"],
            "FRAMEWORK=nemo: is NVIDIA's own",
        ),
        ("cpu", ["FRAMEWORK=all", "MODEL=qwen3moe"], ["mega_qwen3moe", "hf_qwen3moe"], "nemo has none of qwen3moe"),
        (
            *("cpu", ["FRAMEWORK=nemo", "MODEL=all"], [f"nemo_{name}" for name in models.NAMES if name != "qwen3moe"]),
            "left out, because there is no recipe: nemo has none of qwen3moe",
        ),
    ],
)
def test_jobs_that_are_left_out_or_replaced_are_said_with_the_plan(monkeypatch, capsys, platform, settings, jobs, said):
    assert main(monkeypatch, "--platform", platform, "--dry-run", "MODEL=llama", "RUNS=1", *settings) == 0
    printed = capsys.readouterr()
    assert re.findall(rf"train_{platform}_(\w+)\.sh", printed.out) == jobs
    assert said in printed.out + printed.err


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


# Before the packages are there: status.json tells the setup, bad input ends it at once, a plan needs no package.


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """Returns a function that runs a matrix with a stand-in for shell/setup.sh, which notes that it ran."""
    script = tmp_path / "setup.sh"
    monkeypatch.setattr(matrix, "SETUP", script)
    monkeypatch.setattr(matrix.processes, "end_with_parent", lambda *arguments: None)
    where = (f"OUTPUT_DIR={tmp_path / 'output'}", f"DATA_DIR={tmp_path / 'data'}", "MODEL=llama", "FRAMEWORK=mega")

    def run(body, *settings):
        script.write_text(f"#!/usr/bin/env bash\ntouch {tmp_path}/ran\n{body}\n")
        script.chmod(0o755)
        return main(monkeypatch, "--set-up", "--platform", "cpu", *where, *settings)

    return run


def test_the_setup_is_a_phase_while_it_runs(setup, tmp_path):
    assert setup(f"cp {tmp_path}/output/status.json {tmp_path}/meanwhile.json") == 0
    meanwhile = json.loads((tmp_path / "meanwhile.json").read_text())
    assert (meanwhile["state"], meanwhile["phase"]) == ("running", "setup")
    assert [job["framework"] for job in meanwhile["jobs"]] == ["mega"] * 3


@pytest.mark.parametrize(
    ("body", "code", "state", "said"),
    [
        ("exit 1", 1, "failed", ""),
        (f"kill -TERM {os.getpid()}; sleep 60", 128 + 15, "interrupted", "run the same command again"),
    ],
    ids=["failed", "interrupted"],
)
def test_a_setup_that_does_not_end_well_is_in_the_status(setup, tmp_path, capsys, body, code, state, said):
    assert setup(body) == code
    status = json.loads((tmp_path / "output" / "status.json").read_text())
    assert (status["state"], status["phase"]) == (state, "setup")
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["MODEL=lama", "GBS=7", "DATASET=/no/such/file.jsonl"])
def test_bad_input_ends_it_before_anything_is_installed(setup, tmp_path, setting, capsys):
    assert setup("exit 0", setting) == 2
    assert setting.partition("=")[0] in capsys.readouterr().err
    assert not (tmp_path / "ran").exists() and not (tmp_path / "output").exists()


WITHOUT_PACKAGES = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("platform", ["cpu", "nvd", "amd"])
def test_a_plan_needs_the_standard_library_only(tmp_path, platform):
    """-S leaves out site-packages, -I the environment: no numpy, torch or rich can be imported."""
    where = [f"OUTPUT_DIR={tmp_path}", f"DATA_DIR={tmp_path}", "DATASET=synth", "MODEL=llama", "FRAMEWORK=mega,hf"]
    gpus = [] if platform == "cpu" else ["GPUS_PER_NODE=8"]
    asked = ["train.matrix", "--platform", platform, "--dry-run", *where, *gpus]
    command = [os.path.realpath(sys.executable), "-I", "-S", "-c", WITHOUT_PACKAGES, str(ROOT), *asked]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert f"train/train_{platform}_hf_llama.sh --run 3" in ran.stdout
    assert not list(tmp_path.iterdir())
