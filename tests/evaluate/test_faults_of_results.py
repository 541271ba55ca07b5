"""A fault in a result is rejected or marked for its reason, and the honest twin of each fault passes.

Most are known from public comparisons of this kind. All of them lie in one folder, which `evaluate.validate` reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from changes import (
    MOE,
    boards,
    claims,
    cosine,
    each,
    ends,
    energy,
    environment,
    faster,
    gpu,
    into,
    memory,
    near,
    nothing,
    of,
    padded,
    ran,
    rates,
    samples,
    settings,
    sources,
    stages,
    times,
)
from sides import SAMPLES, STEPS, Change, Result, both, make_consistent, run, schedule, validated

from example import example_result
from utils.models import get

ONE_TIMER = {"performance_metrics__loop_seconds"}
CLOCK = ("provenance__started_utc", "provenance__finished_utc")
TOKENS = 64 * 8192


def honest(number: int) -> Result:
    """Return a run of Llama 3.1 8B on eight GPUs, 64 x 8,192 tokens in 6.2 s: 544 TFLOP/s, 55 % of an H100's peak.

    It has no second timer, which would find a change of the step times alone."""
    result = run("nvd", number, 6.2, host=f"nvd-{number}", model_size="full", **both(sequence_length=8192))
    del result["performance_metrics"]["loop_seconds"]
    return result


@dataclass(frozen=True)
class Fault:
    """A change that plants a fault, words of its finding, and the change that makes its honest twin."""

    change: Change
    said: str
    twin: Change = nothing


def half_off(step: int, config: dict[str, Any]) -> float:
    return schedule(step, config) * (step <= 50)


def shape(size: str, model: str = "llama", **changes: Any) -> Change:
    """Return a change to another model or size with its shape, and then of what ran."""
    return each(
        lambda result: result.update(model=model, model_size=size),
        lambda result: make_consistent(result, {*CLOCK, *ONE_TIMER}),
        ran(**changes),
    )


TINY = get("llama", "tiny")
COUNT, WIDTH = TINY.parameter_count, TINY.hidden_size


PADDED_FOR_TWO = shape("tiny", vocab_size=TINY.vocab_size + 256, parameter_count=COUNT + 2 * 256 * WIDTH)


EVEN = 64 * 8192 * STEPS * 4 * 2 // 8
"""Tokens of each of 8 experts: 4 layers send each token to 2 of them."""


def experts(tokens: int = EVEN, share: float = 1 / 8, **changes: Any) -> Change:
    """Return a change to the tiny mixture of experts, whose first expert has so many tokens."""
    section = {"tokens": [tokens, *[EVEN] * 7], "fullest_share": [share] * STEPS}
    return each(
        shape("tiny", "qwen3moe", **MOE | {"num_experts": 8, "experts_per_token": 2} | changes), of(experts=section)
    )


def of_cpu(steps: int, seconds: float, start_up: float) -> Change:
    """Return a change to a training on a CPU, whose start-up may last longer than its steps."""

    def change(result: Result) -> None:
        new = example_result(**both(max_steps=steps), run=result["run"], provenance__host=result["provenance"]["host"])
        new["steps"] = list(range(1, steps + 1))
        new["step_times"] = [seconds * (1 + 0.01 * (step % 7) + 1e-5 * result["run"]) for step in new["steps"]]
        new["loss_values"], new["grad_norms"] = ([start - 0.001 * step for step in new["steps"]] for start in (8, 2))
        new["data_wait_seconds"] = [0.0] * steps
        make_consistent(new, ONE_TIMER)
        result.clear()
        result.update(new)
        ends(start_up)(result)

    return change


def hosts(*names: str) -> Change:
    return into("provenance", hosts=list(names))


FP8 = settings(precision="fp8")
HF = each(of(framework="hf"), ran(layer_implementation="LlamaForCausalLM"))
LARGE = each(shape("full", "qwen3moe", **MOE), settings(ep=8), memory(peak_memory_allocated=60.0))
CONTRADICTIONS = "the FLOP count or the peak behind it is wrong"
REJECTED = {
    # what ran is not what is written
    "throughput of 8,192 tokens for 2,048": Fault(
        each(settings(sequence_length=2048), claims(tokens_per_second=TOKENS / 6.2)),
        "tokens_per_second: stored",
        settings(sequence_length=2048),
    ),
    "sequence length asked and not run": Fault(ran(sequence_length=2048), "sequence_length: asked 8192, ran 2048"),
    "MFU of 152 %": Fault(faster(2.8), "% of the dense peak, which cannot be", faster(1.75)),
    "MFU claimed, of nothing": Fault(claims(mfu=5.63), CONTRADICTIONS, claims(mfu=0.55)),
    "MFU claimed in percent": Fault(claims(mfu_percent=152.0), CONTRADICTIONS, claims(mfu_percent=55.0)),
    "MFU by the full formula": Fault(claims(mfu_percent=61.9), "by the full-attention formula", claims(mfu=55.0)),
    "TFLOP/s by the full formula": Fault(
        claims(tflops_per_gpu=612.0), "by the full-attention formula", claims(model_tflops_per_gpu=544.0)
    ),
    "FP8 rate over the BF16 peak": Fault(
        each(FP8, claims(mfu=0.55)), "it is over the bf16 peak, and this ran in fp8", each(FP8, claims(mfu=0.275))
    ),
    "MFU of an unknown device": Fault(
        each(gpu(device_name="NVIDIA H900"), claims(mfu=0.55)),
        "which nothing stands behind: NVIDIA H900 is not known",
        each(gpu(device_name="NVIDIA H900"), faster(10)),
    ),
    "swallowed exit, no samples": Fault(  # status ok, as a pipe that lost the exit code of the trainer leaves it
        each(energy(), of(**{key: [] for key in SAMPLES})), "steps: got 0 steps, wanted each of 1 to 100"
    ),
    "megatron that trained a transformers model": Fault(
        ran(layer_implementation="LlamaForCausalLM", optimizer="torch.optim.adamw.AdamW", distributed_optimizer=False),
        "framework: says mega, and the layers that ran are LlamaForCausalLM",
        ran(layer_implementation="transformer_engine"),
    ),
    "data seen 82 times": Fault(
        into("fingerprint", epochs=82.0), "epochs: got 82, wanted at most 4", into("fingerprint", epochs=1.0)
    ),
    "balanced routing that was not asked": Fault(
        ran(routing="balanced"), "routing: asked 'learned', ran 'balanced'", settings(routing="balanced")
    ),
    "recomputation of another name": Fault(
        ran(recompute_granularity="full"), "recompute was asked to be none", ran(recompute_granularity=None)
    ),
    "attention of eight bits": Fault(
        ran(float8_attention=True), "precision was asked to be bf16", ran(float8_attention=False)
    ),
    "weights of eight bits": Fault(
        ran(parameter_dtype="torch.float8_e4m3fn"),
        "parameter_dtype: ran torch.float8_e4m3fn, and precision was asked to be bf16",
        ran(parameter_dtype="torch.bfloat16"),
    ),
    "16-bit sums of fp32": Fault(
        each(settings(precision="fp32"), ran(gradient_reduce_dtype="bfloat16")),
        "gradient_reduce_dtype: ran bfloat16, and precision was asked to be fp32",
        each(settings(precision="fp32"), ran(gradient_reduce_dtype="float32")),
    ),
    # energy and power
    "energy of one die of two": Fault(energy(joules=0.5, per_token=0.5), "they are not of one thing", energy()),
    "half of the joules, of no tokens": Fault(
        energy(joules=0.5, joules_per_token=None, reasons={"joules_per_token": "x"}),
        "they are not of one thing",
        energy(joules_per_token=None, reasons={"joules_per_token": "x"}),
    ),
    "power 8 % too high": Fault(energy(4800 * 1.08), "they are not of one thing", energy(4800 * 1.02)),
    "power over half of the tokens": Fault(energy(per_token=0.5), "tokens, 52,428,800 were trained", energy(600.0)),
    "energy of 0": Fault(energy(0.0, 0.0, 0.0), "wanted more than 0"),
    "counter and power apart": Fault(sources(1.0, 2.0), "they are not of one thing", sources(1.0, 0.96)),
    "neither of its sources": Fault(sources(0.9, 0.9), "as its source has it", sources(1.0, 1.0, sample_hz=12.5)),
    "sampled too rarely": Fault(sources(1.0, 1.0, sample_hz=4.0), "sampled 4 times a second", sources(1.0, None)),
    "energy of four boards of eight": Fault(boards(600 / 2), "of fewer boards than trained", boards(500)),
    "energy of seven GPUs": Fault(boards(600, gpu_count=7), "of 7 boards, and 8 trained", boards(600, gpu_count=8)),
    "energy of some boards by its source": Fault(
        boards(600, source="NVML, 7 of 8 GPUs"), "energy: of 7 boards", boards(600, source="NVML, 8 of 8 GPUs")
    ),
    "more watts than a board draws": Fault(boards(900), "draws 700 W at the most", boards(700)),
    # clock
    "step times x 1000": Fault(times(1000), "s in all, and the run took"),
    "a third of 100 steps": Fault(times(1 / 3), "s are in no step", times(0.999)),
    "a third of the loop": Fault(
        each(claims(loop_seconds=640.0), times(1 / 3)), "the training loop took 640 s", claims(loop_seconds=640.0)
    ),
    "steps longer than a short loop": Fault(
        each(of_cpu(20, 0.05, 5), claims(loop_seconds=0.8)),
        "and the training loop took 0.8 s",
        each(of_cpu(20, 0.05, 5), claims(loop_seconds=1.1)),
    ),
    "steps longer than the run": Fault(ends(-206), "from started_utc to finished_utc", ends(-4)),
    "little of the run is steps": Fault(ends(6580), "s are in no step", ends(581)),
    "little of a run that ended well": Fault(
        ends(6580), "s are in no step", each(ends(6580), lambda result: result.update(status="failed", reason="x"))
    ),
    "finished before it started": Fault(
        into("provenance", started_utc="2099-11-20T00:00:00+00:00"), "is before started_utc"
    ),
    "an end in another age": Fault(into("provenance", finished_utc="9999-12-31T23:59:59"), "wanted a time like"),
    "a start that is no time": Fault(into("provenance", started_utc="yesterday"), "wanted a time like"),
    # learning rates, gradients, losses
    "rates late by one step": Fault(
        rates(lambda step, config: schedule(max(1, step - 1), config)),
        "learning_rates: step 2 ran with",
        settings(warmup_iters=STEPS),  # of such a schedule only the warm-up is known
    ),
    "rates early by one step": Fault(rates(lambda n, config: schedule(n + 1, config)), "learning_rates: step 1 ran"),
    "rates without a warm-up": Fault(cosine(0, early=1), "learning_rates: step", cosine(0)),
    "rates that end at the last step": Fault(cosine(10, early=3), "learning_rates: step", cosine(10, late=1)),
    "rate 0 after step 50": Fault(rates(half_off), "49 of 100 steps have a rate of 0"),
    "rate 0 in a log": Fault(
        each(of(source="log"), rates(half_off)), "49 of 100 steps have a rate of 0", of(source="log")
    ),
    "rates above the one asked": Fault(
        rates(lambda step, config: 2 * schedule(step, config), "prim"), "the largest one asked is 0.001"
    ),
    "one gradient of 0": Fault(samples("grad_norms", lambda place, norm: norm * (place != 50)), "1 of 100 are 0"),
    "constant gradients": Fault(samples("grad_norms", lambda place, norm: 1.7), "100 equal norms in a row"),
    "clipped gradients": Fault(
        samples("grad_norms", lambda place, norm: min(norm, 1 - 1e-6 * place)), "are the limit 1"
    ),
    "a quarter of the gradients clipped": Fault(
        samples("grad_norms", lambda place, norm: 1 - 1e-6 * place if place < 25 else 0.9 - 1e-3 * place),
        "25 of 100 are the limit 1",
        samples("grad_norms", lambda place, norm: 1 - 1e-6 * place if place < 24 else 0.9 - 1e-3 * place),
    ),
    "flat loss in the middle": Fault(
        samples("loss_values", lambda place, loss: 5.25 if 40 <= place < 60 else loss),
        "loss_values: 20 equal losses in a row",
        samples("loss_values", lambda place, loss: 5.25 if place in (40, 41) else loss),
    ),
    # model and machine
    "half the parameters": Fault(ran(parameter_count=4_015_130_624), "llama full has 8,030,261,248, ran", padded),
    "a vocabulary that no padding explains": Fault(
        shape("tiny", vocab_size=TINY.vocab_size + 4096, parameter_count=COUNT + 2 * 4096 * WIDTH),
        "parameter_count: llama tiny has",
        shape("tiny", vocab_size=TINY.vocab_size + 128, parameter_count=COUNT + 2 * 128 * WIDTH),
    ),
    "padding for two tensor-parallel ranks": Fault(
        PADDED_FOR_TWO,
        "parameter_count: llama tiny has",
        each(settings(tp=2, dp=4, gradient_accumulation=16), PADDED_FOR_TWO),
    ),
    "an output layer that is missing": Fault(
        shape("tiny", parameter_count=COUNT - TINY.vocab_size * WIDTH),
        "parameter_count: llama tiny has",
        shape("tiny", parameter_count=COUNT - TINY.vocab_size * WIDTH, tie_word_embeddings=True),
    ),
    # a mixture of experts: 30.5e9 parameters, of which 3.35e9 are used by a token
    "MFU of active parameters": Fault(
        each(faster(4.5), LARGE), "% of the dense peak, which cannot be", each(faster(3), LARGE)
    ),
    "weights of all experts": Fault(
        each(LARGE, memory(peak_memory_allocated=14.0, avg_memory_allocated=13.0)),
        "the weights alone are 15.3 GB on a rank",
        LARGE,
    ),
    "more experts": Fault(experts(num_experts=16), "num_experts: qwen3moe tiny has 8, ran 16", experts()),
    "tokens that no expert had": Fault(experts(EVEN - 9), "tokens, wanted steps x GBS x SL", experts(EVEN - 4)),
    "a share of an expert above the half": Fault(
        experts(share=0.51), "fullest shares of 0.51 to 0.51, wanted 0.125 to 0.5", experts(share=0.5)
    ),
    "an expert with more than the fullest": Fault(
        each(experts(EVEN + 700_000), lambda result: result["experts"]["tokens"].__setitem__(1, EVEN - 700_000)),
        "experts: one has 0.126669 of all tokens, and the fullest of a step 0.125",
        experts(share=0.127),
    ),
    "experts of a dense model": Fault(
        of(experts={"tokens": [1], "fullest_share": [1.0]}), "the model that ran has none"
    ),
    "more stages than layers": Fault(stages(35), "training_config.pp: got 35 pipeline stages", stages(34)),
    "a layer less": Fault(ran(num_layers=31), "num_layers: llama full has 32, ran 31"),
    "narrow layers": Fault(ran(ffn_hidden_size=11008), "ffn_hidden_size: llama full has 14336, ran 11008"),
    "another size": Fault(shape("tiny", hidden_size=4096), "llama tiny has 128, ran 4096", shape("tiny")),
    "a proxy that is the whole model": Fault(
        shape("proxy", num_layers=6),
        "parameter_count: llama proxy has",
        shape("proxy", num_layers=6, parameter_count=get("llama", "proxy", proxy_layers=6).parameter_count),
    ),
    "amd with an H100": Fault(lambda result: result.update(platform="amd"), "no device of the platform amd"),
    "nvd with an MI300X": Fault(gpu(device_name="AMD Instinct MI300X"), "no device of the platform nvd"),
    "cpu with a GPU": Fault(
        each(of_cpu(30, 1.0, 5), gpu(device_name="NVIDIA H200")),
        "NVIDIA H200 is no device of the platform cpu",
        each(of_cpu(30, 1.0, 5), gpu(device_name="AMD EPYC 9454")),
    ),
    "nvd with ROCm": Fault(gpu(software_stack="rocm"), "software_stack: got rocm"),
    "more memory than there is": Fault(
        memory(peak_memory_allocated=86.0), "on a device of 85.0 GB", memory(peak_memory_allocated=84.0)
    ),
    "memory below the weights": Fault(
        memory(peak_memory_allocated=7.0, avg_memory_allocated=6.0),
        "peak_memory_allocated_gb: got 7 GB, the weights alone are 32.1 GB",
        each(settings(ep=2), ran(parameter_dtype="bfloat16"), memory(peak_memory_allocated=9.0)),
    ),
    "memory below the weights that FSDP2 leaves a rank": Fault(
        each(HF, memory(peak_memory_allocated=3.9, avg_memory_allocated=3.8)),
        "peak_memory_allocated_gb: got 3.9 GB, the weights alone are 4.02 GB on a rank",
        each(HF, memory(peak_memory_allocated=4.0, avg_memory_allocated=3.8)),
    ),
    "less reserved than allocated": Fault(
        memory(peak_memory_reserved=40.0), "less than the 48.18 GB", memory(peak_memory_reserved=49.0)
    ),
    "devices that did not train": Fault(gpu(device_count=16), "the job has 16 devices, and 8 trained"),
    "fewer devices than trained": Fault(
        environment(CUDA_VISIBLE_DEVICES="0,1,2,3"),
        "CUDA_VISIBLE_DEVICES: 4 devices are visible, and 8 of a node trained",
        each(environment(CUDA_VISIBLE_DEVICES="0,1,2,3"), hosts("a", "b")),
    ),
    "more hosts than devices": Fault(hosts(*"abcdefghi"), "9 hosts for 8 devices", hosts("a", "b")),
}
MARKED = {
    "memorised loss": Fault(near(2.0, 0.004, 0.004, 0.004), "nats a token at the end, under 0.5", near(2.0)),
    "no QKV bias": Fault(
        shape("full", "qwen"),
        "model: qwen has qkv_bias True, ran False",
        shape("full", "qwen", qkv_bias=True, norm_eps=1e-6, rope_base=1e6),
    ),
    "no norm of queries and keys": Fault(
        shape("full", "qwen3", norm_eps=1e-6, rope_base=1e6),
        "model: qwen3 has query_key_norm True, ran",
        shape("full", "qwen3", norm_eps=1e-6, rope_base=1e6, query_key_norm=True),
    ),
    "energy of one source": Fault(energy(None), "energy: joules from one source", energy()),
    "energy of a counter alone": Fault(sources(1.0, None), "energy: joules from one source", sources(1.0, 1.0)),
    "a host twice": Fault(hosts("a", "a"), "a host is named twice", hosts("a", "b")),
    "start-up longer than the steps": Fault(of_cpu(10, 0.2, 100), "s are in no step", of_cpu(10, 0.2, 25)),
    "a slow start of a large model": Fault(ends(860), "s are in no step", ends(500)),
    "runaway gradients": Fault(samples("grad_norms", lambda place, norm: 500 * norm), "times the limit"),
    "average above the peak": Fault(memory(avg_memory_allocated=60.0), "more than the peak of 48.18 GB"),
    "another warm-up in another framework": Fault(
        rates(lambda step, config: schedule(max(1, step - 5), config), "nemo"),
        "learning_rates: step",
        rates(lambda n, c: c["lr"] * n / c["warmup_iters"] if n <= c["warmup_iters"] else schedule(n, c), "prim"),
    ),
}
FAULTS = REJECTED | MARKED


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Return verdict and reason of each fault and of its twin."""
    results = {}
    for name, fault in FAULTS.items():
        for key, change in ((name, fault.change), (f"honest {name}", fault.twin)):
            results[key] = honest(len(results) + 1)
            change(results[key])
    return dict(zip(results, validated(tmp_path_factory.mktemp("results"), list(results.values())), strict=True))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_for_its_reason_and_its_twin_passes(findings: dict[str, tuple[str, str]], name: str) -> None:
    wanted = "".join(FAULTS[name].said.split())
    verdict, reason = findings[name]
    rejections, _, warnings = reason.partition("warning:")
    assert verdict == ("valid" if name in MARKED else "REJECTED")
    assert wanted in (warnings if name in MARKED else rejections), reason
    verdict, reason = findings[f"honest {name}"]
    assert verdict == "valid" and wanted not in reason, reason
