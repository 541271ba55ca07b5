"""Jobs of FRAMEWORK=prim with a stand-in for Primus and for the GPUs that this machine has not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkout import ROOT

from tests.support.launching import results
from train import train_prim

STANDIN = Path(__file__).parent / "primus_standin" / "root"
PRETENCE = Path(__file__).parent / "primus_standin" / "pretence"
GPUS = 2
FORCED = "moe_router_force_load_balancing"
PRESETS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama3.1_8B": ("", {"tokenizer_type": "Llama3Tokenizer", "rotary_base": 500000}, {}),
    "qwen2.5_7B": ("", {"rotary_base": 1000000}, {}),
    # like AMD's own it does not set qk_layernorm, which is false by default
    "qwen3_8B": ("-BF16", {"rotary_base": 1000000}, {}),
    "qwen3_30B_A3B": (
        *("-BF16", {"num_experts": 5, "qk_layernorm": True}),
        {FORCED: True, "use_turbo_deepep": True, "moe_use_legacy_grouped_gemm": True}
        | {"use_precision_aware_optimizer": True, "main_grads_dtype": "bf16", "exp_avg_dtype": "bf16"},
    ),
}
"""Presets of models in the stand-in: the end of the name of its shipped YAML, keys of the preset, and those of that
YAML alone. Values made up but for those that a test looks for.
"""
SHIPPED: dict[str, Any] = {
    **{"wandb_project": "standin", "stderr_sink_level": "DEBUG", "log_avg_reset_interval": 50, "train_iters": 50},
    **{"micro_batch_size": 2, "global_batch_size": 128, "seq_length": "${PRIMUS_SEQ_LENGTH:8192}"},
    **{"max_position_embeddings": 8192, "eod_mask_loss": True, "mock_data": True, "ckpt_format": "torch"},
    **{"auto_continue_train": "${CONTI_PARAMS:0}", "enable_primus_turbo": True, "use_turbo_grouped_mlp": False},
}
"""Overrides of every YAML that AMD ships, in its form."""
SHORT = ("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=6", "WARMUP_ITERS=2", "LR=1e-3", "MODEL_SIZE=tiny")


@pytest.fixture
def primus(tmp_path: Path) -> Path:
    """A checkout of the stand-in, which a test may change."""
    root = Path(shutil.copytree(STANDIN, tmp_path / "Primus"))
    presets, shipped = root / "primus/configs/models/megatron", root / "examples/megatron/configs/MI300X"
    shipped.mkdir(parents=True)
    base = {"extends": ["language_model.yaml"], "normalization": "RMSNorm", "tokenizer_model": "somebody's"}
    for preset, (precision, of_model, more) in PRESETS.items():
        (presets / f"{preset}.yaml").write_text(yaml.safe_dump(base | of_model))
        trainer = {"config": "pre_trainer.yaml", "model": f"{preset}.yaml", "overrides": SHIPPED | more}
        text = yaml.safe_dump({"modules": {"pre_trainer": trainer}})
        (shipped / f"{preset}{precision}-pretrain.yaml").write_text(text)
    return root


@pytest.fixture
def where(tmp_path: Path, prefix: Path) -> tuple[str, ...]:
    return (f"OUTPUT_DIR={tmp_path / 'output'}", f"DATA_DIR={prefix.parent}", f"DATASET={prefix}")


@pytest.fixture
def launch(primus: Path, where: tuple[str, ...]) -> Callable[..., subprocess.Popen[str]]:
    """Return what starts one job as the matrix would, but for the shell script, which would look for a GPU."""

    def start(*settings: str, fault: str = "", data: str = "", **more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "train.launch", "--platform", "amd", "--framework", "prim", "--model", "llama"]
        environ = {name: value for name, value in os.environ.items() if not name.endswith("_VISIBLE_DEVICES")}
        standin = {"TPRIMAT_TEST_GPUS": str(GPUS), "STANDIN_PYTHON": sys.executable}
        standin |= {"STANDIN_FAULT": fault, "STANDIN_DATA": data}
        environ |= {
            "PRIMUS_PATH": str(primus),
            "PYTHONPATH": str(PRETENCE),
            "TPRIMAT_ENV_NAMES": ",".join([*standin, "OUT"]),
        }
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*command, *SHORT, *where, *settings], cwd=ROOT, env=environ | standin | more, **pipes)

    return start


@pytest.fixture
def run_job(primus: Path, where: tuple[str, ...], tmp_path: Path, monkeypatch) -> Callable[..., Any]:
    """Return what runs one job in this process and gives back its exit code and its result."""

    def run(*settings: str, model: str = "llama", device: str = "pretended device", **standin: str) -> Any:
        for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        unknown = ("total_memory_gb", "gpu_cores", "software_version", "driver_version", "pytorch_version")
        found = {"device_name": device, "device_count": GPUS, "software_stack": "rocm"}
        found |= {**dict.fromkeys(unknown), "reasons": dict.fromkeys(unknown, "pretended")}
        monkeypatch.setattr("train.prim.training._gpu_info", lambda job: found)
        monkeypatch.setattr("train.prim.training.visible_gpus", lambda platform: GPUS)
        given = {"python": sys.executable, "fault": "", "lines": "v25.10", "data": "", **standin}
        for name, value in {
            "PRIMUS_PATH": str(primus),
            **{f"STANDIN_{key.upper()}": given[key] for key in given},
        }.items():
            monkeypatch.setenv(name, value)
        command = ["train_prim", "--platform", "amd", "--model", model, *SHORT, *where, *settings]
        monkeypatch.setattr(sys, "argv", command)
        (tmp_path / "output" / "logs").mkdir(parents=True, exist_ok=True)
        code = train_prim.main()
        (result,) = results(tmp_path / "output").values()
        return code, result

    return run


def seen_by_primus(folder: Path) -> dict[str, str]:
    """Return the environment in which the stand-in trained."""
    (path,) = (folder / "output" / "logs").rglob("info.log")
    return dict(json.loads(path.read_text()))
