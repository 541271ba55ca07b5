"""A certificate shows what differs and what is not known, and what of it leaves a claim without proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from changes import each, environment, hosts, in_runs, nothing, of, ran, samples, settings, stated, unknown
from sides import STEPS, Change, conditions, is_bold, items, of_pairs, one_verdict, run, runs

from evaluate.fairness import certificate
from evaluate.fairness.effects import BY_EFFECT
from example import example_result

SAME, ALLOWED, UNKNOWN = "same", "differs, allowed", "unknown"
NO_ENVIRONMENT = unknown("provenance", "environment")
TP4 = settings(tp=4, dp=2, gradient_accumulation=32)
HEAT = {"hw_thermal_slowdown": 12.4, "sw_power_cap": 80.0}
FUSED = ran(fused_ops={"rope": True, "loss": False, "bias": False})
RECIPE = environment(NCCL_NVLS_ENABLE="0", TORCH_NCCL_AVOID_RECORD_STREAMS="1")
BEST = of(method="best")
LIGER = each(of(framework="hf"), ran(hf_kernels="liger"))


def asked(runs: str | None) -> dict[str, Any]:
    """Return the section `repeats` of RUNS, None if it is not on record."""
    known = dict.fromkeys(("runs", "least", "most", "target_percent")) | {"runs": runs}
    return known | {"reasons": {key: "not recorded" for key, value in known.items() if value is None}}


Shown = tuple[Change, Change, str, dict[str, Any]]
SHOWN: dict[str, Shown] = {
    "as shipped": (stated(), stated(), "power cap", {"state": ALLOWED, "a": "700 W, the default"}),
    "clocks as shipped": (stated(), stated(), "clocks", {"state": ALLOWED}),
    "NUMA off": (stated(), stated(), "NUMA balancing", {"state": SAME}),
    "no heat": (stated(), stated(), "slowing down", {"state": SAME}),
    "no other work": (stated(), stated(), "other work", {"state": SAME}),
    "one node": (
        stated(numa_balancing=True, numa_nodes=1),
        stated(),
        "NUMA balancing",
        {"state": ALLOWED, "a": "one node"},
    ),
    "cap unknown": (
        stated(power_cap_watts=None),
        stated(power_cap_watts=None),
        "power cap",
        {"state": UNKNOWN, "a": "unknown (not looked for)"},
    ),
    "default unknown": (
        stated(),
        stated(power_cap_watts=600.0),
        "power cap",
        {"state": UNKNOWN, "b": "600 W, default unknown"},
    ),
    "heat": (
        stated(throttled_percent=HEAT),
        stated(),
        "slowing down",
        {"state": ALLOWED, "a": "hw_thermal_slowdown 12 % of the run", "b": "no"},
    ),
    "heat of an older tool": (
        stated(throttled_percent=None),
        stated(),
        "slowing down",
        {"state": ALLOWED, "a": "not at the end"},
    ),
    "other work": (
        in_runs(stated(other_processes=2, busy_before_percent=50.0), 2, otherwise=stated()),
        stated(),
        "other work",
        {"state": ALLOWED, "a": "none or 2 processes on the GPUs, 50 % of the cores busy"},
    ),
    "no record": (nothing, stated(), "clocks", {"state": UNKNOWN, "a": "not recorded", "b": "up to 2100 MHz"}),
    "maps": (
        each(of(framework="nemo"), FUSED),
        of(framework="prim"),
        "fused operations",
        {"state": ALLOWED, "a": "on: rope; off: bias, loss", "b": "none"},
    ),
    "a whole number": (ran(rope_base=1000000), ran(rope_base=1000000.0), "rotary base", {"state": SAME}),
    "other means": (
        of(framework="nemo"),
        each(of(framework="prim"), ran(gradient_reduce_dtype="bfloat16")),
        "type of reduced gradients",
        {"state": ALLOWED},
    ),
    "a map in another order": (
        ran(rope_scaling={"factor": 8.0, "low_freq_factor": 1.0}),
        ran(rope_scaling={"low_freq_factor": 1.0, "factor": 8.0}),
        "rotary scaling",
        {"state": SAME},
    ),
    "liger on both sides": (LIGER, LIGER, "kernels of hf", {"state": SAME, "a": "liger"}),
    "hf of before the setting": (LIGER, of(framework="hf"), "kernels of hf", {"state": UNKNOWN, "unproven": True}),
    "own recipe": (RECIPE, nothing, "environment NCCL_NVLS_ENABLE", {"state": ALLOWED, "a": "0"}),
    "speed-up": (
        nothing,
        environment(PYTORCH_TUNABLEOP_ENABLED="1"),
        "environment PYTORCH_TUNABLEOP_ENABLED",
        {"state": ALLOWED, "a": "not set", "b": "1"},
    ),
    "best layout": (BEST, each(BEST, TP4), "tensor parallel size", {"state": ALLOWED}),
    "best bias": (BEST, each(BEST, TP4), "QKV bias", {"state": SAME}),
    "unknown tokenizer, equal tokens": (
        unknown("fingerprint", "tokenizer_sha256"),
        unknown("fingerprint", "tokenizer_sha256"),
        "tokenizer",
        {"state": SAME},
    ),
    "unknown tokenizer and data": (
        unknown("fingerprint", "tokenizer_sha256", "dataset_bin_sha256"),
        unknown("fingerprint", "tokenizer_sha256", "dataset_bin_sha256"),
        "tokenizer",
        {"state": UNKNOWN, "unproven": True},
    ),
    "unknown seed": (
        unknown("resolved_config", "seed"),
        unknown("resolved_config", "seed"),
        "seed",
        {"state": UNKNOWN, "unproven": True},
    ),
    "tokenizer of one side": (
        nothing,
        unknown("fingerprint", "tokenizer_sha256"),
        "tokenizer",
        {"state": UNKNOWN, "unproven": True},
    ),
    "runs that are there": (nothing, nothing, "number of runs", {"state": SAME, "a": "3 of 3"}),
    "chosen runs": (of(repeats=asked("10")), nothing, "number of runs", {"state": UNKNOWN, "unproven": True}),
    "chosen runs on both sides": (
        of(repeats=asked("10")),
        of(repeats=asked("10")),
        "number of runs",
        {"state": UNKNOWN, "a": "3 of 10", "unproven": True},
    ),
    "nobody knows how many": (of(repeats=asked(None)), nothing, "number of runs", {"state": UNKNOWN, "unproven": True}),
    "measured again": (nothing, of(attempt=4), "number of runs", {"state": UNKNOWN, "unproven": True}),
    "one run started again": (nothing, in_runs(of(attempt=2), 2), "number of runs", {"state": SAME}),
    "runs added": (
        in_runs(of(repeats=asked("2")), 1, 2, otherwise=of(repeats=asked("3"))),
        nothing,
        "number of runs",
        {"state": ALLOWED},
    ),
    "more runs than were asked for": (
        of(repeats=asked("2")),
        nothing,
        "number of runs",
        {"state": ALLOWED, "a": "3 of 2"},
    ),
    "another second timer": (
        nothing,
        lambda result: result["performance_metrics"].pop("loop_seconds"),
        "time outside the steps",
        {"state": UNKNOWN, "unproven": True},
    ),
    "a name of a setting that no table has": (
        ran(turbo=True),
        nothing,
        "setting turbo",
        {"state": UNKNOWN, "unproven": True},
    ),
    "another class of optimizer": (
        BEST,
        each(BEST, ran(optimizer="x.Prodigy")),
        "optimizer states",
        {"state": UNKNOWN, "a": "AdamW", "unproven": True},
    ),
    "unknown weights": (unknown("resolved_config", "init"), nothing, "initial loss", {"state": SAME}),
    "a log without gradient norms": (
        of(source="log", grad_norms=[None] * STEPS),
        nothing,
        "early gradient norms",
        {"state": UNKNOWN, "unproven": True},
    ),
    "a leap that recovers": (
        nothing,
        samples("loss_values", lambda place, loss: loss + 9 if 40 <= place < 60 else loss),
        "stability of the training",
        {"state": ALLOWED, "a": "stable", "b": "the loss leaps at step 41"},
    ),
    "a leap of one side that ends apart": (
        samples("loss_values", lambda place, loss: loss + 3 if place >= 40 else loss),
        nothing,
        "stability of the training",
        {"state": UNKNOWN, "a": "the loss leaps at step 41", "unproven": True},
    ),
    "data": (nothing, nothing, "data", {"state": SAME, "a": 12 * "a"}),
    "no window": (nothing, nothing, "attention window", {"state": SAME}),
    "unknown environment": (NO_ENVIRONMENT, NO_ENVIRONMENT, "environment", {"state": UNKNOWN, "a": "not recorded"}),
    "nodes": (hosts("x", "y"), hosts("x", "y"), "nodes", {"state": SAME, "a": "2", "b": "2"}),
    "hosts": (hosts("x", "y"), hosts("x", "y"), "hosts", {"a": "nvd-hosts-x, nvd-hosts-y"}),
}
"""Changes of both sides of a pair that is decided, an item of its certificate, and what that says."""


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the verdicts on all pairs by name."""
    return of_pairs(tmp_path_factory.mktemp("pairs"), {name: shown[:2] for name, shown in SHOWN.items()}, code=0)


@pytest.mark.parametrize("name", SHOWN)
def test_what_does_not_forbid_a_comparison_is_in_its_certificate(judged: dict[str, dict[str, Any]], name: str) -> None:
    item, wanted = SHOWN[name][2:]
    verdict = judged[name]
    assert verdict["verdict"] == "faster", verdict["reasons"]
    found = items(verdict)[item] | {"unproven": item in verdict["unproven"]}
    assert {key: found[key] for key in wanted} == wanted
    assert found["unproven"] == wanted.get("unproven", False)
    assert is_bold(verdict) == (not verdict["unproven"])
    assert is_bold(verdict) or f"not proven: {', '.join(verdict['unproven'])}" in verdict["sentence"]


def test_every_item_has_a_rank_by_its_effect_on_speed(judged: dict[str, dict[str, Any]]) -> None:
    found = {item["name"] for verdict in judged.values() for item in verdict["certificate"]}
    known = {certificate.key_of(name) for name in found} | certificate.NAMES.keys()
    assert known <= set(BY_EFFECT) and len(BY_EFFECT) == len(set(BY_EFFECT))
    precision, recipe, seed, model = map(BY_EFFECT.index, ("precision", "fp8_recipe", "seed", "model"))
    assert model < precision < recipe < seed


def test_stock_hf_compares_with_another_framework(tmp_path: Path) -> None:
    stock = runs("nvd", 1.0, framework="hf", resolved_config__hf_kernels="stock")
    found = one_verdict(tmp_path, stock + runs("nvd", 0.8))
    assert (found["verdict"], items(found)["kernels of hf"]["state"]) == ("faster", ALLOWED)


@pytest.mark.parametrize(("again", "state"), [(2, SAME), (3, UNKNOWN)])
def test_runs_are_measured_again_if_most_were_started_again(tmp_path: Path, again: int, state: str) -> None:
    started = [run("nvd", number, 1.0, repeats=asked("4"), attempt=1 + (number <= again)) for number in range(1, 5)]
    found = items(one_verdict(tmp_path, started + runs("amd", 0.8, 4, repeats=asked("4"))))
    assert found["number of runs"]["state"] == state


def test_the_side_in_an_earlier_format_is_named(tmp_path: Path) -> None:
    results = runs("nvd", 1.0) + runs("amd", 0.8, source="earlier")
    proof = items(one_verdict(tmp_path, results))["proof of model and data"]
    assert (proof["a"], proof["b"]) == ("read back", "an earlier format")


@pytest.mark.parametrize(
    ("one", "other", "item", "state"),
    [
        ({}, {}, "ECC", SAME),
        ({}, {}, "power cap", SAME),
        ({}, {}, "clocks", SAME),
        ({"power_cap_watts": 500.0}, {"power_cap_watts": 500.0}, "power cap", ALLOWED),
        ({"compute_mode": "Default"}, {}, "compute mode", UNKNOWN),
    ],
)
def test_conditions_of_the_same_product(
    tmp_path: Path, one: dict[str, Any], other: dict[str, Any], item: str, state: str
) -> None:
    results = runs("nvd", 1.0, host="a") + runs("nvd", 0.8, host="b", first=4)
    for result in results:
        stated(**(one if result["provenance"]["host"] == "a" else other))(result)
    verdict = one_verdict(tmp_path, results, "--by", "machine")
    assert (is_bold(verdict), items(verdict)[item]["state"]) == (True, state)


def test_cpus_have_no_cap_and_no_gpu_clock(tmp_path: Path) -> None:
    results = [example_result(run=number, provenance__host=host) for host in "ab" for number in (1, 2, 3)]
    for result in results:
        result["conditions"] = conditions("no GPU", numa_balancing=False, numa_nodes=1, busy_before_percent=1.0)
    found = items(one_verdict(tmp_path, results, "--by", "machine"))
    assert {found[name]["state"] for name in ("power cap", "clocks", "NUMA balancing", "slowing down")} == {SAME}
