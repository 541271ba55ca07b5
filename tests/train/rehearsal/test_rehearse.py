"""The command rehearses the trainers' own code: its figures against formulas, estimates and real allocations."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from toydata import write_toy_data

from train import rehearse
from train.rehearsal import account, report
from utils.own_files import is_png
from utils.settings.config import ROOT, load

TINY = ("MODEL_SIZE=tiny", "SL=128")
KEYS = (
    *("peak_memory_gb", "memory_gb", "estimate_gb", "flops_per_token", "flops_per_token_full"),
    *("flops_per_token_causal", "operators", "collectives", "host_reads_per_step", "roofline_seconds", "measured"),
)
"""The contract."""


def rehearsed(output, *arguments):
    """Run the command; return the content of its JSON and what it printed."""
    command = [sys.executable, "-m", "train.rehearse", *arguments, "--output", str(output)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr[-3000:]
    return json.loads(output.read_text(encoding="utf8")), ran.stdout


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """Two stages of two tensor-parallel ranks of mega, with a device."""
    path = tmp_path_factory.mktemp("pipeline") / "new.json"
    arguments = ("--platform", "nvd", "--gpus", "8", "--framework", "mega", "--model", "llama", "--device", "H100")
    return *rehearsed(path, *arguments, *TINY, "TP=2", "PP=2"), path


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """hf on eight AMD GPUs, without a device."""
    path = tmp_path_factory.mktemp("trainer") / "new.json"
    arguments = ("--platform", "amd", "--gpus", "8", "--framework", "hf", "--model", "qwen")
    return *rehearsed(path, *arguments, *TINY, f"OUTPUT_DIR={path.parent / 'results'}"), path


def test_a_rehearsal_writes_only_the_files_that_were_named(trainer):
    *_, path = trainer
    assert {one.name for one in path.parent.iterdir()} == {path.name, path.with_suffix(".png").name}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """hf on one NVIDIA GPU."""
    path = tmp_path_factory.mktemp("alone") / "new.json"
    arguments = ("--platform", "nvd", "--gpus", "1", "--framework", "hf", "--model", "llama")
    return *rehearsed(path, *arguments, *TINY, "MBS=4", "GBS=16"), path


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    """mega with a sliding window shorter than the sequence, on one AMD GPU."""
    path = tmp_path_factory.mktemp("window") / "new.json"
    arguments = ("--platform", "amd", "--gpus", "1", "--framework", "mega", "--model", "mistral")
    return *rehearsed(path, *arguments, "MODEL_SIZE=tiny", "SL=256", "GBS=2"), path


@pytest.mark.parametrize("case", ["pipeline", "trainer"])
def test_the_json_has_the_keys_of_the_contract_and_claims_no_measurement(case, request):
    content, text, path = request.getfixturevalue(case)
    assert set(KEYS) <= set(content)
    assert content["measured"] is False
    assert account.LABEL in text.lower()
    for row in content["operators"]:
        assert {"name", "shapes", "dtypes", "count", "flops", "bytes"} <= set(row)
        assert len(row["shapes"]) == len(row["dtypes"])
    assert all({"name", "bytes", "count"} <= set(row) for row in content["collectives"])
    assert account.is_rehearsal(path)
    assert is_png(path.with_suffix(".png"))
    assert report.as_text(content) == text


def of_attention(content):
    """Work of attention over all keys: twice what a causal mask leaves out."""
    return 2 * (content["flops_per_token_full"] - content["flops_per_token_causal"])


@pytest.mark.parametrize("case", ["pipeline", "trainer", "alone"])
def test_flops_of_all_ranks_are_the_formula_of_the_whole_model_and_scores_computed_again(case, request):
    content = request.getfixturevalue(case)[0]
    # of six products of attention, each as large, a flash kernel's backward pass repeats one: Dao et al., 2205.14135
    wanted = content["flops_per_token_full"] + of_attention(content) / 6
    assert content["flops_per_token"] == pytest.approx(wanted, rel=1e-3)


def test_every_pipeline_stage_is_rehearsed_and_the_fullest_counts(pipeline):
    content = pipeline[0]
    stages = content["stages"]
    assert [(stage["stage"], stage["rank"]) for stage in stages] == [(0, 0), (1, 4)]
    assert content["peak_memory_gb"] == max(stage["peak_memory_gb"] for stage in stages)
    assert sum(content["memory_gb"].values()) == pytest.approx(content["peak_memory_gb"])
    assert content["memory_gb"].keys() >= {"weights", "gradients", "optimizer", "activations"}


def test_micro_batches_that_were_not_run_count_like_those_that_were(pipeline):
    content = pipeline[0]
    config = load("nvd", 8, arguments=["FRAMEWORK=mega", "MODEL=llama", *TINY, "TP=2", "PP=2"], environ={})
    assert config.gradient_accumulation == 32 > content["micro_batches_run"]
    layers = config.spec("llama").num_layers // 2
    counts = [row["count"] for row in content["operators"] if "flash_attention" in row["name"]]
    assert counts == [32 * layers] * 2
    sent = [row for row in content["collectives"] if row["name"] == "send"]
    assert [(row["count"], row["bytes"]) for row in sent] == [(32, 2 * 128 * 128)]  # bf16 of 128 tokens, hidden 128


def test_weights_and_gradients_of_a_stage_have_the_bytes_of_their_parameters(pipeline):
    content = pipeline[0]
    last = content["stages"][1]
    spec = load("nvd", 8, arguments=["FRAMEWORK=mega", "MODEL=llama", *TINY], environ={}).spec("llama")
    hidden, keys = spec.hidden_size, spec.num_query_groups * spec.head_dim
    matrices = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * spec.ffn_hidden_size
    half = spec.num_layers // 2
    parameters = half * (matrices / 2 + 2 * hidden) + hidden + spec.vocab_size * hidden / 2
    assert last["memory_gb"]["weights"] == pytest.approx(2 * parameters / 1e9, rel=2e-3)  # buffers are padded
    assert last["memory_gb"]["gradients"] == pytest.approx(4 * parameters / 1e9, rel=2e-3)


def test_gradients_are_averaged_while_they_are_reduced_and_not_in_a_pass_over_them(pipeline):
    buffer = pipeline[0]["memory_gb"]["gradients"] * 1e9
    assert (
        max(row["bytes"] for row in pipeline[0]["operators"] if "mul" in row["name"] or "div" in row["name"])
        < 1e-3 * buffer
    )


def test_the_roofline_is_the_sum_of_its_kinds_and_null_without_a_device(pipeline, trainer):
    seconds = pipeline[0]["roofline_seconds_by_kind"]
    assert pipeline[0]["roofline_seconds"] == pytest.approx(sum(value or 0 for value in seconds.values()))
    assert seconds["communication_exposed"] is None
    assert pipeline[0]["device"]["memory_bandwidth_gb_per_second"] == 3350
    assert (trainer[0]["roofline_seconds"], trainer[0]["device"]) == (None, None)


@pytest.mark.parametrize("case", ["pipeline", "trainer", "alone", "window"])
def test_the_host_reads_no_number_of_the_device_inside_a_step(case, request):
    content = request.getfixturevalue(case)[0]
    assert content["host_reads_per_step"] == sum(read["count"] for read in content["host_reads"])
    assert all(read["where"].endswith(" read_step") for read in content["host_reads"])  # at the end of the step
    assert content["host_reads_per_step"] <= 1


def test_attention_with_a_window_is_counted_as_attention(window):
    backward, forward = [row for row in window[0]["operators"] if row["kind"] == "attention"]
    length, heads, head_dim = 256, 8, 16
    assert forward["flops"] == 2 * 2 * heads * length * length * head_dim
    assert backward["flops"] == 2.5 * forward["flops"]


def test_an_operator_with_a_kernel_on_the_device_is_not_composed_of_others():
    ran = subprocess.run(
        [sys.executable, "-c", SILU], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert ran.stdout == "['aten::silu_backward']\n"


SILU = """
from collections import Counter
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from train.rehearsal import preparation
from utils.settings.config import load
config = load("nvd", 1, arguments=["FRAMEWORK=hf", "MODEL=llama", "MODEL_SIZE=tiny"])
ledger, _ = preparation.prepare(config, config.spec("llama"), 0, 80.0)
with FakeTensorMode(), ledger:
    gate = torch.zeros(4, device="cuda", requires_grad=True)
    result = torch.nn.functional.silu(gate)
    gradient = torch.ones_like(result)
    ledger.segment = Counter()
    result.backward(gradient)
    print(sorted({event.name for event in ledger.segment if "detach" not in event.name}))
"""


@pytest.mark.parametrize("case", ["trainer", "alone"])
def test_norms_rotary_embedding_activation_and_loss_of_hf_are_one_kernel_each_way(case, request):
    operators = request.getfixturevalue(case)[0]["operators"]
    names = {row["name"] for row in operators}
    pairs = (
        ("aten::_fused_rms_norm", "aten::_fused_rms_norm_backward"),
        ("compiled::swiglu", "compiled::swiglu_gradients"),
    )
    pairs += (("compiled::turned", "compiled::turned_gradient"), ("compiled::statistics", "compiled::write_gradient"))
    counts = Counter()
    for row in operators:
        counts[row["name"]] += row["count"]
    assert all(counts[there] == counts[back] > 0 for there, back in pairs)
    composed = ("silu", "silu_backward", "rsqrt", "neg", "_log_softmax")
    assert not names & {f"aten::{name}" for name in composed}


def test_weight_gradients_of_hf_on_one_gpu_are_products_that_add_to_float32_sums(alone):
    content = alone[0]
    spec = load("nvd", 1, arguments=["FRAMEWORK=hf", "MODEL=llama", *TINY], environ={}).spec("llama")
    micro_batches = 4
    products = [row for row in content["operators"] if row["name"] == "aten::addmm" and row["dtypes"][0] == "float32"]
    assert sum(row["count"] for row in products) == micro_batches * (7 * spec.num_layers + 1)
    # besides, only the embedding's and the norms' gradients are added in passes of their own
    added = {tuple(row["shapes"][0]) for row in content["operators"] if row["name"] == "aten::add_"}
    assert added <= {(), (spec.hidden_size,), (spec.vocab_size, spec.hidden_size)}


def test_the_rehearsed_peak_of_hf_on_one_gpu_is_the_estimate(alone):
    assert alone[0]["peak_memory_gb"] == pytest.approx(alone[0]["estimate_gb"], rel=2e-3)


def test_data_parallel_ranks_reduce_every_gradient(trainer):
    content = trainer[0]
    parameters = (
        load("amd", 8, arguments=["FRAMEWORK=hf", "MODEL=qwen", *TINY], environ={}).spec("qwen").parameter_count
    )
    reduced = sum(row["bytes"] * row["count"] for row in content["collectives"] if "reduce" in row["name"])
    assert reduced >= 2 * parameters
    assert all(row["ranks"] == 8 for row in content["collectives"])


def test_sharded_ranks_of_hf_gather_every_weight_once_a_step_and_reduce_its_gradient_at_each_micro_batch(trainer):
    content = trainer[0]
    config = load("amd", 8, arguments=["FRAMEWORK=hf", "MODEL=qwen", *TINY], environ={})
    parameters = config.spec("qwen").parameter_count
    moved = Counter()
    for row in content["collectives"]:
        moved[row["name"]] += row["bytes"] * row["count"]
    assert config.gradient_accumulation > 1, "with one micro batch nothing is shown"
    assert moved["all_gather"] == pytest.approx(2 * parameters, rel=0.01)
    assert moved["reduce_scatter"] == pytest.approx(4 * config.gradient_accumulation * parameters, rel=0.01)


@pytest.mark.parametrize("framework", ["mega", "hf"])
def test_memory_on_a_cpu_is_what_training_really_allocates(framework, tmp_path):
    settings = ("MBS=4", "SL=256", "GBS=8", "PRECISION=fp32")
    arguments = ("--platform", "cpu", "--gpus", "1", "--framework", framework, "--model", "llama")
    content, _ = rehearsed(tmp_path / "new.json", *arguments, *settings)
    prefix = write_toy_data(tmp_path / "data")
    case = f"least_peak llama {' '.join(settings)}"
    command = [sys.executable, "-m", "tests.workers.memory_worker", framework, str(prefix), str(tmp_path), case]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_PORT": "0"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=True)
    (allocated,) = json.loads(ran.stdout.splitlines()[-1])[case]
    assert content["peak_memory_gb"] == pytest.approx(allocated / 1e9, rel=0.02)
    assert content["host_reads_per_step"] == 0


BAD = {
    "platform": (["--platform", "tpu"], "--platform"),
    "framework": (["--framework", "nemo"], "--framework"),
    "model": (["--model", "llama,qwen"], "--model"),
    "no GPU": (["--gpus", "0"], "--gpus"),
    "a word for GPUs": (["--gpus", "all"], "--gpus"),
    "device": (["--device", "H1000"], "--device"),
    "output": (["--output", "new.txt"], "--output"),
    "unknown key": (["WEIGHTS=1"], "WEIGHTS"),
    "value": (["PRECISION=int4"], "PRECISION"),
    "batch": (["GBS=63"], "GBS"),
    "layout": (["TP=3"], "TP"),
    "no number": (["MBS=auto", "METHOD=best"], "MBS"),
    "a folder that cannot be": (["--output", "README.md/new.json"], "--output"),
    "framework as a setting": (["FRAMEWORK=hf"], "FRAMEWORK"),
    "GPUs as a setting": (["GPUS_PER_NODE=4"], "GPUS_PER_NODE"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_2(name, capsys):
    arguments, named = BAD[name]
    usual = ["--platform", "nvd", "--gpus", "8", "--framework", "mega", "--model", "llama"]
    assert rehearse.main([*usual, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1 and named in printed.err


def test_what_the_child_process_finds_wrong_in_the_settings_is_bad_input_too(monkeypatch, capsys):
    found = {"error": "LAYERS=te: no TransformerEngine", "whose": "settings", "traceback": "many lines"}

    def run(command, **_):
        Path(command[command.index("--record") + 1]).write_text(json.dumps(found))
        return subprocess.CompletedProcess(command, 1, "", "")

    monkeypatch.setattr(rehearse.subprocess, "run", run)
    usual = ["--platform", "nvd", "--gpus", "2", "--framework", "mega", "--model", "llama"]
    assert rehearse.main(usual) == 2
    assert capsys.readouterr().err == "error: LAYERS=te: no TransformerEngine\n"
    found |= {"whose": "stand_in", "error": "`stream` is not lent"}
    assert rehearse.main(usual) == 1
    assert "the stand-in of the device or of the other ranks failed, not the job: `stream`" in capsys.readouterr().err


def test_llama_8b_at_full_size_needs_what_the_estimate_says(tmp_path):
    """The slow one, at full size: 20 s of a core."""
    arguments = ("--platform", "nvd", "--gpus", "8", "--framework", "mega", "--model", "llama", "--device", "H100")
    content, _ = rehearsed(tmp_path / "new.json", *arguments)
    assert content["peak_memory_gb"] == pytest.approx(content["estimate_gb"], rel=0.01)
    assert content["memory_gb"]["weights"] == pytest.approx(2 * 8.030261248, rel=1e-3)
    assert content["memory_gb"]["gradients"] == pytest.approx(4 * 8.030261248, rel=1e-3)
    # docs/validation.md: 48.249 with full attention; and a sixth of attention's 3.221 again
    assert content["flops_per_token"] / 1e9 == pytest.approx(48.249 + 3.221 / 6, abs=0.002)
    sent = {"reduce_scatter": 4, "all_gather": 2}
    for name, width in sent.items():
        total = sum(row["bytes"] * row["count"] for row in content["collectives"] if row["name"] == name)
        assert total == pytest.approx(width * 8.030261248e9, rel=1e-3)
