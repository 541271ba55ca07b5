"""A job is the same job, and is skipped, only if settings, data, code and machine are the same."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys

import pytest
from checkout import ROOT
from toydata import write_toy_data

from example import example_result
from tests.support.launching import Launcher

RANKS = ("CPU_RANKS=2", "PRECISION=fp32")
REFUSED = "error: STRICT=1: environment: "


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job with an ok result; another job is refused before anything starts, as its environment holds a secret."""
    made = Launcher(tmp_path, monkeypatch)
    identity = made.run(*RANKS).result["identity_sha256"]
    (path,) = made.output.glob("*.json")
    path.write_text(json.dumps(example_result(identity_sha256=identity)))
    monkeypatch.setenv("NCCL_PW", "x")
    return made


def is_same(job, *settings, **options):
    ended = job.run(*RANKS, "STRICT=1", *settings, **options)
    assert ended.err.startswith(REFUSED) if ended.code else "has an ok result" in ended.out, ended
    return ended.code == 0


def test_what_does_not_change_the_work_is_the_same_job(job, tmp_path):
    shutil.copytree(job.output, tmp_path / "elsewhere")
    shutil.copytree(job.output, job.output / "night")
    for setting in ("RUNS=5", "COOLDOWN_SECONDS=5", "FIT=ignore", "LABEL=night", f"OUTPUT_DIR={tmp_path}/elsewhere"):
        assert is_same(job, setting), setting
    assert is_same(job, f"DATA_DIR={tmp_path}/other"), "the same data"
    assert not is_same(job, "FORCE=1")


OTHERS = (
    *("TRAIN_ITERS=7", "GBS=16", "MBS=1", "SL=64", "CPU_RANKS=1", "TP=2", "PP=2", "PRECISION=bf16", "SEED=43"),
    *("LR=2e-3", "MIN_LR=1e-5", "WARMUP_ITERS=1", "WEIGHT_DECAY=0.2", "BETA1=0.8", "BETA2=0.9", "ADAM_EPS=1e-7"),
    *("CLIP_GRAD=0.5", "INIT=native", "INIT_STD=0.03", "SAMPLES=90", "ALLOW_REPEAT=true", "RECOMPUTE=full"),
    *("OPTIMIZER_STATE=bf16", "LAYERS=local"),
)


def test_another_setting_is_another_job(job):
    assert [setting for setting in OTHERS if is_same(job, setting)] == []


def test_cuts_of_one_degree_are_told_apart(job, monkeypatch):
    monkeypatch.delenv("NCCL_PW")
    found = {job.run(*RANKS, "FORCE=1", cut).result["identity_sha256"] for cut in ("TP=2", "PP=2")}
    assert len(found) == 2


def test_other_framework_model_run_data_or_machine_is_another_job(job, monkeypatch):
    (path,) = job.output.glob("*.json")
    for name in ("hf_llama_run1", "mega_qwen_run1", "mega_llama_run2"):
        result = json.loads(path.read_text()) | dict(zip(("framework", "model"), name.split("_")[:2], strict=True))
        path.with_name(f"train_cpu_{name}.json").write_text(json.dumps(result | {"run": int(name[-1])}))
    assert not is_same(job, framework="hf") and not is_same(job, model="qwen") and not is_same(job, "--run=2")
    assert is_same(job)
    with monkeypatch.context() as patch:
        patch.setattr(platform, "node", lambda: "another-machine")
        assert not is_same(job)
    write_toy_data(job.prefix, documents=100, seed=1)
    assert not is_same(job)


def test_other_code_is_another_job(job, tmp_path):
    copy = tmp_path / "checkout"
    for folder in ("utils", "data", "train", "evaluate", "shell"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("config*.env"), *ROOT.glob("*-requirements.txt")):
        shutil.copy(path, copy)

    def said():
        command = [sys.executable, "-m", "train.launch", *job.command(*RANKS, "STRICT=1")]
        ran = subprocess.run(
            command, cwd=copy, capture_output=True, text=True, env={"NCCL_PW": "x", "PATH": "/usr/bin"}
        )
        return ran.stdout + ran.stderr

    assert "has an ok result" in said()
    with (copy / "train" / "launch.py").open("a") as file:
        file.write("# changed\n")
    assert said().startswith(REFUSED)
