"""The memory estimate holds against what the real models keep while they train."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import settings_of
from toydata import write_toy_data

from tests.support import tied_model
from tests.support.launching import free_port
from tests.workers.memory_worker import SETTINGS
from utils import models
from utils.memory import estimate as memory

pytestmark = pytest.mark.full("memory that real tiny models keep while they train, about 75 s in all")

KEPT = [
    f"kept {model} PRECISION={precision}"
    for model in (*models.NAMES, tied_model.NAME)
    for precision in ("fp32", "bf16")
]
AS_ON_GPU = [
    f"kept_as_on_gpu {model} PRECISION={precision}" for model in models.NAMES for precision in ("fp32", "bf16")
]
RECIPES = ["kept_as_on_gpu llama PRECISION=bf16 RECOMPUTE=selective"]
OTHER_SHAPE = ["kept mistral MBS=1 SL=256 PRECISION=bf16", "kept llama MBS=4 SL=64 PRECISION=fp32"]
PEAKS = [
    "peak llama PRECISION=fp32",
    "peak mistral PRECISION=bf16 MBS=4 SL=256",
    "peak qwen MBS=8 SL=512",
    "peak qwen3 MBS=8 SL=256 PRECISION=bf16",
    "peak llama MBS=8 SL=256 PRECISION=bf16 RECOMPUTE=full OPTIMIZER_STATE=bf16",
    "peak llama MBS=8 SL=256 PRECISION=bf16 RECOMPUTE=selective GRADIENT_DTYPE=bf16",
    f"peak {tied_model.NAME} PRECISION=fp32 MBS=1 SL=16",  # few tokens: the embedding's gradients are the most
]
ONE_RANK = {
    "mega": [*KEPT, *OTHER_SHAPE, *PEAKS, *AS_ON_GPU, *RECIPES],
    "hf": [*KEPT, *OTHER_SHAPE, *PEAKS],
}
TWO_RANKS = [
    *("kept qwen TP=2 PRECISION=fp32", "kept qwen3 TP=2 PRECISION=bf16"),
    *("peak llama PP=2 PRECISION=fp32", "peak llama PP=2 MBS=8 SL=256"),
]


@pytest.fixture(autouse=True)
def tied(monkeypatch):
    """The tied model is known to these tests."""
    monkeypatch.setitem(models.MODELS, tied_model.NAME, tied_model.LLAMA_1B)


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Bytes by framework, number of ranks and case, counted in processes of their own."""
    scratch = tmp_path_factory.mktemp("memory")
    prefix = write_toy_data(scratch / "toy" / "text")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

    def count(framework, ranks, cases):
        start = torchrun if ranks == 2 else []
        command = [sys.executable, *start, "-m", "tests.workers.memory_worker", framework, str(prefix), str(scratch)]
        # torch.compile would need a C++ compiler; what is kept does not depend on it
        settings = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "MASTER_PORT": str(free_port())}
        settings["TMPDIR"] = str(scratch)  # where torchrun leaves a folder
        ran = subprocess.run(
            [*command, *cases],
            cwd=Path(__file__).parents[3],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        return json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("{")))

    return {
        ("mega", 1): count("mega", 1, ONE_RANK["mega"]),
        ("hf", 1): count("hf", 1, ONE_RANK["hf"]),
        ("mega", 2): count("mega", 2, TWO_RANKS),
    }


def stage_of(framework, ranks, case, stage=0):
    kind, model, *settings = case.split()
    config = settings_of(*SETTINGS, f"CPU_RANKS={ranks} FRAMEWORK={framework} MODEL=llama", *settings)
    if kind == "kept_as_on_gpu":
        config = replace(config, platform="nvd")
    return memory.Stage(config, framework, config.spec(model), stage)


@pytest.mark.parametrize(
    ("framework", "ranks", "case"),
    [(framework, 1, case) for framework in ONE_RANK for case in ONE_RANK[framework] if case.startswith("kept")]
    + [("mega", 2, case) for case in TWO_RANKS if case.startswith("kept")],
)
def test_activations_are_what_the_real_model_keeps(counted, framework, ranks, case):
    stage = stage_of(framework, ranks, case)
    each = 2 if case.startswith("kept_as_on_gpu") and stage.config.precision == "bf16" else 4  # logits, or softmax
    logits = each * stage.tokens * stage.spec.vocab_size / stage.config.tensor_parallel_size
    real = counted[framework, ranks][case]
    assert stage.activations + stage.weight_copies + logits == pytest.approx(real, rel=2e-3)


@pytest.mark.parametrize(
    ("framework", "ranks", "case"),
    [(framework, 1, case) for framework in memory.FRAMEWORKS for case in PEAKS]
    + [("mega", 2, case) for case in TWO_RANKS if case.startswith("peak")],
)
def test_total_is_the_largest_amount_of_live_tensors_of_a_training(counted, framework, ranks, case):
    stage = stage_of(framework, ranks, case)
    found = memory.estimate(stage.config, framework, stage.spec)
    tensors_gb, real_gb = found.total_gb - found.process_gb, max(counted[framework, ranks][case]) / 1e9
    # a thread of gloo may still hold a copy of the weights that it has gathered, or of the gradients it has reduced
    held_by_gloo_gb = 4 * stage.spec.parameter_count / 1e9
    assert 0.97 * real_gb - held_by_gloo_gb <= tensors_gb <= 1.03 * real_gb
