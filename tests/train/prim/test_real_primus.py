"""Real Primus on a CPU: started by the suite as on AMD GPUs, from the equal weights, held against `mega`.

Two trees of Primus lie beside the repository (their authors' code under their licences): one with
examples/run_pretrain.sh, one of the pull request that replaces it by primus-cli.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from checkout import ROOT
from made_traces import MOST_UNATTRIBUTED, painted_operators

from evaluate import trace, validate
from tests.support import real_primus

SHORT = ("GBS=8", "MBS=2", "TRAIN_ITERS=6", "WARMUP_ITERS=2", "LR=1e-3", "MODEL_SIZE=tiny", "PRECISION=fp32")
PRINTED_LOSS = 2e-6
"""Primus prints six decimals; a sum in another order changes the seventh digit."""
PRINTED_NORM = 1.1e-3
"""Primus prints three decimals."""

pytestmark = [
    pytest.mark.full("real trainings of Primus beside mega, about 35 s each, and once its environment"),
    pytest.mark.skipif(real_primus.why_not() is not None, reason=str(real_primus.why_not())),
]


@pytest.fixture(scope="module")
def primus_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("primus")


def trained(framework, model, output, prefix, primus, *settings):
    """The result of one job, started as the matrix starts it."""
    where = (f"OUTPUT_DIR={output}", f"DATA_DIR={prefix.parent}", f"DATASET={prefix}")
    command = [sys.executable, "-m", "train.launch", "--platform", "cpu", "--framework", framework, "--model", model]
    environ = {**os.environ, "PRIMUS_PATH": str(primus)}
    done = subprocess.run(
        [*command, *SHORT, *where, *settings], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert validate.main([str(output)]) == 0
    (path,) = output.rglob("train_*.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("tree", "launcher", "model", "ranks", "length"),
    [
        ("primus-fd1eeab", "examples/run_pretrain.sh", "llama", 1, 128),
        ("primus-pr999", "primus-cli", "qwen3", 2, 128),
    ],
)
def test_real_primus_trains_the_curve_of_mega(tree, launcher, model, ranks, length, primus_folder, prefix, tmp_path):
    root, settings = real_primus.unpack(tree, primus_folder), (f"CPU_RANKS={ranks}", f"SL={length}")
    assert (root / launcher).is_file()
    theirs = trained("prim", model, tmp_path / "prim", prefix, root, *settings)
    ours = trained("mega", model, tmp_path / "mega", prefix, root, *settings)
    for key in ("initial_weights_sha256", "token_stream_sha256", "model_config_sha256"):
        assert theirs["fingerprint"][key] == ours["fingerprint"][key] is not None, key
    asked = {key: value for key, value in theirs["training_config"].items() if key in theirs["resolved_config"]}
    assert asked == {key: theirs["resolved_config"][key] for key in asked}
    assert theirs["resolved_config"]["init"] == "equal"
    assert theirs["resolved_config"]["norm_eps"] == ours["resolved_config"]["norm_eps"]
    assert theirs["resolved_config"]["attention_backend"] == "megatron_core:dot_product"
    assert theirs["steps"] == [1, 3, 4, 5, 6] and theirs["excluded_steps"].keys() == {"2"}
    for key, bound in (("loss_values", PRINTED_LOSS), ("grad_norms", PRINTED_NORM)):
        assert theirs[key] == pytest.approx([ours[key][step - 1] for step in theirs["steps"]], abs=bound), key
    assert not list((tmp_path / "prim").rglob("model_optim_rng.pt")), "the checkpoint is gone after the run"


def test_a_profile_of_real_primus_opens_under_the_numbers_of_its_steps(primus_folder, prefix, tmp_path, capsys):
    root = real_primus.unpack("primus-fd1eeab", primus_folder)
    profile = ("TRAIN_ITERS=14", "PROFILING=true", "PROFILE_STEP_START=5", "PROFILE_STEP_END=6", "SL=128")
    result = trained("prim", "llama", tmp_path / "output", prefix, root, *profile)
    assert [step for step, why in result["excluded_steps"].items() if why == "profiled"] == ["5", "6"]
    (path,) = (tmp_path / "output" / "profiles").rglob("*.gz")
    capsys.readouterr()
    assert trace.main([str(path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == [5, 6]
    assert sum(found["kinds"].values()) == pytest.approx(found["step_seconds"], rel=1e-9)
    assert found["kinds"] == pytest.approx(painted_operators(path), abs=0.005 * found["step_seconds"])
    assert found["kinds"]["unattributed"] < MOST_UNATTRIBUTED * found["step_seconds"]
