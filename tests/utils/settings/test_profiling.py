"""A profile is of steps and ranks that a training has, leaves enough steps to measure, and is part of its identity."""

import pytest
from settings_of import settings_of

from utils.errors import ConfigError
from utils.settings import profiling

Profile = profiling.Profile

ON = ("PROFILING=true", "PROFILE_STEP_START=11", "PROFILE_STEP_END=13")


def made(*settings, platform="cpu", gpus=None):
    return settings_of("FRAMEWORK=mega", *settings, platform=platform, gpus=gpus)


@pytest.mark.parametrize(
    ("profile", "text"),
    [
        (Profile(11, 13, (0,)), "steps 11-13 of rank 0"),
        (Profile(1, 1, (0, 3)), "steps 1-1 of ranks 0,3"),
        (Profile(2, 5, None, with_memory=True), "steps 2-5 of all ranks, with memory"),
        (Profile(2, 5, (7,), tool="nsys"), "steps 2-5 of rank 7 by nsys"),
        (Profile(2, 5, None, tool="rocprofv3"), "steps 2-5 of all ranks by rocprofv3"),
    ],
)
def test_a_profile_is_read_back_from_its_text(profile, text):
    assert profile.text == text
    assert profiling.parse(text) == profile
    assert list(profiling.steps_of(text)) == list(range(profile.first, profile.last + 1))


@pytest.mark.parametrize(
    "text", ["", "steps 3-2 of rank 0", "steps 0-2 of rank 0", "steps 1-2", "steps 1-2 of rank x", "all", None, 5, True]
)
def test_other_texts_are_no_profile(text):
    with pytest.raises(ValueError, match="wanted none, or such as steps"):
        profiling.parse(text)


def test_without_profiling_the_other_settings_change_nothing():
    plain, moved = made(), made("PROFILE_STEP_START=3", "PROFILE_STEP_END=4", "PROFILE_RANKS=all")
    assert plain.profile == moved.profile == "none" and plain.profiled is profiling.parse("none") is None
    assert list(profiling.steps_of("none")) == list(profiling.steps_of(None)) == list(profiling.steps_of(7)) == []
    assert plain.asked() == moved.asked() and plain.asked()["profile"] == "none"


@pytest.mark.parametrize(
    ("settings", "text", "label"),
    [
        (ON, "steps 11-13 of rank 0", "profiled"),
        ((*ON, "PROFILE_RANKS=1,0"), "steps 11-13 of ranks 0,1", "profiled"),
        ((*ON, "PROFILE_RANKS=all", "PROFILE_MEMORY=true"), "steps 11-13 of all ranks, with memory", "profiled"),
        (("PROFILING=1",), "steps 1-5 of rank 0", "profiled"),
        (("PROFILING=true", "PROFILE_STEP_END=24"), "steps 1-24 of rank 0", "profiled"),  # enough are left to measure
        ((*ON, "MODEL_SIZE=proxy", "CPU_RANKS=1"), "steps 11-13 of rank 0", "proxy_profiled"),
        ((*ON, "LABEL=mine"), "steps 11-13 of rank 0", "mine"),
    ],
)
def test_a_profiled_job_is_another_job_with_a_label_of_its_own(settings, text, label):
    plain, profiled = made(), made(*settings)
    assert profiled.profile == profiled.asked()["profile"] == text
    assert (plain.label, profiled.label) == ("", label)
    assert profiled.results_dir == profiled.output_dir / label


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (("PROFILE_STEP_START=6", "PROFILE_STEP_END=5"), "the first profiled step is after the last one"),
        (("PROFILE_STEP_END=31",), "the training has 30 steps"),
        (("PROFILE_STEP_START=1", "PROFILE_STEP_END=25"), "5 steps are left to measure, wanted 6"),
        (("PROFILE_RANKS=2",), "the training has ranks 0 to 1"),
        (("PROFILE_RANKS=0,0",), "PROFILE_RANKS=0,0: wanted all, or a comma list"),
        (("PROFILE_RANKS=-1",), "PROFILE_RANKS=-1: wanted all, or a comma list"),
        (("PROFILE_RANKS=",), "PROFILE_RANKS=: wanted all, or a comma list"),
        (("PROFILE_STEP_START=0",), "PROFILE_STEP_START=0: wanted a whole number from 1"),
        (("PROFILING=maybe",), "PROFILING=maybe: wanted true, false, nsys, rocprofv3"),
        (("PROFILING=nsys",), "nsys is a tool of platform nvd"),
        (("PROFILING=rocprofv3",), "rocprofv3 is a tool of platform amd"),
    ],
)
def test_a_profile_that_cannot_be_is_refused_with_its_settings(settings, named):
    with pytest.raises(ConfigError) as caught:
        made("PROFILING=true", *settings)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_primus_needs_more_steps_because_it_starts_and_writes_inside_of_steps():
    settings = ("FRAMEWORK=prim", "PROFILING=true", "WARMUP_ITERS=2", "PROFILE_STEP_START=4", "PROFILE_STEP_END=5")
    with pytest.raises(ConfigError, match="8 steps are left to measure, wanted 9"):
        made(*settings, "TRAIN_ITERS=10", platform="amd", gpus=8)
    profile = made(*settings, "TRAIN_ITERS=11", platform="amd", gpus=8).profiled
    assert list(profile.excluded_by_primus) == [3, 6, 4, 5]
    assert profile.excluded_by_primus[4] == profile.excluded_by_primus[5] == "profiled"
    with pytest.raises(ConfigError, match="Primus writes the trace in the step after"):
        made(*settings, "PROFILE_STEP_END=11", "PROFILE_STEP_START=10", "TRAIN_ITERS=11", platform="amd", gpus=8)


@pytest.mark.parametrize(("tool", "platform"), profiling.TOOLS.items())
def test_a_vendors_tool_runs_on_its_platform_without_a_snapshot(tool, platform):
    on = (f"PROFILING={tool}", "PROFILE_STEP_START=11", "PROFILE_STEP_END=13")
    assert made(*on, platform=platform, gpus=8).profile == f"steps 11-13 of rank 0 by {tool}"
    with pytest.raises(ConfigError, match="writes no snapshot of the memory"):
        made(*on, "PROFILE_MEMORY=true", platform=platform, gpus=8)
