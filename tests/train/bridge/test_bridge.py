"""Bridge does mega's work: same samples, learning rates and curves from equal weights; a job that would not, stops.

Runs real Megatron-Bridge on the CPU in .venv-bridge, which is made where it is missing (minutes, once).
TPRIMAT_ALL_BRIDGE=1 adds the slow tests.
"""

import json
import os
import subprocess
import sys

import pytest
from toydata import write_toy_data

from tests.support.launching import run
from tests.train.test_parity import (
    BF16_GRAD_NORM_BAND,
    BF16_LOSS_BAND,
    GRAD_NORM_BOUND,
    LOSS_BOUND,
    free_port,
    largest_difference,
    rule,
)
from train.bridge.interpreter import interpreter
from utils.errors import ConfigError
from utils.results import store
from utils.settings.config import ROOT

IS_ALL = os.environ.get("TPRIMAT_ALL_BRIDGE") == "1"
CURVES = ("llama", "qwen", *(("mistral", "qwen3", "llama:bf16") if IS_ALL else ()))
NATIVE = ("llama:native:42", "llama:native:042", "llama:native:43") if IS_ALL else ()
# What a recipe has where it is told nothing: megatron-bridge 0.6.2, recipes/common.py and recipes/{llama,qwen}/h100
RECIPE_DEFAULTS = {
    "llama:without:optimizer.min_lr": "least learning rate: asked 0.0, built 3e-05",
    "llama:without:ddp.check_for_nan_in_grad": "search for NaN in gradients: asked False, built True",
    "qwen:without:scheduler.start_weight_decay,scheduler.end_weight_decay": "weight decay",
    "llama:without:model.bias_activation_fusion": "bias activation fusion: asked False, built True",
}
slow = pytest.mark.skipif(not IS_ALL, reason="minutes; TPRIMAT_ALL_BRIDGE=1 runs it")


@pytest.fixture(scope="module")
def bridge_python():
    try:
        return interpreter("cpu")
    except ConfigError as error:
        pytest.skip(f"Megatron-Bridge cannot be installed here: {error}")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return write_toy_data(tmp_path_factory.mktemp("toy") / "text")


def work(python, framework, prefix, scratch, *cases):
    command = [python, "tests/workers/bridge_worker.py", framework, str(prefix), str(scratch), *cases]
    changes = {"OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port()), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **changes}, timeout=900)


@pytest.fixture(scope="module")
def trained(bridge_python, prefix, tmp_path_factory):
    """Facts by framework and case; each framework with a data cache of its own."""
    found = {}
    for framework, python, cases in (
        ("mega", sys.executable, CURVES),
        ("bridge", bridge_python, (*CURVES, *NATIVE, *RECIPE_DEFAULTS)),
    ):
        ran = work(python, framework, prefix, tmp_path_factory.mktemp(framework), *cases)
        assert ran.returncode == 0, ran.stderr[-3000:]
        found[framework] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("case", CURVES)
def test_bridge_and_mega_have_the_same_loss_and_gradient_norm_at_every_step(trained, case):
    """In bf16 inside the band of mega and hf: Bridge's AdamW is torch's, which rounds other last bits."""
    bridge, mega = trained["bridge"][case], trained["mega"][case]
    bounds = (BF16_LOSS_BAND, BF16_GRAD_NORM_BAND) if case.endswith("bf16") else (LOSS_BOUND, GRAD_NORM_BOUND)
    assert largest_difference(bridge["loss"], mega["loss"]) < bounds[0]
    assert largest_difference(bridge["grad_norm"], mega["grad_norm"]) < bounds[1]
    assert bridge["loss"][-1] < bridge["loss"][0] - 0.5


@slow
def test_mega_of_the_same_megatron_core_has_the_same_curve(trained, bridge_python, prefix, tmp_path):
    ran = work(bridge_python, "mega", prefix, tmp_path, "llama", "qwen")
    assert ran.returncode == 0, ran.stderr[-3000:]
    same_core = json.loads(ran.stdout.strip().splitlines()[-1])
    for case in ("llama", "qwen"):
        assert largest_difference(trained["bridge"][case]["loss"], same_core[case]["loss"]) < 1e-5


@pytest.mark.parametrize("case", CURVES)
def test_learning_rate_at_every_step_is_the_rule(trained, case):
    rates = trained["bridge"][case]["learning_rate"]
    assert len(rates) == 20
    for step, rate in enumerate(rates, 1):
        assert rate == pytest.approx(rule(step), abs=1e-9)


@pytest.mark.parametrize("case", RECIPE_DEFAULTS)
def test_default_of_a_recipe_that_shines_through_stops_the_job_before_its_first_step(trained, case):
    assert RECIPE_DEFAULTS[case] in trained["bridge"][case]["refused"]
    assert trained["bridge"][case]["steps"] == 0


def test_key_that_bridge_does_not_have_is_an_error(trained):
    refused = trained["bridge"]["facts"]["refused"]
    assert all(f"settings map, bridge: {key}: " in refused[key] for key in ("ddp.nonsense", "model.nonsense"))


def test_reporting_rank_is_the_first_of_the_last_pipeline_stage(trained):
    assert trained["bridge"]["facts"]["reporters"] == [2]  # four ranks, PP=2: stage 1 is ranks 2 and 3


def test_waiting_for_samples_is_timed_in_every_step(trained):
    assert all(wait > 0 for wait in trained["bridge"]["llama"]["data_wait_seconds"])


@slow
def test_weights_of_megatron_core_itself_follow_the_seed(trained):
    first, again, other = (trained["bridge"][case]["drawn_weights"] for case in NATIVE)
    assert first == again
    assert first != other


@slow
def test_job_whose_setting_did_not_arrive_leaves_a_failed_result_and_no_step(bridge_python, prefix, tmp_path):
    ran = work(bridge_python, "bridge", prefix, tmp_path, "llama:job:optimizer.min_lr")
    assert ran.returncode != 0
    (path,) = store.find([tmp_path])
    result = store.read(path)
    assert result["status"] == "failed" and result["steps"] == []
    assert "min_lr: asked 0.0, built 3e-05" in result["reason"]


@slow
def test_job_of_bridge_is_ok_and_is_the_same_work_as_that_of_mega(bridge_python, prefix, tmp_path):
    bridge, mega = (
        run(name, "llama", tmp_path / name, prefix, f"DATA_DIR={tmp_path / 'data' / name}")
        for name in ("bridge", "mega")
    )
    assert bridge["status"] == "ok" and bridge["steps"] == [1, 2, 3, 4, 5, 6]
    assert bridge["provenance"]["framework_versions"]["megatron-bridge"] == "0.6.2"
    same = set(mega["fingerprint"]) - {"reasons"}
    assert {key: bridge["fingerprint"][key] for key in same} == {key: mega["fingerprint"][key] for key in same}
    optimizers = [resolved.pop("optimizer") for resolved in (bridge["resolved_config"], mega["resolved_config"])]
    assert optimizers == ["torch.optim.adamw.AdamW", "train.common.adamw.FusedAdamW"]
    assert bridge["resolved_config"] == mega["resolved_config"]


@slow
@pytest.mark.parametrize("layout", ["MBS=1", "TP=2", "PP=2"])
def test_two_ranks_have_the_losses_of_one(bridge_python, prefix, tmp_path, layout):
    one = run("mega", "qwen", tmp_path / "one", prefix)
    two = run("bridge", "qwen", tmp_path / "two", prefix, "CPU_RANKS=2", layout)
    assert two["status"] == "ok" and two["resolved_config"]["num_gpus"] == 2
    assert two["loss_values"] == pytest.approx(one["loss_values"], abs=LOSS_BOUND)
