"""The jobs of an archive become settings that make them again, and a claim that does not hold fails."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from bundles import edited, pack, packed_again, sides as bundled, written
from reports import refused
from sides import Result, both, plan, run, runs, write

from evaluate import reproduce
from utils.settings.config import load


def archive(folder: Path, seconds: float = 1.0, **changes: object) -> Path:
    """Return an archive with three runs of NVIDIA and three of AMD."""
    results = bundled({"nvd": seconds, "amd": seconds}, runs=3, **changes)
    return Path(shutil.move(pack(written(folder / "there", results)), folder / "there.zip"))


def here(folder: Path, seconds: float = 1.0, **changes: object) -> Path:
    return write(folder / "here", runs("nvd", seconds, 4, host="here", **changes))


# step times of a half, which the second timer of the loop contradicts
OF_HALF_STEPS = {"seconds": 0.5, "performance_metrics__loop_seconds": 100.0}


@pytest.mark.parametrize(
    ("there", "mine", "said", "code"),
    [
        ({}, {"seconds": 1.0}, "PASS", 0),
        ({}, {"seconds": 0.9}, "PASS", 0),
        ({}, {"seconds": 2.0}, "FAIL", 1),
        ({}, {"seconds": 1.0526}, "UNKNOWN", 3),
        ({}, {"framework": "hf"}, "the baseline has this job, and no result of it was given", 1),
        (OF_HALF_STEPS, {}, "the baseline has no valid run of this job", 1),
    ],
)
def test_the_jobs_of_this_platform_pass_or_fail(
    tmp_path: Path,
    there: dict[str, Any],
    mine: dict[str, Any],
    said: str,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = [str(archive(tmp_path, **there)), "--results", str(here(tmp_path, **mine))]
    assert reproduce.main(["judge", *paths, "--platform", "nvd"]) == code
    printed = capsys.readouterr().out
    assert said in printed.splitlines()[0] and "AMD Instinct" not in printed, "AMD's job is of another machine"


@pytest.mark.parametrize("step", ["plan", "judge"])
def test_an_archive_that_contradicts_itself_fails_before_anything_is_trained(
    tmp_path: Path, step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def halve(files: dict[str, bytes]) -> None:
        with edited(files, "train_nvd_mega_llama_run1.json") as result:
            result["step_times"] = [seconds / 2 for seconds in result["step_times"]]

    packed_again(path := archive(tmp_path), halve, is_listed=True)
    assert reproduce.main([step, str(path), "--platform", "nvd", "--results", str(here(tmp_path))]) == 1
    assert "contradicts itself" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "{archive}", "--platform", "cpu"], "has amd, nvd, and this machine is cpu"),
        (["plan", "{folder}", "--platform", "nvd"], "cannot be read as a zip file"),
        (["plan", "{folder}/none.zip", "--platform", "nvd"], "none.zip"),
        (["judge", "{archive}", "--platform", "nvd", "--results", "{folder}/none"], "none"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path: Path, arguments: list[str], said: str) -> None:
    places = {"archive": archive(tmp_path), "folder": tmp_path}
    assert said in refused(reproduce.main, *(argument.format(**places) for argument in arguments))


def asked(result: Result) -> dict[str, str]:
    return dict(setting.split("=", 1) for setting in reproduce.settings(result))


@pytest.mark.parametrize("number", range(5))
def test_the_settings_of_a_result_load_and_ask_for_its_training(number: int) -> None:
    made = [
        {"precision": "fp32", "clip_grad": 0.5},
        {"lr": 3e-4, "min_lr": 3e-5, "warmup_iters": 7, "max_steps": 90},
        {"seed": 7, "recompute": "full", "micro_batch_size": 2, "gradient_accumulation": 4},
        {"tp": 2, "dp": 4, "gradient_accumulation": 16},
        {},
    ][number]
    result = run("nvd", 1, 1.0, **both(**made))
    plan([result])
    found = asked(result)
    config = load("nvd", 8, arguments=[f"{name}={value}" for name, value in found.items()], environ={})
    wanted = {"allow_repeat": False, "hf_kernels": "stock"} | result["training_config"]
    assert {key: value for key, value in config.asked().items() if wanted.get(key) != value} == {}
    assert (found["FRAMEWORK"], found["MODEL"], found["METHOD"], found["RUNS"]) == ("mega", "llama", "equal", "1")


def test_what_no_result_holds_comes_from_the_command_on_record() -> None:
    result = run("nvd")
    words = ["python", "-m", "train.train_mega", "TOKENIZER=some/one", "DATA_DIR=/there", "GBS=1", "--platform", "nvd"]
    result["provenance"]["command"] = shlex.join([*words, "ENCODER=gigatoken"])
    found = asked(result)
    assert (found["TOKENIZER"], found["GBS"]) == ("some/one", "64") and "DATA_DIR" not in found
    assert "ENCODER" not in found, "a setting of an earlier version, whose data have the same ids"
