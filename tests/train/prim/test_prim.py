"""FRAMEWORK=prim from settings to result, with a stand-in for Primus and for the GPUs that this machine has not.

`launch` is the whole path: the launcher of a job, the job, the stand-in. `run_job` is the job alone, in this process.
At the end real Primus, from the equal weights, against `mega`.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess

import psutil
import pytest
import yaml
from processes import wait_until_gone

from evaluate import validate
from tests.support import real_primus
from tests.support.launching import results, run
from tests.train.prim.conftest import GPUS, PRETENCE, ROOT, seen_by_primus
from utils import models

# Times of the stand-in: 900 ms, 300 ms, then 200 + n.
TIMES = [0.09, 0.03, 0.0203, 0.0204, 0.0205, 0.0206]
# LR n / (W + 1) for n <= W = 2, then a cosine over the remaining four steps: cos(0), cos(pi/4), cos(pi/2), cos(3 pi/4)
RATES = [1e-3 / 3, 2e-3 / 3, 1e-3, 8.535534e-4, 5e-4, 1.464466e-4]


def ended(process):
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def is_valid(output):
    """Return whether a result is accepted without its second timer: a busy machine stops the stand-in between steps."""
    copy = shutil.copytree(output, output.with_name("copy"))
    (path,) = copy.rglob("train_*.json")
    result = json.loads(path.read_text())
    del result["performance_metrics"]["loop_seconds"]
    path.write_text(json.dumps(result))
    return validate.main([str(copy)]) == 0


def test_whole_path_gives_a_valid_result_with_proof_of_settings_and_samples(launch, tmp_path, primus):
    token = "hf_" + "x" * 34
    secrets = {"HF_TOKEN": token, "NCCL_FOO": token, "WANDB_API_KEY": "open-sesame", "MY_NOTE": token}
    before = {path for path in primus.rglob("*") if path.is_file()}
    secrets |= {"PIP_INDEX_URL": "https://ann:open-sesame@index.example/simple"}
    code, out, err = ended(launch(data="real", **secrets, NCCL_DEBUG="WARN", PIP_FIND_LINKS="/wheels"))
    assert code == 0, out[-3000:] + err
    (result,) = results(tmp_path / "output").values()
    assert (result["status"], result["source"]) == ("ok", "log")
    (warning,) = (line for line in result["warnings"] if "INIT=equal" in line)  # others are of the machine
    assert "own weights" in warning
    assert is_valid(tmp_path / "output")
    assert result["performance_metrics"]["loop_seconds"] > 0, "by the lines as they came, sooner or later than printed"
    assert result["steps"] == [1, 2, 3, 4, 5, 6] and result["step_times"] == TIMES
    assert result["loss_values"] == pytest.approx([11.9, 11.8, 11.7, 11.6, 11.5, 11.4])
    assert result["learning_rates"] == pytest.approx(RATES, rel=1e-6)
    resolved = result["resolved_config"]
    asked = {key: value for key, value in result["training_config"].items() if key in resolved and key != "init"}
    assert asked == {key: resolved[key] for key in asked}
    assert resolved["init"] == "native" and resolved["dp"] == GPUS
    assert resolved["rope_scaling"]["factor"] == 8.0 and resolved["attention_backend"] == "transformer_engine:auto"
    assert len(result["fingerprint"]["token_stream_sha256"]) == 64
    assert "2000.00" in result["memory_metrics"]["reasons"]["peak_memory_allocated_gb"]
    # the ends of its steps are known by its lines; no GPU of AMD is here
    assert "amdsmi" in result["energy_metrics"]["reasons"]["joules"]
    assert f"[AMD] Step 6/6 | 0.021 s | avg {sum(TIMES[1:]) / 5:.3f} s | loss 11.4000 | 6" in out
    assert {path for path in primus.rglob("*") if path.is_file()} == before, "nothing is written into the checkout"
    # the environment is that of ranks, without secrets
    environment, seen = result["provenance"]["environment"], seen_by_primus(tmp_path)
    assert (environment["HSA_NO_SCRATCH_RECLAIM"], environment["GPU_MAX_HW_QUEUES"]) == ("1", "2")
    assert not [name for name, value in seen.items() if name in secrets or token in value]
    assert (seen["NCCL_DEBUG"], seen["PIP_FIND_LINKS"]) == ("WARN", "/wheels"), "its launcher runs pip"
    assert result["provenance"]["environment_withheld"] == ["NCCL_FOO", "PIP_INDEX_URL"]
    # what it leaves has names that purge knows
    purge = [ROOT / "shell" / "purge.sh", f"OUTPUT_DIR={tmp_path / 'output'}", "PLATFORM=cpu"]
    ran = subprocess.run(purge, capture_output=True, text=True, env={**os.environ, "HOME": str(tmp_path)})
    assert ran.returncode == 0, ran.stderr
    assert not [path for path in (tmp_path / "output").rglob("*") if path.is_file()]


LINES = [
    ("v25.11", (), {}, RATES),
    ("v26.4", (), {"2": "means over iterations 1 and 2"}, RATES),
    # the first rate is that of step 1 without a warm-up, then a cosine over six steps
    ("v25.10", ("WARMUP_ITERS=0",), {}, [1e-3, 9.330127e-4, 7.5e-4, 5e-4, 2.5e-4, 6.698730e-5]),
]


@pytest.mark.parametrize(("lines", "settings", "excluded", "rates"), LINES)
def test_lines_of_every_generation_are_read(lines, settings, excluded, rates, run_job):
    code, result = run_job(*settings, lines=lines)
    assert code == 0, result["reason"]
    kept = [step for step in range(1, 7) if str(step) not in excluded]
    assert result["steps"] == kept
    assert result["step_times"] == [TIMES[step - 1] for step in kept]
    assert result["learning_rates"] == pytest.approx([rates[step - 1] for step in kept], rel=1e-6)
    assert result["excluded_steps"].keys() == excluded.keys()
    assert all(why in result["excluded_steps"][step] for step, why in excluded.items())


@pytest.mark.parametrize("model", models.NAMES)
def test_what_was_told_and_printed_again_is_the_model(model, run_job):
    spec = models.get(model, "tiny")
    # no longer than the window of mistral; the stand-in counts the experts of one rank, as Primus does
    code, result = run_job("SL=64", *(["EP=2"] if spec.num_experts else []), model=model)
    assert code == 0, result["reason"]
    resolved = result["resolved_config"]
    # norms and biases, which are vectors, are not decayed
    norms = (2 * spec.num_layers + 1) * spec.hidden_size + 2 * spec.num_layers * spec.head_dim * spec.query_key_norm
    biases = spec.num_layers * (spec.num_attention_heads + 2 * spec.num_query_groups) * spec.head_dim * spec.qkv_bias
    assert resolved["parameters_without_weight_decay"] == norms + biases
    assert (resolved["vocab_size"], resolved["num_layers"]) == (spec.vocab_size, spec.num_layers)
    assert resolved.get("query_key_norm", False) == spec.query_key_norm
    assert resolved["parameter_count"] == spec.parameter_count
    if spec.num_experts:
        assert (resolved["num_experts"], resolved["experts_per_token"], resolved["routing"]) == (8, 2, "learned")
        assert "no tokens of each expert" in result["experts"]["reasons"]["tokens"]


PROFILE = ("PROFILING=true", "PROFILE_STEP_START=5", "PROFILE_STEP_END=6", "TRAIN_ITERS=14", "PROFILE_RANKS=all")


@pytest.mark.parametrize(("lines", "more"), [("v25.10", ()), ("v26.4", (2,))])
def test_profiled_steps_of_primus_and_those_beside_them_are_no_samples(lines, more, run_job, tmp_path):
    code, result = run_job(*PROFILE, lines=lines)
    assert code == 0, result["reason"]
    assert result["steps"] == [step for step in range(1, 15) if step not in {*more, 4, 5, 6, 7}]
    assert {step: why for step, why in result["excluded_steps"].items() if step != "2"} == {
        "4": "the profiler starts in it",
        "5": "profiled",
        "6": "profiled",
        "7": "the trace of the profile is written in it",
    }
    assert is_valid(tmp_path / "output") and result["label"] == "tiny_profiled"
    (path,) = (tmp_path / "output" / "profiles").rglob("profile.json")
    profile = json.loads(path.read_text())
    assert (profile["steps"], profile["ranks"], profile["profiled_step_seconds"]) == ([5, 6], [0, 1], [0.0205, 0.0206])
    traces = sorted(path.parent.glob("*.gz"))
    assert len(traces) == 2 and all(b"ProfilerStep#5" in gzip.decompress(trace.read_bytes()) for trace in traces)
    assert not list((tmp_path / "output" / "logs").rglob("*.pt.trace.json.gz")), "moved, not copied"


FAULTS = {
    "its own exit code": ("exit:37:3", "llama", 37, "failed", "the last words of a stand-in"),
    "killed": ("killed:3", "llama", 137, "failed", "exit code 137"),
    "no memory": ("oom:3", "llama", 1, "oom", "HIP out of memory"),
    "a missing loss": ("nan:4", "llama", 1, "nan", "iteration 4"),
    "an early end": ("exit:0:4", "llama", 1, "failed", "4 of 6"),
    "no output": ("silent", "llama", 1, "failed", "no line tells of an iteration"),
    "another learning rate": ("another:lr=0.5", "llama", 1, "failed", "lr: asked 0.001, built 0.5"),
    "another norm": ("another:norm_epsilon=0.001", "llama", 1, "failed", "norm_eps: asked 1e-05, built 0.001"),
    "no scaling of rope": ("another:use_rope_scaling=false", "llama", 1, "failed", "rope_scaling: asked"),
    "another vocabulary": ("another:vocab_size=131071", "llama", 1, "failed", "vocab_size: asked"),
    "another routing": (
        *("another:moe_router_force_load_balancing=true", "qwen3moe", 1, "failed"),
        "routing: asked 'learned', built 'balanced'",
    ),
    "another number of experts": (
        *("another:moe_router_topk=3", "qwen3moe", 1, "failed"),
        "experts_per_token: asked 2, built 3",
    ),
    # as AMD's own preset of Qwen3 8B builds it (Primus fd1eeab)
    "no norms of queries": ("another:qk_layernorm=false", "qwen3", 1, "failed", "query_key_norm: asked True, built "),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_bad_end_is_a_result_with_its_reason_and_no_exit_code_is_swallowed(name, run_job):
    fault, model, wanted, status, said = FAULTS[name]
    code, result = run_job(fault=fault, model=model)
    assert (code, result["status"]) == (wanted, status), result["reason"]
    assert said in result["reason"]


def test_without_a_table_of_arguments_nothing_is_claimed(run_job):
    code, result = run_job(fault="no_table")
    assert code == 0, result["reason"]
    assert any("no table" in warning for warning in result["warnings"])
    assert {result["resolved_config"][key] for key in ("lr", "seed", "init", "num_layers")} == {None}
    assert result["learning_rates"][0] is None and result["fingerprint"]["token_stream_sha256"] is None


def test_other_samples_are_no_proof(run_job):
    code, result = run_job(fault="reseed", data="real")
    assert code == 0, result["reason"]
    assert result["fingerprint"]["token_stream_sha256"] is None
    assert "is not the one of our data set" in result["fingerprint"]["reasons"]["token_stream_sha256"]


def processes_of(primus):
    """Return the living processes that work in a folder."""
    return [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(primus)]


def test_nothing_of_primus_outlives_a_launcher_that_is_killed(launch, primus):
    process = launch(fault="hang:3")
    next(line for line in process.stdout if "Step 3/6" in line)
    found = processes_of(primus)
    assert found
    process.kill()
    process.communicate()
    wait_until_gone(found)


def test_a_job_leaves_no_process_and_its_files_and_says_which_primus_it_was(run_job, tmp_path, prefix, primus):
    git = ["git", "-C", str(primus), "-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "stand-in"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    code, result = run_job("LABEL=mine", fault="leftover")
    assert code == 0, result["reason"]
    assert processes_of(primus) == []
    assert result["provenance"]["framework_versions"]["primus"] == commit
    logs, stem = tmp_path / "output" / "logs", "mine_train_amd_prim_llama_run1_attempt1"
    assert {path.name for path in logs.iterdir()} == {f"{stem}{end}" for end in (".primus.log", ".yaml", ".primus")}
    said = yaml.safe_load((logs / f"{stem}.yaml").read_text())["modules"]["pre_trainer"]["overrides"]
    assert said["train_data_path"] == str(prefix) and said["mock_data"] is False


BAD = {
    "no Primus": ({"PRIMUS_PATH": "/missing"}, "PRIMUS_PATH=/missing: no Primus there"),
    "GPUs that Primus would not take": ({"HIP_VISIBLE_DEVICES": "2,3"}, "ROCR_VISIBLE_DEVICES"),
    "a space in a path that the launcher divides": ({"PRIMUS_PATH": "{}/a folder"}, "a folder has a space"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_ends_with_2_and_one_line_before_anything_is_started(name, launch, tmp_path, primus):
    environ, said = BAD[name]
    (tmp_path / "a folder").symlink_to(primus)
    code, out, err = ended(launch(**{key: value.format(tmp_path) for key, value in environ.items()}))
    (line,) = err.splitlines()
    assert (code, out) == (2, "") and line.startswith("error: ") and said in line
    assert not list(tmp_path.rglob("train_*.json"))


ENVIRONMENTS = [
    (
        *("AMD Instinct MI300X", {"NVTE_CK_USES_BWD_V3": "0"}),
        {"NVTE_CK_USES_BWD_V3": "0", "NVTE_CK_IS_V3_ATOMIC_FP32": "1"},
    ),
    ("AMD Instinct MI350X VF", {}, {"NVTE_CK_USES_BWD_V3": "1", "NVTE_CK_IS_V3_ATOMIC_FP32": None}),
    (
        *("AMD Instinct MI300A", {"HOME": "/workspace/home", "TPRIMAT_IN_CONTAINER": "1"}),
        {"PRIMUS_CACHE_ROOT": "/workspace/home/.cache/primus", "HF_HOME": "/workspace/home/.cache/huggingface"}
        | {"DATA_PATH": "/workspace/home/.cache/primus/data", "PRIMUS_SKIP_PIP": "1"},
    ),
    (
        *("AMD Instinct MI300X", {"HOME": "/home/ann", "XDG_CACHE_HOME": "/fast", "HF_HOME": "/mine"}),
        {"PRIMUS_CACHE_ROOT": "/fast/primus", "HF_HOME": "/mine", "PRIMUS_SKIP_PIP": None},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("device", "given", "wanted"), ENVIRONMENTS)
def test_primus_has_amds_settings_the_users_first_its_files_below_home_and_nothing_of_ours(
    device, given, wanted, run_job, monkeypatch, tmp_path
):
    for name in ("XDG_CACHE_HOME", "TPRIMAT_IN_CONTAINER", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{PRETENCE}{os.pathsep}/opt/theirs")
    monkeypatch.setenv("VIRTUAL_ENV", str(ROOT / ".venv"))
    code, result = run_job(device=device, lines="v25.11")
    assert code == 0, result["reason"]
    seen = seen_by_primus(tmp_path)
    assert {name: seen.get(name) for name in wanted} == wanted
    assert str(ROOT / ".venv" / "bin") not in seen["PATH"].split(os.pathsep)
    assert seen["PYTHONPATH"] == "/opt/theirs" and "VIRTUAL_ENV" not in seen
    assert (seen["HSA_NO_SCRATCH_RECLAIM"], seen["GPUS_PER_NODE"]) == ("1", str(GPUS)) and int(
        seen["MASTER_PORT"]
    ) > 1023


PRIMUS_CLI = """#!/usr/bin/env bash
# A stand-in of primus-cli: `direct [--config SETTINGS] --log_file LOG -- train pretrain --config EXPERIMENT`
set -Eeuo pipefail
printf '%s\\n' "$PRIMUS_GPU_MODEL" "$@" >"$OUT"
while [[ $1 != --log_file ]]; do shift; done
echo "[NODE-0(n1)] [INFO]     NCCL_CROSS_NIC=0"
"$STANDIN_PYTHON" primus/cli/main.py train pretrain --config "${@: -1}" 2>&1 | tee "$2"
"""


def test_a_checkout_without_run_pretrain_is_started_by_primus_cli_direct(run_job, primus, tmp_path, monkeypatch):
    (primus / "examples" / "run_pretrain.sh").unlink()
    (primus / "primus-cli").write_text(PRIMUS_CLI)
    for name in ("runner/.primus.yaml", "runner/helpers/envs/MI300X.sh", "runner/helpers/envs/MI355X.sh"):
        (primus / name).parent.mkdir(parents=True, exist_ok=True)
        (primus / name).touch()
    monkeypatch.setenv("OUT", str(tmp_path / "arguments"))
    code, result = run_job(device="AMD Instinct MI350X")
    assert code == 0, result["reason"]
    stem = tmp_path / "output" / "logs" / "tiny_train_amd_prim_llama_run1_attempt1"
    assert (tmp_path / "arguments").read_text().split("\n")[:-1] == [
        *("MI355X", "direct", "--config", str(primus / "runner/.primus.yaml")),  # not ~/.primus.yaml of its user
        *("--log_file", f"{stem}.primus.log", "--", "train", "pretrain", "--config", f"{stem}.yaml"),
    ]
    assert result["provenance"]["environment"]["NCCL_CROSS_NIC"] == "0", "what it prints is recorded"


def test_a_gpu_without_an_environment_file_stops_the_job_where_primus_cli_would_only_warn(launch, primus):
    (primus / "examples" / "run_pretrain.sh").unlink()
    (primus / "primus-cli").write_text(PRIMUS_CLI)
    (primus / "runner/helpers/envs").mkdir(parents=True)
    (primus / "runner/helpers/envs/MI355X.sh").touch()
    code, _, err = ended(launch(PRIMUS_GPU_MODEL="MI350X"))
    assert code == 2 and "no runner/helpers/envs/MI350X.sh" in err and "PRIMUS_GPU_MODEL=MI355X" in err


# Real Primus on a CPU, started by the suite as on AMD GPUs. Two trees lie beside the repository (their authors' code
# under their licences): one with examples/run_pretrain.sh, one of the pull request that replaces it by primus-cli.

FULL = pytest.mark.full("real trainings of Primus beside mega, about 35 s each, and once its environment")
REAL = pytest.mark.skipif(real_primus.why_not() is not None, reason=str(real_primus.why_not()))
PRINTED_LOSS = 2e-6
"""Primus prints six decimals; a sum in another order changes the seventh digit."""
PRINTED_NORM = 1.1e-3
"""Primus prints three decimals."""


@FULL
@REAL
@pytest.mark.parametrize(
    ("tree", "launcher", "model", "settings"),
    [
        ("primus-fd1eeab", "examples/run_pretrain.sh", "llama", ()),
        # also the norms of queries and keys, and the names of experts in the checkpoint of a rank
        ("primus-pr999", "primus-cli", "qwen3moe", ("CPU_RANKS=2", "EP=2")),
    ],
)
def test_real_primus_trains_the_curve_of_mega_on_one_rank(
    tree, launcher, model, settings, prefix, tmp_path, monkeypatch
):
    root = real_primus.unpack(tree, tmp_path / "primus")
    assert (root / launcher).is_file()
    monkeypatch.setenv("PRIMUS_PATH", str(root))
    theirs = run("prim", model, tmp_path / "prim", prefix, "PRECISION=fp32", *settings)
    ours = run("mega", model, tmp_path / "mega", prefix, "PRECISION=fp32")
    assert validate.main([str(tmp_path / "prim"), str(tmp_path / "mega")]) == 0
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
