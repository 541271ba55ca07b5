"""A fault of two sides makes them not comparable for its reason, and the honest twin of each fault is decided.

All pairs lie in one folder, which one call of `evaluate.compare` judges; each is a model of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from changes import (
    each,
    environment,
    hosts,
    in_runs,
    into,
    nothing,
    of,
    ran,
    samples,
    settings,
    stated,
    unknown,
)
from sides import (
    STEPS,
    Change,
    Result,
    both,
    compared,
    of_pairs,
    pair,
    run,
    write,
)

from example import put
from utils.results.performance import data_wait_warning

STATES = ("differs, not comparable", "unknown", "differs, allowed", "same")
"""States of an item of a certificate, in the order of the report."""


def loop(factor: float) -> Change:
    """Return a change of the second timer to a multiple of the steps, as it is if there is time between them."""
    return lambda result: result["performance_metrics"].update(loop_seconds=factor * sum(result["step_times"]))


def waits(share: float) -> Change:
    """Return a change to steps that wait for their samples for a share of their time."""

    def change(result: Result) -> None:
        result["data_wait_seconds"] = [share * seconds for seconds in result["step_times"]]
        result["performance_metrics"]["data_wait_fraction"] = share
        result["warnings"] = [str(data_wait_warning(share))]

    return change


def losses(rule: Any) -> Change:
    """Return a change to the losses of a rule of the step, no two runs to the last digit."""

    def change(result: Result) -> None:
        own = 1e-9 * (result["run"] + 10 * len(result["gpu_info"]["device_name"]))
        result["loss_values"] = [rule(step) + own for step in range(STEPS)]

    return change


def seeds(*by_run: int) -> Change:
    """Return a change to a seed and an order of the tokens for each run."""

    def change(result: Result) -> None:
        seed = by_run[result["run"] - 1]
        put(result, both(seed=seed) | {"fingerprint__token_stream_sha256": f"{seed}" * 64})

    return change


P2P = environment(NCCL_P2P_DISABLE="1")
NO_ENVIRONMENT = unknown("provenance", "environment")
BALANCED, EP8 = settings(routing="balanced"), settings(ep=8)
TP4 = settings(tp=4, dp=2, gradient_accumulation=32)
ADAM8 = ran(optimizer="torchao.optim.adam.AdamW8bit")
SDMA, NVLS = "where copies take compute units", "where reductions in the switch are off"
CAPPED, CLOCKED = "power cap off the default on one side", "clocks limited or raised on one side"
MIXED = "power cap differs between the runs of one side"
EQUAL = run("nvd")["loss_values"]
ADAM4, BEST = ran(optimizer="torchao.optim.adam.AdamW4bit"), of(method="best")
HOT, SHARED = stated(throttled_percent={"hw_thermal_slowdown": 95.0}), stated(other_processes=3)
BRAKE = into("energy_metrics", throttled_percent={"hw_power_brake_slowdown": 60.0})
UNKNOWN_DEFAULT = {"power_cap_watts": 700.0, "default_power_cap_watts": None}


EXPERTS = ran(
    **{"num_experts": 128, "experts_per_token": 8, "shared_expert_size": 0, "token_dropping": False},
    **{"routing": "learned", "router_dtype": "bfloat16", "router_auxiliary_loss": 0.0},
)
"""A mixture of experts, as it is read back."""


BOTH = each()
"""The twin of a fault that is fair where both sides have it."""


@dataclass(frozen=True)
class Fault:
    """Changes of the runs of NVIDIA and of AMD, words of the reason, and the changes of an honest twin.

    A twin of one change has it on both sides, and BOTH has both changes there; without any, the pair without a change
    is the twin.
    """

    nvd: Change
    amd: Change
    said: str
    twin: Change | tuple[Change, Change] | None = None

    @property
    def honest(self) -> tuple[Change, Change]:
        """The changes of the twin."""
        if isinstance(self.twin, tuple):
            return self.twin
        twin = each(self.nvd, self.amd) if self.twin is BOTH else self.twin
        return twin or nothing, twin or nothing


FAULTS = {
    # the work
    "sequence length": Fault(nothing, settings(sequence_length=2048), "sequence length differs: 128 against 2048"),
    "precision": Fault(settings(precision="fp8"), nothing, "precision differs: fp8 against bf16"),
    "TP": Fault(TP4, nothing, "tensor parallel size differs: 4 against 1", BOTH),
    "batch": Fault(nothing, settings(global_batch_size=128, gradient_accumulation=16), "global batch differs"),
    "GPUs": Fault(
        nothing,
        each(settings(num_gpus=4, dp=4, gradient_accumulation=16), into("gpu_info", device_count=4)),
        "number of GPUs differs",
    ),
    "gradients": Fault(nothing, ran(gradient_reduce_dtype="bfloat16"), "type of reduced gradients differs"),
    "bias": Fault(nothing, ran(qkv_bias=True), "QKV bias differs: false against true", BOTH),
    "epsilon": Fault(nothing, ran(norm_eps=1e-6), "norm epsilon differs: 1e-05 against 1e-06", BOTH),
    "rotary": Fault(nothing, ran(rope_base=10000.0), "rotary base differs", BOTH),
    "window": Fault(nothing, ran(sliding_window=4097), "attention window differs: none against 4097"),
    "tied": Fault(
        nothing,
        ran(tie_word_embeddings=True),
        "embedding shared with the output layer differs",
        BOTH,
    ),
    "qk norm": Fault(ran(query_key_norm=True), nothing, "norm of queries and keys differs", BOTH),
    "one side with experts": Fault(EXPERTS, nothing, "experts of a layer differs: 128 against false", BOTH),
    **{
        f"{name} with experts": Fault(EXPERTS, each(EXPERTS, change), f"{item} differs: {of_nvd} against", twin)
        for name, item, of_nvd, change, twin in (
            ("experts", "experts of a layer", 128, ran(num_experts=64), each(EXPERTS, ran(num_experts=64))),
            ("experts a token", "experts of a token", 8, ran(experts_per_token=9), EXPERTS),
            ("shared expert", "size of a shared expert", 0, ran(shared_expert_size=768), EXPERTS),
            ("dropped tokens", "tokens dropped", "false", ran(token_dropping=True), EXPERTS),
            ("routing", "routing", "learned", BALANCED, each(EXPERTS, BALANCED)),
            ("router", "precision of the router", "bfloat16", ran(router_dtype="float32"), EXPERTS),
            ("auxiliary loss", "auxiliary loss of the router", 0, ran(router_auxiliary_loss=1e-3), EXPERTS),
            ("EP", "expert parallel size", 1, EP8, (each(EXPERTS, BEST, EP8), each(EXPERTS, BEST))),
        )
    },
    "routing before the window": Fault(
        each(EXPERTS, BALANCED, ran(sliding_window=4097)),
        EXPERTS,
        "routing differs: balanced against learned",
        each(EXPERTS, BALANCED),
    ),
    "data": Fault(nothing, into("fingerprint", dataset_bin_sha256="7" * 64), "data differs"),
    "order": Fault(nothing, into("fingerprint", token_stream_sha256="7" * 64), "tokens of the first batches in order"),
    "tokenizer": Fault(nothing, into("fingerprint", tokenizer_sha256="7" * 64), "tokenizer differs"),
    "8-bit Adam": Fault(
        ADAM8, ran(optimizer="x.DistributedOptimizer"), "optimizer keeps smaller states than AdamW's", ADAM8
    ),
    "seeds": Fault(seeds(1, 2, 3), seeds(1, 2, 4), "seed differs: 1, 2, 3 against 1, 2, 4", seeds(1, 2, 3)),
    "dropout": Fault(
        ran(attention_dropout=0.1), nothing, "setting attention_dropout differs: 0.1 against off", ran(dropout=0.0)
    ),
    "machines": Fault(
        nothing,
        hosts("x", "y"),
        "the runs are spread over another number of machines: 1 against 2",
        BOTH,
    ),
    "disguised": Fault(
        ran(layer_implementation="LlamaForCausalLM"),
        nothing,
        "has no valid result: framework: says mega, and the layers that ran are LlamaForCausalLM",
    ),
    "out of memory": Fault(nothing, of(status="oom", reason="at step 3"), "MI300X has no valid result: at step 3"),
    "states of four bits": Fault(ADAM4, nothing, "optimizer keeps smaller states than AdamW's", BOTH),
    "Muon": Fault(BEST, each(BEST, ran(optimizer="Muon")), "optimizer keeps smaller states", BEST),
    "passes over the data": Fault(nothing, into("fingerprint", epochs=0.02), "passes over the data differs"),
    "model configuration": Fault(
        into("fingerprint", model_config_sha256="7" * 64),
        nothing,
        "model configuration differs",
        BOTH,
    ),
    # losses
    "memorised": Fault(nothing, losses(lambda step: 8 * 0.9**step), "a loss this small is of memorised data"),
    "loss": Fault(
        losses(lambda step: 8.0 - 0.0274 * step),
        losses(lambda step: 8.0 - 0.0504 * step),
        "final losses are not shown to agree within 2% of the loss",
        losses(lambda step: 8.0 - 0.0274 * step - 1e-6 * step**2),
    ),
    "initial loss": Fault(
        nothing,
        samples("loss_values", lambda place, loss: loss if place else 8.5),
        "initial losses differ by more than 0.1%",
        (nothing, samples("loss_values", lambda place, loss: loss if place else 8.004)),
    ),
    "diverged": Fault(nothing, losses(lambda step: 8.0 + 0.01 * step), "early losses differ by more than 0.25%"),
    "gradients of eight ranks": Fault(
        nothing,
        samples("grad_norms", lambda place, norm: norm * 8**0.5),
        "gradients differ by a factor of 2.83",
        BOTH,
    ),
    "gradient norms": Fault(
        samples("grad_norms", lambda place, norm: norm * 1.07),
        nothing,
        "early gradient norms differ by more than 5.00%",
        (samples("grad_norms", lambda place, norm: norm * 1.04), nothing),
    ),
    "apart in the middle": Fault(
        nothing,
        samples("loss_values", lambda place, loss: loss + 1 if 30 < place < 88 else loss),
        "the losses of tenth 8 of the run are more than 5% apart",
        (nothing, samples("loss_values", lambda place, loss: loss + 0.1 if 30 < place < 88 else loss)),
    ),
    "equal losses": Fault(
        of(loss_values=EQUAL), of(loss_values=EQUAL), "100 losses are equal to the last digit on two vendors"
    ),
    "stock against liger": Fault(
        each(of(framework="hf"), ran(hf_kernels="stock")),
        each(of(framework="hf"), ran(hf_kernels="liger")),
        "one side trains on transformers' own functions, the other on those of liger-kernel",
        (each(of(framework="hf"), ran(hf_kernels="stock")),) * 2,
    ),
    "an earlier format": Fault(nothing, of(source="earlier"), "neither model nor data is proven to be the same"),
    # time and environment
    "a tenth in no step": Fault(nothing, loop(1.1), "more of the training loop of one side is in no step", BOTH),
    "a twentieth in no step": Fault(loop(1.05), nothing, "0.1% of the loop", loop(1.02)),
    "waiting for data": Fault(nothing, waits(0.25), "one side waits for its data: 0.0% of a step", BOTH),
    "SDMA": Fault(
        nothing,
        environment(HSA_ENABLE_SDMA="0"),
        f"HSA_ENABLE_SDMA on one side only, {SDMA}",
        environment(HSA_ENABLE_SDMA="1"),
    ),
    "NVLS": Fault(
        environment(NCCL_NVLS_ENABLE="0"),
        nothing,
        f"NCCL_NVLS_ENABLE on one side only, {NVLS}",
        BOTH,
    ),
    "waiting": Fault(
        environment(CUDA_LAUNCH_BLOCKING="1"),
        nothing,
        "CUDA_LAUNCH_BLOCKING on one side only",
        BOTH,
    ),
    "handicap in all and in one": Fault(P2P, in_runs(P2P, 2), "NCCL_P2P_DISABLE in some runs only", P2P),
    "handicap in one run": Fault(nothing, in_runs(P2P, 3), "NCCL_P2P_DISABLE on one side only"),
    "handicap and nothing known": Fault(
        NO_ENVIRONMENT, in_runs(P2P, 1, otherwise=NO_ENVIRONMENT), "NCCL_P2P_DISABLE on one side only", NO_ENVIRONMENT
    ),
    # conditions
    "cap": Fault(stated(power_cap_watts=500.0), stated(), f"{CAPPED}: 500 W, default 700 W against 750 W", stated()),
    "cap of AMD": Fault(stated(), stated(power_cap_watts=600.0, default_power_cap_watts=750.0), CAPPED, stated()),
    "cap of one run": Fault(
        in_runs(stated(power_cap_watts=500.0), 2, otherwise=stated()), stated(), MIXED, stated(power_cap_watts=700.0)
    ),
    "cap of an unknown default in one run": Fault(
        stated(),
        in_runs(stated(power_cap_watts=400.0), 1, otherwise=stated(**UNKNOWN_DEFAULT)),
        MIXED,
        stated(**UNKNOWN_DEFAULT),
    ),
    "cap in the only record": Fault(
        nothing, in_runs(stated(power_cap_watts=400.0, default_power_cap_watts=750.0), 2), CAPPED, in_runs(stated(), 2)
    ),
    "cap beside unknown ones": Fault(
        stated(power_cap_watts=None),
        in_runs(
            stated(power_cap_watts=400.0, default_power_cap_watts=750.0), 1, otherwise=stated(power_cap_watts=None)
        ),
        CAPPED,
        stated(power_cap_watts=None),
    ),
    "clocks": Fault(stated(clock_limit_mhz=1200.0), stated(), CLOCKED, stated()),
    "raised cap": Fault(stated(), stated(power_cap_watts=825.0, default_power_cap_watts=750.0), CAPPED, stated()),
    "raised clocks": Fault(stated(clock_limit_mhz=2100.0), stated(), CLOCKED, stated()),
    "throttled": Fault(HOT, stated(), "one side was slowed down by heat or its power supply", HOT),
    "a power brake in the energy": Fault(
        stated(),
        each(stated(), BRAKE),
        "one side was slowed down by heat",
        (stated(), each(stated(), in_runs(BRAKE, 2))),
    ),
    "foreign processes": Fault(SHARED, stated(), "other work was there before one side's job", SHARED),
    "level": Fault(stated(), stated(performance_level="low"), CLOCKED, stated()),
    "NUMA": Fault(stated(), stated(numa_balancing=True), "NUMA balancing slows one side", stated(numa_balancing=True)),
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the verdicts on all pairs by name; twins begin with `honest`."""
    planted = {name: (fault.nvd, fault.amd) for name, fault in FAULTS.items()}
    twins = {f"honest {name}": fault.honest for name, fault in FAULTS.items() if fault.twin}
    return of_pairs(tmp_path_factory.mktemp("pairs"), planted | twins | {"honest": (nothing, nothing)}, code=0)


@pytest.mark.parametrize("name", FAULTS)
def test_an_unfair_pair_is_not_comparable_for_its_reason_and_its_twin_is(
    judged: dict[str, dict[str, Any]], name: str
) -> None:
    fault, twin = judged[name], judged[f"honest {name}" if FAULTS[name].twin else "honest"]
    assert (fault["verdict"], fault["ratio"]) == ("not_comparable", None)
    reasons = fault["reasons"][:1] if name == "routing" else fault["reasons"]
    assert any(FAULTS[name].said in reason for reason in reasons), fault["reasons"]
    assert fault["sentence"].startswith("NOT COMPARABLE: NVIDIA H100 80GB HBM3 and AMD Instinct MI300X: ")
    states = [item["state"] for item in fault["certificate"]]
    assert states == sorted(states, key=STATES.index), "what forbids comes first"
    assert twin["verdict"] == "faster", twin["reasons"]
    assert twin["ratio"] == pytest.approx(1 / 0.8, rel=0.005)


def test_no_figure_divides_cores_of_different_vendors(tmp_path: Path) -> None:
    found = compared(write(tmp_path, pair("llama", nothing, nothing)), "--format", "json,md,html")
    rows = [row["metrics"] for group in found["groups"] for row in group["rows"]]
    assert rows and not [name for metrics in rows for name in metrics if "core" in name]
    for name in ("compare.md", "compare.html", "compare.json"):
        text = (tmp_path / name).read_text()
        assert not any(words in text for words in ("per core", "per_core", "per-core", "core_ratio", " cores"))
