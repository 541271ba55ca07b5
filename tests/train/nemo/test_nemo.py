"""NeMo does mega's work: same samples, learning rates and curves from equal weights; a job that would not, stops.

Runs real NeMo on the CPU in its own environment, which is made here when it is missing (some minutes, once).
`TPRIMAT_NEMO_PYTHON` names the Python of another NeMo for the tests of one process; those of whole jobs take the first.
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
from train.nemo.interpreter import interpreter
from utils.errors import ConfigError
from utils.results import store
from utils.settings.config import ROOT

CURVES = ("llama", "qwen", "mistral", "qwen3", "llama:bf16")
NATIVE = ("llama:native:42", "llama:native:042", "llama:native:43")
# What a recipe has where it is told nothing: nemo/collections/llm/recipes of nemo_toolkit 2.3.3
RECIPE_DEFAULTS = {
    "llama:without:optim.config.adam_eps": "Adam epsilon: asked 1e-08, built 1e-05",
    "llama:without:model.config.bias_dropout_fusion": "bias dropout fusion: asked False, built True",
    "mistral:without:model.config.window_size": "sliding window: asked 64, built 4097",
    "qwen:without:model.config.num_layers": "layers: asked 4, built 28",
    # no recipe of 2.3.3 is of Qwen3: that of Qwen 2.5 7B has other traits
    "qwen3:without:model.config.add_qkv_bias": "QKV bias: asked False, built True",
    "qwen3:without:model.config.qk_layernorm": "norm of queries and keys: asked True, built False",
}


@pytest.fixture(scope="module")
def nemo_python():
    if "TPRIMAT_NEMO_PYTHON" in os.environ:
        return os.environ["TPRIMAT_NEMO_PYTHON"]
    try:
        return interpreter("cpu")
    except ConfigError as error:
        pytest.skip(f"NeMo cannot be installed here: {error}")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return write_toy_data(tmp_path_factory.mktemp("toy") / "text")


def work(python, framework, prefix, scratch, *cases):
    command = [python, "tests/workers/nemo_worker.py", framework, str(prefix), str(scratch), *cases]
    changes = {"OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port()), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **changes}, timeout=600)


@pytest.fixture(scope="module")
def trained(nemo_python, prefix, tmp_path_factory):
    """Facts by framework and case; each framework with a data cache of its own."""
    found = {}
    for framework, python, cases in (
        ("mega", sys.executable, CURVES),
        ("nemo", nemo_python, (*CURVES, *NATIVE, *RECIPE_DEFAULTS)),
    ):
        ran = work(python, framework, prefix, tmp_path_factory.mktemp(framework), *cases)
        assert ran.returncode == 0, ran.stderr[-3000:]
        found[framework] = json.loads(ran.stdout.strip().splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def jobs(nemo_python, prefix, tmp_path_factory):
    """Results of a whole job by framework, started as a user starts it."""
    found = {}
    for framework in ("mega", "nemo"):
        folder, data = tmp_path_factory.mktemp(framework), tmp_path_factory.mktemp("data")
        found[framework] = run(framework, "llama", folder, prefix, f"DATA_DIR={data}")
    return found


@pytest.mark.parametrize("case", CURVES)
def test_nemo_and_mega_have_the_same_loss_and_gradient_norm_at_every_step(trained, case):
    """In bf16 inside the band of mega and hf: NeMo's AdamW is torch's, which rounds other last bits of the masters."""
    nemo, mega = trained["nemo"][case], trained["mega"][case]
    is_bf16 = case.endswith("bf16")
    bounds = (BF16_LOSS_BAND, BF16_GRAD_NORM_BAND) if is_bf16 else (LOSS_BOUND, GRAD_NORM_BOUND)
    assert largest_difference(nemo["loss"], mega["loss"]) < bounds[0]
    assert largest_difference(nemo["grad_norm"], mega["grad_norm"]) < bounds[1]
    assert nemo["loss"][-1] < nemo["loss"][0] - 0.5


@pytest.mark.parametrize("case", CURVES)
def test_learning_rate_at_every_step_is_the_rule(trained, case):
    rates = trained["nemo"][case]["learning_rate"]
    assert len(rates) == 20
    for step, rate in enumerate(rates, 1):
        assert rate == pytest.approx(rule(step), abs=1e-9)


@pytest.mark.parametrize("case", RECIPE_DEFAULTS)
def test_default_of_a_recipe_that_shines_through_stops_the_job_before_its_first_step(trained, case):
    assert RECIPE_DEFAULTS[case] in trained["nemo"][case]["refused"]
    assert trained["nemo"][case]["steps"] == 0


def test_job_whose_setting_did_not_arrive_leaves_a_failed_result_and_no_step(nemo_python, prefix, tmp_path):
    ran = work(nemo_python, "nemo", prefix, tmp_path, "llama:job:optim.lr_scheduler.warmup_steps")
    assert ran.returncode != 0
    (path,) = store.find([tmp_path])
    result = store.read(path)
    assert result["status"] == "failed" and result["steps"] == []
    assert "warmup_iters: asked 2, built 2000" in result["reason"]


def test_job_of_nemo_is_ok_and_is_the_same_work_as_that_of_mega(jobs):
    nemo, mega = jobs["nemo"], jobs["mega"]
    assert nemo["status"] == "ok" and nemo["steps"] == [1, 2, 3, 4, 5, 6]
    assert nemo["provenance"]["framework_versions"]["nemo-toolkit"] == "2.3.3"
    same = set(mega["fingerprint"]) - {"reasons"}
    assert {key: nemo["fingerprint"][key] for key in same} == {key: mega["fingerprint"][key] for key in same}
    assert nemo["fingerprint"]["token_stream_sha256"] and nemo["fingerprint"]["initial_weights_sha256"]
    optimizers = [resolved.pop("optimizer") for resolved in (nemo["resolved_config"], mega["resolved_config"])]
    assert optimizers == ["torch.optim.adamw.AdamW", "train.common.adamw.FusedAdamW"]
    assert nemo["resolved_config"] == mega["resolved_config"]
    assert nemo["learning_rates"] == pytest.approx(mega["learning_rates"], abs=1e-9)


def test_waiting_for_samples_is_timed_in_every_step(trained, jobs):
    assert all(wait > 0 for wait in trained["nemo"]["llama"]["data_wait_seconds"])
    assert jobs["nemo"]["performance_metrics"]["data_wait_fraction"] > 0


def test_weights_of_nemo_itself_follow_the_seed(trained):
    first, again, other = (trained["nemo"][case]["drawn_weights"] for case in NATIVE)
    assert first == again
    assert first != other


@pytest.mark.parametrize("key", ["trainer.strategy.nonsense", "model.config.nonsense"])
def test_key_that_nemo_does_not_have_is_an_error(trained, key):
    assert f"{key}: " in trained["nemo"]["facts"]["refused"][key]


def test_reporting_rank_is_the_first_of_the_last_pipeline_stage(trained):
    assert trained["nemo"]["facts"]["reporters"] == [2]  # four ranks, PP=2: stage 1 is ranks 2 and 3
