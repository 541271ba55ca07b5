"""Real jobs with a profile: the trace opens, sums to the step, and the training is that of a job without a profile."""

import json
import os
import shutil
import subprocess

import pytest
from checkout import ROOT
from made_traces import MOST_UNATTRIBUTED

from evaluate import trace, validate
from tests.support.frameworks import python_of
from tests.support.launching import launch, run

pytestmark = pytest.mark.full("profiled jobs of mega, hf, torchtitan and Megatron Bridge, about 110 s")

STEPS = ("TRAIN_ITERS=9",)
PROFILE = ("PROFILING=true", "PROFILE_STEP_START=4", "PROFILE_STEP_END=5")
TWO_RANKS = ("CPU_RANKS=2", "PROFILE_RANKS=all")
FULL_DISK = """
import errno, os
if os.environ.get("RANK") == "0":
    from train.profiling import tools
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")
    tools.compress = full
"""
"""Planted into every Python of a job: rank 0 cannot write its trace."""


@pytest.fixture(scope="module")
def mega(prefix, tmp_path_factory):
    """Folder and result of a profiled job of two ranks, of which rank 0 finds a full disk."""
    folder, fault = tmp_path_factory.mktemp("mega"), tmp_path_factory.mktemp("fault")
    (fault / "sitecustomize.py").write_text(FULL_DISK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{fault}:{ROOT}")
        return folder, run("mega", "llama", folder, prefix, *STEPS, *PROFILE, *TWO_RANKS)


@pytest.fixture(scope="module")
def hf(prefix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf")
    return folder, run("hf", "llama", folder, prefix, *STEPS, *PROFILE)


@pytest.fixture(params=["mega", "hf"])
def job(request):
    return request.param, *request.getfixturevalue(request.param)


def profile_of(folder):
    """Return the content of profile.json and its folder."""
    (path,) = (folder / "profiles").rglob("profile.json")
    return json.loads(path.read_text()), path.parent


def kinds_of(path, capsys):
    """Return the seconds of a step by kind, by the command that reads traces."""
    capsys.readouterr()
    assert trace.main([str(path), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_result_is_valid_and_leaves_out_the_profiled_steps_as_the_log_does(job):
    framework, folder, result = job
    assert validate.main([str(folder)]) == 0
    assert result["steps"] == [1, 2, 3, 6, 7, 8, 9]
    assert result["excluded_steps"] == {"4": "profiled", "5": "profiled"}
    assert result["training_config"]["profile"] == "steps 4-5 of " + ("all ranks" if framework == "mega" else "rank 0")
    assert (folder / "profiled" / f"train_cpu_{framework}_llama_run1.json").exists()
    (log,) = (folder / "logs").glob("*.log")
    lines = [line for line in log.read_text().splitlines() if "] Step " in line]
    assert [line.split("|")[1].strip() == "profiled" for line in lines] == [4 <= n <= 5 for n in range(1, 10)]


def test_the_trace_opens_and_its_kinds_sum_to_the_step_with_little_unattributed(job, capsys):
    framework, folder, _ = job
    profile, place = profile_of(folder)
    found = kinds_of(place / profile["traces"][str(profile["ranks"][-1])]["file"], capsys)
    kinds = found["kinds"]
    assert found["steps"] == [4, 5]
    assert sum(kinds.values()) == pytest.approx(found["step_seconds"], rel=1e-9)
    assert kinds["unattributed"] < MOST_UNATTRIBUTED * found["step_seconds"]
    assert all(kinds[kind] > 0 for kind in ("matmul", "attention", "memory_bound", "optimizer"))
    if framework == "mega":
        assert kinds["communication_exposed"] + found["communication_overlapped"] > 0
    else:  # the marks are the steps that the recorder timed: within 5 % and 2 ms; of mega another rank is timed
        mean = sum(profile["profiled_step_seconds"]) / 2
        assert found["step_seconds"] == pytest.approx(mean, rel=0.05, abs=2e-3)


def test_profile_json_is_of_the_job_and_its_settings_are_those_without_a_profile(job):
    framework, folder, result = job
    profile, place = profile_of(folder)
    wanted = {"platform": "cpu", "framework": framework, "model": "llama", "model_size": "tiny", "steps": [4, 5]}
    wanted |= {"host": result["provenance"]["host"], "settings": result["training_config"] | {"profile": "none"}}
    wanted["settings"].pop("reasons", None)
    assert wanted.items() <= profile.items()
    assert place.name == f"profiled_train_cpu_{framework}_llama_run1_attempt1"
    mean = result["performance_metrics"]["avg_step_time_seconds"]
    assert profile["unprofiled_step_seconds"] == pytest.approx(mean, abs=1e-3)
    assert len(profile["profiled_step_seconds"]) == 2


def test_a_trace_that_cannot_be_written_does_not_lose_the_result_and_is_said(mega, hf):
    folder, result = mega
    profile, _ = profile_of(folder)
    assert result["status"] == "ok" and list(profile["traces"]) == ["1"]
    assert list(profile["reasons"]) == ["rank0"] and "is full" in profile["reasons"]["rank0"]
    said = [text for text in result["warnings"] if "rank0" in text]
    assert said == [f"profile: rank0: {profile['reasons']['rank0']}"]
    assert profile_of(hf[0])[0]["reasons"] == {} and not [text for text in hf[1]["warnings"] if "profile" in text]


def test_a_profile_changes_no_number_of_the_training_and_neither_job_stands_for_the_other(mega, prefix):
    folder, profiled = mega
    again = launch("mega", "llama", folder, prefix, *STEPS, *PROFILE, *TWO_RANKS)
    assert again.returncode == 0 and "has an ok result" in again.stdout
    plain = launch("mega", "llama", folder, prefix, "LABEL=profiled", *STEPS, *TWO_RANKS)
    assert plain.returncode == 0 and "has an ok result" not in plain.stdout, plain.stderr[-2000:]
    result = json.loads((folder / "profiled" / "train_cpu_mega_llama_run1.json").read_text())
    assert result["steps"] == list(range(1, 10)) and "excluded_steps" not in result
    for key in ("loss_values", "grad_norms", "learning_rates"):
        assert [result[key][step - 1] for step in profiled["steps"]] == profiled[key], key


@pytest.mark.parametrize("framework", ["titan", "bridge"])
def test_the_trace_of_a_framework_in_its_own_environment_opens_under_the_numbers_of_the_steps(
    framework, prefix, tmp_path, capsys
):
    python_of(framework)  # made before the job, whose time is limited
    more = ("TRAIN_ITERS=14", "PROFILING=true", "PROFILE_STEP_START=5", "PROFILE_STEP_END=6", "MODEL_SIZE=tiny")
    result = run(framework, "llama", tmp_path / "output", prefix, *more)
    assert validate.main([str(tmp_path / "output")]) == 0
    assert [step for step, why in result["excluded_steps"].items() if why == "profiled"] == ["5", "6"]
    profile, place = profile_of(tmp_path / "output")
    found = kinds_of(place / profile["traces"]["0"]["file"], capsys)
    assert sum(found["kinds"].values()) == pytest.approx(found["step_seconds"], rel=1e-9)
    assert (
        profile["steps"] == found["steps"] == [5, 6]
        and found["kinds"]["unattributed"] < MOST_UNATTRIBUTED * found["step_seconds"]
    )


def test_a_bad_range_ends_with_2_and_one_line_before_anything_starts(prefix, tmp_path):
    ran = launch("hf", "llama", tmp_path / "output", prefix, *STEPS, *PROFILE, "PROFILE_STEP_END=9")
    assert (ran.returncode, ran.stdout) == (2, "")
    (line,) = ran.stderr.splitlines()
    assert line.startswith("error: ") and "3 steps are left to measure" in line
    assert not (tmp_path / "output").exists()


def test_every_file_of_a_profile_is_known_to_purge(hf, tmp_path):
    folder = shutil.copytree(hf[0], tmp_path / "output", copy_function=os.link)  # a copy is not what the suite wrote
    command = [ROOT / "shell" / "purge.sh", f"OUTPUT_DIR={folder}", "PLATFORM=cpu"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not [path for path in folder.rglob("*") if path.is_file()]
