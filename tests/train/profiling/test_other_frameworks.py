"""A job of titan, nemo, bridge and Primus with a profile: real frameworks, half a minute each.

They run with TPRIMAT_ALL_PROFILES=1, where the framework has an environment or can get one. Primus also needs
PRIMUS_PATH, a checkout with its Megatron-LM.
"""

import os

import pytest
from toydata import write_toy_data

from evaluate.checks.entries import check_result
from evaluate.timing import breakdown
from tests.support.launching import launch
from utils.results import profile_file, store

PROFILE = ("TRAIN_ITERS=14", "PROFILING=true", "PROFILE_STEP_START=5", "PROFILE_STEP_END=6", "MODEL_SIZE=tiny")
pytestmark = pytest.mark.skipif("TPRIMAT_ALL_PROFILES" not in os.environ, reason="TPRIMAT_ALL_PROFILES is not set")


@pytest.mark.parametrize("framework", ["titan", "nemo", "bridge", "prim"])
def test_the_trace_of_every_framework_opens_under_the_numbers_of_the_steps(framework, tmp_path):
    if framework == "prim" and "PRIMUS_PATH" not in os.environ:
        pytest.skip("PRIMUS_PATH names no checkout of Primus")
    ran = launch(framework, "llama", tmp_path / "output", write_toy_data(tmp_path / "data" / "text"), *PROFILE)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    (path,) = store.find([tmp_path / "output"])
    result = store.read(path)
    assert check_result(result).rejections == ()
    assert [step for step, why in result["excluded_steps"].items() if why == "profiled"] == ["5", "6"]
    (path,) = (tmp_path / "output" / "profiles").rglob("profile.json")
    profile = profile_file.read(path)
    found = breakdown.of_file(profile.trace_path(0))
    assert found.steps == profile.steps == (5, 6)
    assert sum(found.kinds.values()) == pytest.approx(found.step_seconds, rel=1e-9)
    assert found.share("unattributed") < 0.03
