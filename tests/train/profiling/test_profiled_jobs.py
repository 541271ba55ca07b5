"""Real jobs with a profile: the trace opens, sums to the step, and the training is that of a job without a profile."""

import gzip

import pytest
from toydata import write_toy_data

from evaluate import validate
from evaluate.checks.entries import check_result
from evaluate.timing import breakdown
from tests.support.launching import launch, run
from utils.housekeeping.layout import OUTPUT_LAYOUT
from utils.results import profile_file, store
from utils.results.profile_file import NAME
from utils.settings.config import ROOT

STEPS = ("TRAIN_ITERS=9",)
PROFILE = ("PROFILING=true", "PROFILE_STEP_START=4", "PROFILE_STEP_END=5")
TWO_RANKS = ("CPU_RANKS=2", "PROFILE_RANKS=all")
FULL_DISK = """
import errno, os
if os.environ.get("RANK") == "0":
    from train.profiling import trace_file
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")
    trace_file.compress = full
"""
"""Planted into every Python of a job: rank 0 cannot write its trace."""


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return write_toy_data(tmp_path_factory.mktemp("data") / "text")


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
    (path,) = (folder / "profiles").rglob(NAME)
    return profile_file.read(path)


def test_the_result_is_valid_and_leaves_out_the_profiled_steps(job):
    framework, folder, result = job
    assert check_result(result).rejections == ()
    assert validate.main([str(folder)]) == 0
    assert result["steps"] == [1, 2, 3, 6, 7, 8, 9]
    assert result["excluded_steps"] == {"4": "profiled", "5": "profiled"}
    assert result["training_config"]["profile"] == "steps 4-5 of " + ("all ranks" if framework == "mega" else "rank 0")
    assert (folder / "profiled" / f"train_cpu_{framework}_llama_run1.json").exists()


def test_the_trace_opens_and_its_kinds_sum_to_the_step_with_little_unattributed(job):
    framework, folder, _ = job
    profile = profile_of(folder)
    found = breakdown.of_file(profile.trace_path(profile.ranks[-1]))
    assert found.steps == profile.steps == (4, 5)
    assert sum(found.kinds.values()) == pytest.approx(found.step_seconds, rel=1e-9)
    assert found.share("unattributed") < 0.03
    assert all(found.kinds[kind] > 0 for kind in ("matmul", "attention", "memory_bound", "optimizer"))
    if framework == "mega":
        assert found.kinds["communication_exposed"] + found.overlapped > 0
    # the marks are the steps that the recorder timed: within 5 % and 2 ms, of marks, clocks and rounding
    mean = sum(profile.profiled_step_seconds) / 2
    if framework == "hf":  # of mega another rank is timed
        assert found.step_seconds == pytest.approx(mean, rel=0.05, abs=2e-3)


def test_profile_json_is_of_the_job_and_its_settings_are_those_without_a_profile(job):
    framework, folder, result = job
    profile = profile_of(folder)
    assert (profile.platform, profile.framework, profile.model, profile.model_size) == (
        "cpu",
        framework,
        "llama",
        "tiny",
    )
    assert profile.path.parent.name == f"profiled_train_cpu_{framework}_llama_run1_attempt1"
    assert profile.host == result["provenance"]["host"]
    assert profile.settings == result["training_config"] | {"profile": "none"}
    mean = result["performance_metrics"]["avg_step_time_seconds"]
    assert profile.unprofiled_step_seconds == pytest.approx(mean, abs=1e-3)
    assert len(profile.profiled_step_seconds) == 2


def test_every_file_of_a_profile_is_known_to_the_housekeeping(job):
    _, folder, _ = job
    profiles = OUTPUT_LAYOUT.layout_of("profiles")
    (place,) = (folder / "profiles").iterdir()
    names = sorted(path.name for path in place.iterdir())
    assert len(names) == 2 and all(profiles.layout_of(place.name).kind_of(name) == "profile" for name in names)


def test_the_log_has_no_time_of_a_profiled_step(job):
    _, folder, _ = job
    (log,) = (folder / "logs").glob("*.log")
    lines = [line for line in log.read_text().splitlines() if "] Step " in line]
    assert [line.split("|")[1].strip() == "profiled" for line in lines] == [4 <= n <= 5 for n in range(1, 10)]


def test_a_profile_changes_no_number_of_the_training_and_neither_job_stands_for_the_other(mega, prefix):
    folder, profiled = mega
    again = launch("mega", "llama", folder, prefix, *STEPS, *PROFILE, *TWO_RANKS)
    assert again.returncode == 0 and "has an ok result" in again.stdout
    same_place = ("LABEL=profiled", *STEPS, *TWO_RANKS)
    plain = launch("mega", "llama", folder, prefix, *same_place)
    assert plain.returncode == 0 and "has an ok result" not in plain.stdout, plain.stderr[-2000:]
    result = store.read(folder / "profiled" / "train_cpu_mega_llama_run1.json")
    assert result["steps"] == list(range(1, 10)) and "excluded_steps" not in result
    for key in ("loss_values", "grad_norms", "learning_rates"):
        assert [result[key][step - 1] for step in profiled["steps"]] == profiled[key], key


def test_a_trace_that_cannot_be_written_does_not_lose_the_result_and_is_said(mega, hf):
    folder, result = mega
    profile = profile_of(folder)
    assert result["status"] == "ok" and list(profile.traces) == [1]
    assert list(profile.reasons) == ["rank0"] and "is full" in profile.reasons["rank0"]
    assert [text for text in result["warnings"] if "rank0" in text] == [f"profile: rank0: {profile.reasons['rank0']}"]
    assert profile_of(hf[0]).reasons == {} and not [text for text in hf[1]["warnings"] if "profile" in text]


def test_a_bad_range_ends_with_2_and_one_line_before_anything_starts(prefix, tmp_path):
    ran = launch("hf", "llama", tmp_path / "output", prefix, *STEPS, *PROFILE, "PROFILE_STEP_END=9")
    assert (ran.returncode, ran.stdout) == (2, "")
    (line,) = ran.stderr.splitlines()
    assert line.startswith("error: ") and "3 steps are left to measure" in line
    assert not (tmp_path / "output").exists()


def test_equal_content_gives_an_equal_file(tmp_path):
    from train.profiling.trace_file import compress

    (tmp_path / "a").write_bytes(b"{}" * 1000)
    for name in ("b", "c"):
        compress(tmp_path / "a", tmp_path / name)
    assert (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()
    assert gzip.decompress((tmp_path / "b").read_bytes()) == b"{}" * 1000
