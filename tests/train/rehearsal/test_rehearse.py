"""The command rehearses the trainers' own code: its figures against formulas, estimates and real allocations."""

import functools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from checkout import ROOT
from toydata import write_toy_data

from train import rehearse
from utils import models

TINY = ("MODEL_SIZE=tiny", "SL=128")
KEYS = set(
    [
        "peak_memory_gb",
        "memory_gb",
        "estimate_gb",
        "flops_per_token",
        "flops_per_token_full",
        "flops_per_token_causal",
        "operators",
        "collectives",
        "host_reads_per_step",
        "roofline_seconds",
        "measured",
    ]
)
"""The contract."""


def rehearsed(output, *arguments):
    """Run the command; return the content of its JSON and what it printed."""
    command = [sys.executable, "-m", "train.rehearse", *arguments, "--output", str(output)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr[-3000:]
    return json.loads(output.read_text(encoding="utf8")), ran.stdout


def job(platform, gpus, framework, model, *more):
    return ("--platform", platform, "--gpus", str(gpus), "--framework", framework, "--model", model, *more)


CASES = {
    # two stages of two tensor-parallel ranks of mega, with a device
    "pipeline": job("nvd", 8, "mega", "llama", "--device", "H100", *TINY, "TP=2", "PP=2"),
    # hf on eight AMD GPUs, without a device
    "trainer": job("amd", 8, "hf", "qwen", *TINY, "OUTPUT_DIR={folder}/results"),
    "alone": job("nvd", 1, "hf", "llama", "--device", "H100", *TINY, "MBS=4", "GBS=16"),
    # experts in grouped products, hf on two ranks of a CPU
    "cpu": job("cpu", 2, "hf", "qwen3moe", "SL=128"),
    # experts of mega on two devices that exchange tokens
    "experts": job("nvd", 2, "mega", "qwen3moe", *TINY, "EP=2", "GBS=4"),
    # a sliding window shorter than the sequence
    "window": job("amd", 1, "mega", "mistral", "MODEL_SIZE=tiny", "SL=256", "GBS=2"),
}
FULL = pytest.mark.full("rehearsals of experts and of a window, about 15 s each")


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """Return what gives the JSON, the text and the path of a case, rehearsed once."""

    @functools.cache
    def run(case):
        path = tmp_path_factory.mktemp(case) / "new.json"
        return *rehearsed(path, *(word.format(folder=path.parent) for word in CASES[case])), path

    return run


@pytest.mark.parametrize("case", ["pipeline", "trainer"])
def test_the_json_has_the_keys_of_the_contract_and_claims_no_measurement(case, rehearsal):
    content, text, path = rehearsal(case)
    assert set(content) >= KEYS and content["measured"] is False and "rehearsed, not measured" in text.lower()
    keys = {"name", "shapes", "dtypes", "count", "flops", "bytes"}
    assert all(keys <= set(row) and len(row["shapes"]) == len(row["dtypes"]) for row in content["operators"])
    assert all({"name", "bytes", "count"} <= set(row) for row in content["collectives"])
    assert {one.name for one in path.parent.iterdir()} == {"new.json"}, "only the file that was named"
    assert f"{content['peak_memory_gb']:.3g}" in text and f"{content['flops_per_token'] / 1e9:.3g}" in text


@pytest.mark.parametrize(
    "case", ["pipeline", "trainer", "alone", pytest.param("cpu", marks=FULL), pytest.param("experts", marks=FULL)]
)
def test_flops_of_all_ranks_are_the_formula_of_the_whole_model_and_scores_computed_again(case, rehearsal):
    content = rehearsal(case)[0]
    # work of attention over all keys: twice what a causal mask leaves out
    attention = 2 * (content["flops_per_token_full"] - content["flops_per_token_causal"])
    # of six products of attention, each as large, a flash kernel's backward pass repeats one: Dao et al., 2205.14135
    wanted = content["flops_per_token_full"] + attention / 6
    assert content["flops_per_token"] == pytest.approx(wanted, rel=1e-3)


def test_every_pipeline_stage_is_rehearsed_the_fullest_counts_and_has_the_bytes_of_its_parameters(rehearsal):
    content = rehearsal("pipeline")[0]
    stages = content["stages"]
    assert [(stage["stage"], stage["rank"]) for stage in stages] == [(0, 0), (1, 4)]
    assert content["peak_memory_gb"] == max(stage["peak_memory_gb"] for stage in stages)
    assert sum(content["memory_gb"].values()) == pytest.approx(content["peak_memory_gb"])
    assert content["memory_gb"].keys() >= {"weights", "gradients", "optimizer", "activations"}
    spec = models.get("llama", "tiny")
    hidden, keys = spec.hidden_size, spec.num_query_groups * spec.head_dim
    matrices = 2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * spec.ffn_hidden_size
    half = spec.num_layers // 2
    parameters = half * (matrices / 2 + 2 * hidden) + hidden + spec.vocab_size * hidden / 2
    assert stages[1]["memory_gb"]["weights"] == pytest.approx(2 * parameters / 1e9, rel=2e-3)  # buffers are padded
    assert stages[1]["memory_gb"]["gradients"] == pytest.approx(4 * parameters / 1e9, rel=2e-3)
    # gradients are averaged while they are reduced, not in a pass over them
    passes = [row["bytes"] for row in content["operators"] if "mul" in row["name"] or "div" in row["name"]]
    assert max(passes) < 1e-3 * content["memory_gb"]["gradients"] * 1e9


def test_micro_batches_that_were_not_run_count_like_those_that_were(rehearsal):
    content = rehearsal("pipeline")[0]
    # 64 sequences of two data-parallel ranks; of 32 micro batches those that show the steady state of two stages
    assert (content["settings"]["gradient_accumulation"], content["micro_batches_run"]) == (32, 4)
    assert [rehearsal(case)[0]["micro_batches_run"] for case in ("trainer", "alone")] == [3, 3]
    layers = models.get("llama", "tiny").num_layers // 2
    counts = [row["count"] for row in content["operators"] if "flash_attention" in row["name"]]
    assert counts == [32 * layers] * 2
    sent = [row for row in content["collectives"] if row["name"] == "send"]
    assert [(row["count"], row["bytes"]) for row in sent] == [(32, 2 * 128 * 128)]  # bf16 of 128 tokens, hidden 128


def test_the_roofline_is_the_larger_of_compute_and_traffic_by_the_datasheet_and_null_without_a_device(rehearsal):
    content = rehearsal("alone")[0]
    seconds = Counter()
    for row in content["operators"]:
        flops = row["flops"] * (0.5 if row["kind"] == "attention" else 1)  # of a causal mask
        seconds[row["kind"]] += row["count"] * max(flops / 989.4e12, row["bytes"] / 3350e9)
    counted = ("matmul", "attention", "memory_bound", "optimizer")
    assert content["roofline_seconds"] == pytest.approx(sum(seconds[kind] for kind in counted))
    for kind in counted:
        assert content["roofline_seconds_by_kind"][kind] == pytest.approx(seconds[kind])
    assert rehearsal("pipeline")[0]["roofline_seconds_by_kind"]["communication_exposed"] is None
    without = rehearsal("trainer")[0]
    assert (without["roofline_seconds"], without["device"]) == (None, None)


@pytest.mark.parametrize("case", ["pipeline", "trainer", "alone", pytest.param("window", marks=FULL)])
def test_the_host_reads_nothing_of_the_device_inside_a_step_but_where_transformers_looks_for_packed_text(
    case, rehearsal
):
    content = rehearsal(case)[0]
    read = {one["where"].rpartition(" ")[2]: one["count"] for one in content["host_reads"]}
    assert content["host_reads_per_step"] == sum(read.values())
    of_transformers = read.pop("find_packed_sequence_indices", 0)
    assert of_transformers == (content["settings"]["gradient_accumulation"] if case in ("trainer", "alone") else 0)
    assert read in ({}, {"read_step": 1})  # at the end of the step


@FULL
def test_experts_on_two_devices_exchange_the_choices_of_all_tokens_and_need_the_estimate(rehearsal):
    content, text, _ = rehearsal("experts")
    assert "EP 2" in text and "as many tokens for every expert" in text
    assert content["peak_memory_gb"] == pytest.approx(content["estimate_gb"], rel=5e-3)
    # 2 micro batches, 4 layers, 128 tokens with 2 experts each. There and back, forward and backward, tokens of 128
    # numbers in bf16; there and back their weights
    exchanged = {row["bytes"]: row["count"] for row in content["collectives"] if row["name"] == "all_to_all"}
    assert exchanged == {2 * 256 * 128: 4 * 8, 2 * 256: 2 * 8}
    # tokens of each expert here, to and from each device in three forms, and from where to which expert
    assert content["host_reads_per_step"] == 5 * 8


@FULL
def test_attention_with_a_window_is_counted_as_attention(rehearsal):
    content = rehearsal("window")[0]
    backward, forward = [row for row in content["operators"] if row["kind"] == "attention"]
    length, heads, head_dim = 256, 8, 16
    assert forward["flops"] == 2 * 2 * heads * length * length * head_dim
    assert backward["flops"] == 2.5 * forward["flops"]
    assert content["micro_batches_run"] == 2, "there are no more"


@pytest.mark.parametrize("case", ["trainer", "alone"])
def test_hf_runs_transformers_own_operators_and_needs_the_estimate(case, rehearsal):
    content = rehearsal(case)[0]
    assert content["peak_memory_gb"] == pytest.approx(content["estimate_gb"], rel=5e-3)
    counts = Counter()
    for row in content["operators"]:
        counts[row["name"]] += row["count"]
    layers, micro_batches = models.get("llama", "tiny").num_layers, content["settings"]["gradient_accumulation"]
    assert counts["aten::silu"] == micro_batches * layers and counts["aten::rsqrt"] == micro_batches * (2 * layers + 1)
    assert counts["aten::_log_softmax"] == micro_batches
    assert [name for name in counts if name.startswith("compiled::")] == ["compiled::update"], "the optimizer alone"


def test_sharded_ranks_of_hf_gather_each_weight_once_and_reduce_its_gradient_at_each_micro_batch(rehearsal):
    content = rehearsal("trainer")[0]
    moved, parameters = Counter(), models.get("qwen", "tiny").parameter_count
    for row in content["collectives"]:
        moved[row["name"]] += row["bytes"] * row["count"]
    micro_batches = content["settings"]["gradient_accumulation"]
    assert micro_batches == 8, "64 sequences of eight ranks; with one micro batch nothing would be shown"
    assert moved["all_gather"] == pytest.approx(2 * micro_batches * parameters, rel=0.01)
    assert moved["reduce_scatter"] == pytest.approx(4 * micro_batches * parameters, rel=0.01)
    assert all(row["ranks"] == 8 for row in content["collectives"])


@pytest.mark.full("rehearsals against trainings whose allocations are measured, about 12 s each")
@pytest.mark.parametrize(("framework", "model"), [("mega", "llama"), ("mega", "qwen3moe"), ("hf", "qwen3moe")])
def test_memory_on_a_cpu_is_what_training_really_allocates(framework, model, tmp_path):
    settings = ("MBS=4", "SL=256", "GBS=8", "PRECISION=fp32")
    content, _ = rehearsed(tmp_path / "new.json", *job("cpu", 1, framework, model, *settings))
    prefix = write_toy_data(tmp_path / "data")
    case = f"least_peak {model} {' '.join(settings)}"
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
    "experts": (["--model", "qwen3moe", "SL=1001"], "MBS SL: 1001 tokens with 8 experts each"),
    "kernels that need data": (["--framework", "hf", "HF_KERNELS=liger"], "HF_KERNELS=liger"),
    "a folder that cannot be": (["--output", "README.md/new.json"], "--output"),
    "framework as a setting": (["FRAMEWORK=hf"], "FRAMEWORK"),
    "GPUs as a setting": (["GPUS_PER_NODE=4"], "GPUS_PER_NODE"),
    "a known device, and what comes after it is wrong": (["--device", " mi300x ", "--output", "new.txt"], "--output"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_2(name, capsys):
    arguments, named = BAD[name]
    assert rehearse.main([*job("nvd", 8, "mega", "llama"), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1 and named in printed.err


FOUND = [
    ("settings", "LAYERS=te: no TransformerEngine", 2, "error: LAYERS=te: no TransformerEngine\n"),
    (
        "stand_in",
        "`stream` is not lent",
        1,
        "the stand-in of the device or of the other ranks failed, not the job: `str",
    ),
    ("job", "shapes cannot be multiplied", 1, "the job's code failed on the stand-ins"),
]


@pytest.mark.parametrize(("whose", "error", "code", "said"), FOUND)
def test_what_the_child_process_finds_wrong_is_told_with_whose_it_is(whose, error, code, said, monkeypatch, capsys):
    def run(command, **_):
        found = {"error": error, "whose": whose, "traceback": "many lines\n"}
        Path(command[command.index("--record") + 1]).write_text(json.dumps(found))
        return subprocess.CompletedProcess(command, 1, "", "")

    monkeypatch.setattr(rehearse.subprocess, "run", run)
    assert rehearse.main(job("nvd", 2, "mega", "llama")) == code
    assert said in capsys.readouterr().err


@pytest.mark.full("a rehearsal at full size, about 15 s")
def test_llama_8b_at_full_size_needs_what_the_estimate_says(tmp_path):
    content, _ = rehearsed(tmp_path / "new.json", *job("nvd", 8, "mega", "llama", "--device", "H100"))
    assert content["peak_memory_gb"] == pytest.approx(content["estimate_gb"], rel=0.01)
    assert content["memory_gb"]["weights"] == pytest.approx(2 * 8.030261248, rel=1e-3)
    assert content["memory_gb"]["gradients"] == pytest.approx(4 * 8.030261248, rel=1e-3)
    # docs/memory.md: 48.249 with full attention; and a sixth of attention's 3.221 again
    assert content["flops_per_token"] / 1e9 == pytest.approx(48.249 + 3.221 / 6, abs=0.002)
    for name, width in {"reduce_scatter": 4, "all_gather": 2}.items():
        total = sum(row["bytes"] * row["count"] for row in content["collectives"] if row["name"] == name)
        assert total == pytest.approx(width * 8.030261248e9, rel=1e-3)
