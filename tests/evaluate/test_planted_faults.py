"""Every fault known from public comparisons of this kind is refused, or marked, with its reason.

Each fault is planted in a result or pair that passes without it, so that nothing else can be what is refused. All of
them go through the command lines, as a user's results do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from agreeing import make_consistent
from sides import STEPS, run

from evaluate import compare, validate
from evaluate.checks.entries import load_results
from evaluate.metrics.metrics import metrics
from utils.results.performance import summarize

Change = Callable[[dict[str, Any]], None]
BOTH = ("training_config", "resolved_config")


def honest(platform: str = "nvd", model: str = "llama", seconds: float = 6.2, length: int = 8192) -> dict[str, Any]:
    """Return a run of Llama 3.1 8B on eight GPUs, 64 x 8,192 tokens in 6.2 s: 544 TFLOP/s, 55 % of an H100."""
    seconds += crc32(model.encode()) % 1000 * 1e-6  # another noise for each model
    result = run(platform, seconds=seconds if platform == "nvd" else 0.9 * seconds, model="llama", model_size="full")
    result["model"] = model
    result["provenance"]["host"] = f"{platform}-{model}"
    settings(sequence_length=length)(result)
    summarise(result)
    return result


def summarise(result: dict[str, Any], length: int | None = None) -> None:
    config = result["training_config"]
    tokens = config["global_batch_size"] * (length or config["sequence_length"])
    result["performance_metrics"] |= summarize(result["step_times"], tokens, config["num_gpus"])


def settings(**values: Any) -> Change:
    """Return a change of settings that were requested and ran."""

    def change(result: dict[str, Any]) -> None:
        for section in BOTH:
            result[section] |= values
        summarise(result)

    return change


def ran(**values: Any) -> Change:
    return lambda result: result["resolved_config"].update(values)


def environment(**values: str) -> Change:
    return lambda result: result["provenance"].update(environment=values)


def losses(*ends: float) -> Change:
    """Return a change to losses that start at 8 and are near each of these values for an equal part of the steps."""

    def change(result: dict[str, Any]) -> None:
        part, noise = STEPS // len(ends), 1e-4 * len(result["platform"] + result["provenance"]["host"])
        near = [end * (1 + noise * (step % 7 - 3)) for end in ends for step in range(part)]
        result["loss_values"] = [8.0, *near][:STEPS]

    return change


def energy(joules_of_steps: float, watts: Any, per_token: float = 1.0) -> Change:
    """Return a change to joules that are a share of 4,800 W times the steady steps."""

    def change(result: dict[str, Any]) -> None:
        joules = 4800 * sum(result["step_times"][10:])
        result["energy_metrics"] = {
            "joules": joules * joules_of_steps,
            "avg_watts": watts,
            "joules_per_token": per_token * joules * joules_of_steps / (90 * 64 * 8192),
            "source": "counter of the board, power at 10 Hz",
            "interval": "steady steps",
            "reasons": {},
        }

    return change


def claims(**values: float) -> Change:
    return lambda result: result["performance_metrics"].update(values)


def nothing(result: dict[str, Any]) -> None:
    """Change nothing: the honest twin of most faults."""


def each(*changes: Change) -> Change:
    def change(result: dict[str, Any]) -> None:
        for one in changes:
            one(result)

    return change


# --- one result: `evaluate.validate` -------------------------------------------------------------------------------


def metadata_of_another_length(result: dict[str, Any]) -> None:
    """Record 2,048 tokens and compute throughput with 8,192, four times the true one."""
    settings(sequence_length=2048)(result)
    summarise(result, 8192)


def faster(factor: float) -> Change:
    """Return a change of all durations, so that the clock agrees with the steps."""

    def change(result: dict[str, Any]) -> None:
        result["step_times"] = [float(f"{time / factor:.6g}") for time in result["step_times"]]
        make_consistent(result)

    return change


def without_samples(result: dict[str, Any]) -> None:
    """Remove all samples and keep status ok, as a pipe that lost the exit code of the trainer leaves it."""
    for key in ("steps", "step_times", "data_wait_seconds", "loss_values", "grad_norms", "learning_rates"):
        result[key] = []


def zero_throughput(result: dict[str, Any]) -> None:
    without_samples(result)
    result["performance_metrics"] |= dict.fromkeys(
        ("avg_step_time_seconds", "tokens_per_second", "tokens_per_second_per_gpu", "steps_per_second"), 0.0
    )


def repeated_iteration(result: dict[str, Any]) -> None:
    result["steps"] = [1, 2, 2, *range(3, STEPS)]


def lost_iteration(result: dict[str, Any]) -> None:
    for key in ("steps", "step_times", "data_wait_seconds", "loss_values", "grad_norms", "learning_rates"):
        del result[key][50]
    summarise(result)


def only_the_first_step_left_out(result: dict[str, Any]) -> None:
    """Count iteration 2, printed as the mean of 1 and 2: 23 s for 40 s and 6 s."""
    times = result["step_times"]
    times[:2] = [40.0, 23.0]
    steady = times[1:]
    mean = sum(steady) / len(steady)
    rate = 64 * 8192 / mean
    result["performance_metrics"] |= {
        "warmup_steps_excluded": 1,
        "avg_step_time_seconds": mean,
        "max_step_time_seconds": 23.0,
        "tokens_per_second": rate,
        "tokens_per_second_per_gpu": rate / 8,
        "steps_per_second": 1 / mean,
    }


def slow_start(result: dict[str, Any]) -> None:
    result["step_times"][:2] = [40.0, 23.0]
    make_consistent(result)


def as_qwen(result: dict[str, Any]) -> None:
    """Name the model and give it the shape of its size."""
    result["model"] = "qwen"
    make_consistent(result)


def as_qwen3(result: dict[str, Any]) -> None:
    """Name the model and give it the shape of its size."""
    result["model"] = "qwen3"
    make_consistent(result)


def unknown_device(result: dict[str, Any]) -> None:
    result["gpu_info"]["device_name"] = "NVIDIA H900"


@dataclass(frozen=True)
class InResult:
    """A fault in one result."""

    change: Change
    said: str
    twin: Change = nothing


REJECTED = {
    "sequence length in the metadata, 4x": InResult(
        metadata_of_another_length, "tokens_per_second: stored", settings(sequence_length=2048)
    ),
    "sequence length asked and not run": InResult(ran(sequence_length=2048), "sequence_length: asked 8192, ran 2048"),
    "MFU of 563 %": InResult(faster(10.3), "% of the dense peak, which cannot be"),
    "MFU of 152 %": InResult(faster(2.8), "% of the dense peak, which cannot be", faster(1.5)),
    "MFU of 563 % claimed": InResult(claims(mfu=5.63), "the FLOP count or the peak behind it is wrong"),
    "MFU by the full formula": InResult(
        claims(mfu_percent=61.9), "it is by the full-attention formula", claims(mfu_percent=55.0)
    ),
    "FP8 rate over the BF16 peak": InResult(
        each(settings(precision="fp8"), claims(mfu=0.55)),
        "it is over the bf16 peak, and this ran in fp8",
        each(settings(precision="fp8"), claims(mfu=0.275)),
    ),
    "MFU of an unknown device": InResult(
        each(unknown_device, claims(mfu=0.55)), "which nothing stands behind: NVIDIA H900 is not known", unknown_device
    ),
    "swallowed exit, no samples": InResult(without_samples, "steps: got 0 steps, wanted each of 1 to 100"),
    "zero throughput and ok": InResult(zero_throughput, "steps: got 0 steps"),
    "an iteration twice": InResult(repeated_iteration, "steps: wanted rising step numbers from 1, each once"),
    "an iteration lost": InResult(lost_iteration, "steps: got 99 steps, wanted each of 1 to 100"),
    "mean of two iterations counted": InResult(
        only_the_first_step_left_out, "warmup_steps_excluded: got 1 of 100 steps, wanted 10", slow_start
    ),
    "energy of one die of two": InResult(energy(0.5, 4800.0), "they are not of one thing", energy(1.0, 4800.0)),
    "power that is N/A": InResult(
        energy(1.0, "N/A"), "energy_metrics.avg_watts: got 'N/A', wanted finite number", energy(1.0, 4800.0)
    ),
    "megatron that trained a transformers model": InResult(
        ran(layer_implementation="LlamaForCausalLM", optimizer="torch.optim.adamw.AdamW", distributed_optimizer=False),
        "framework: says mega, and the layers that ran are LlamaForCausalLM",
        ran(layer_implementation="transformer_engine"),
    ),
    "data seen 82 times": InResult(
        lambda result: result["fingerprint"].update(epochs=82.0),
        "epochs: got 82, wanted at most 4",
        lambda result: result["fingerprint"].update(epochs=1.0),
    ),
    "more memory than there is": InResult(
        lambda result: result["memory_metrics"].update(peak_memory_allocated_gb=90.0), "on a device of 85.0 GB"
    ),
}
MARKED = {
    "memorised loss": InResult(losses(2.0, 0.004, 0.004, 0.004), "loss: 0.004 nats a token at the end", losses(2.0)),
    "no QKV bias": InResult(
        as_qwen,
        "model: qwen has qkv_bias True, ran False; it is another model",
        each(as_qwen, ran(qkv_bias=True, norm_eps=1e-6, rope_base=1e6)),
    ),
    "no norm of queries and keys": InResult(
        each(as_qwen3, ran(norm_eps=1e-6, rope_base=1e6)),
        "model: qwen3 has query_key_norm True, ran False; it is another model",
        each(as_qwen3, ran(norm_eps=1e-6, rope_base=1e6, query_key_norm=True)),
    ),
    "energy of one source": InResult(
        each(energy(1.0, None), lambda result: result["energy_metrics"].update(reasons={"avg_watts": "N/A"})),
        "energy: joules from one source, which no other confirms",
        energy(1.0, 4800.0),
    ),
}


def validated(folder: Path, change: Change, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Return the exit code of `evaluate.validate` on one result, what it printed, and its reasons on one line."""
    result = honest()
    change(result)
    path = folder / "train_one.json"
    path.write_text(json.dumps(result))
    code = validate.main([str(folder)])
    loaded = load_results([folder])
    reasons = [error for _, error in loaded.unreadable]
    reasons += [line for one in loaded.entries for line in (*one.findings.rejections, *one.findings.warnings)]
    return code, capsys.readouterr().out, "; ".join(reasons)


@pytest.mark.parametrize("fault", REJECTED)
def test_a_result_that_cannot_be_true_is_rejected_for_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    code, printed, reasons = validated(tmp_path, REJECTED[fault].change, capsys)
    assert code == 1 and "REJECTED" in printed
    assert REJECTED[fault].said in reasons


@pytest.mark.parametrize("fault", MARKED)
def test_a_suspicious_result_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    code, printed, reasons = validated(tmp_path, MARKED[fault].change, capsys)
    assert code == 0 and "warning" in printed
    assert MARKED[fault].said in reasons


@pytest.mark.parametrize("fault", REJECTED | MARKED)
def test_the_honest_twin_of_a_result_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    planted = (REJECTED | MARKED)[fault]
    code, printed, reasons = validated(tmp_path, planted.twin, capsys)
    assert code == 0 and "REJECTED" not in printed
    assert planted.said not in reasons


# --- two sides: `evaluate.compare` ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class InPair:
    """A fault of two sides together, as changes of the NVIDIA and of the AMD side."""

    nvd: Change
    amd: Change
    said: tuple[str, ...]
    twin: Change = nothing
    """Change on both sides of the honest twin."""


TP4_FP8 = each(settings(tp=4, dp=2, gradient_accumulation=32), settings(precision="fp8"))
PAIRS = {
    "memorised": InPair(
        losses(2.0, 0.004, 0.004, 0.004),
        losses(2.0, 0.004, 0.004, 0.004),
        ("a loss this small is of memorised data: 0.0039962 against 0.0039962",),
    ),
    "loss": InPair(
        losses(0.0018),
        losses(5.29),
        ("final losses are not shown to agree within 2% of the loss: 0.0018004 against 5.2912",),
        losses(5.29),
    ),
    "length": InPair(nothing, settings(sequence_length=2048), ("sequence length differs: 8192 against 2048",)),
    "tp4-fp8": InPair(
        TP4_FP8, nothing, ("precision differs: fp8 against bf16", "tensor parallel size differs: 4 against 1"), TP4_FP8
    ),
    "bias": InPair(
        ran(qkv_bias=True),
        nothing,
        ("QKV bias differs: true against false",),
        ran(qkv_bias=True, norm_eps=1e-6, rope_base=1e6),
    ),
    "adam8bit": InPair(
        ran(optimizer="torchao.optim.adam.AdamW8bit"),
        ran(optimizer="megatron.core.optimizer.DistributedOptimizer"),
        ("one side's optimizer keeps smaller states than AdamW's of 32 bits",),
        ran(optimizer="torchao.optim.adam.AdamW8bit"),
    ),
    "handicap": InPair(
        nothing,
        environment(HSA_ENABLE_SDMA="0"),
        ("HSA_ENABLE_SDMA on one side only, where copies take compute units",),
        environment(HSA_ENABLE_SDMA="1"),
    ),
    "fair-collectives": InPair(
        environment(NCCL_NVLS_ENABLE="0"),
        nothing,
        ("NCCL_NVLS_ENABLE on one side only, where reductions in the switch are off",),
        environment(NCCL_NVLS_ENABLE="1"),
    ),
    "waiting": InPair(
        environment(CUDA_LAUNCH_BLOCKING="1"),
        nothing,
        ("CUDA_LAUNCH_BLOCKING on one side only",),
        environment(CUDA_LAUNCH_BLOCKING="1"),
    ),
    "disguised": InPair(
        ran(layer_implementation="LlamaForCausalLM"),
        nothing,
        ("has no valid result: framework: says mega, and the layers that ran are LlamaForCausalLM",),
        ran(layer_implementation="transformer_engine"),
    ),
    "swallowed": InPair(nothing, lost_iteration, ("has no valid result: steps: got 99 steps",)),
    "diverged": InPair(nothing, losses(3.0, 9.0), ("the loss ends above where it began",), losses(3.0)),
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, dict[str, Any]], Path]:
    """Return the verdicts of one `evaluate.compare` over all pairs and their twins, by model, and the folder."""
    folder = tmp_path_factory.mktemp("planted")
    for name, pair in PAIRS.items():
        for prefix, changes in (("", (pair.nvd, pair.amd)), ("honest-", (pair.twin, pair.twin))):
            for platform, change in zip(("nvd", "amd"), changes, strict=True):
                result = honest(platform, model=f"{prefix}{name}")
                change(result)
                (folder / f"train_{platform}_{prefix}{name}.json").write_text(json.dumps(result))
    assert compare.main([str(folder), "--format", "md,html,json"]) == 0
    verdicts = json.loads((folder / "compare.json").read_text())["verdicts"]
    return {verdict["model"]: verdict for verdict in verdicts}, folder


@pytest.mark.parametrize("fault", PAIRS)
def test_an_unfair_pair_is_not_comparable_for_its_reason(
    compared: tuple[dict[str, dict[str, Any]], Path], fault: str
) -> None:
    verdict = compared[0][fault]
    assert (verdict["verdict"], verdict["ratio"]) == ("not_comparable", None)
    for words in PAIRS[fault].said:
        assert any(words in reason for reason in verdict["reasons"]), verdict["reasons"]
    assert verdict["sentence"].startswith("NOT COMPARABLE")


@pytest.mark.parametrize("fault", PAIRS)
def test_the_honest_twin_of_a_pair_has_a_verdict(compared: tuple[dict[str, dict[str, Any]], Path], fault: str) -> None:
    verdict = compared[0][f"honest-{fault}"]
    assert verdict["verdict"] == "undecided", "one run a side"
    assert verdict["ratio"] == pytest.approx(1 / 0.9, rel=0.01)


def test_no_figure_divides_cores_of_different_vendors(compared: tuple[dict[str, dict[str, Any]], Path]) -> None:
    for name in ("compare.md", "compare.html", "compare.json"):
        assert re.findall(r"\bper[ _-]core\b|\bcores\b|core_ratio", (compared[1] / name).read_text()) == []
    for platform in ("nvd", "amd"):
        assert not [name for name in metrics(honest(platform)) if "core" in name]


def test_an_unknown_device_has_no_peak() -> None:
    result = honest()
    assert metrics(result)["mfu_causal"].value == pytest.approx(55.0, abs=0.3)
    unknown_device(result)
    figure = metrics(result)["mfu_causal"]
    assert figure.value is None and "no other chip's is taken" in figure.how
