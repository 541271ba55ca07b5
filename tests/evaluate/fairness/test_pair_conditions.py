"""A side that was held back is not compared, and a condition without a record is unknown, never the same."""

from __future__ import annotations

from typing import Any

import pytest
from sides import run, side

from evaluate.fairness.certificate import certificate
from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN
from evaluate.fairness.pair_conditions import items
from evaluate.verdict.pairs import pairs
from evaluate.verdict.verdicts import NOT_COMPARABLE, judge
from example import example_result
from utils.results.schema import OPTIONAL_SECTIONS
from utils.results.store import problems

KEYS = tuple(OPTIONAL_SECTIONS["conditions"])
H100 = {
    "gpu_tool": "nvidia-smi",
    "gpu_count": 8,
    "power_cap_watts": 700.0,
    "default_power_cap_watts": 700.0,
    "max_power_cap_watts": 700.0,
    "max_sm_clock_mhz": 1980.0,
    "clock_limit_mhz": 1980.0,
    "default_clock_limit_mhz": 1980.0,
    "other_processes": 0,
    "busy_before_percent": 2.0,
    "throttle_after": ["gpu_idle"],
    "throttled_percent": {"sw_power_cap": 80.0, "hw_thermal_slowdown": 0.0},
    "numa_balancing": False,
    "numa_nodes": 2,
    "cpu_governor": "performance",
    "ecc": "Enabled",
    "persistence": "Enabled",
}
MI300X = H100 | {
    "gpu_tool": "amd-smi",
    "power_cap_watts": 750.0,
    "default_power_cap_watts": None,
    "max_power_cap_watts": 750.0,
    "max_sm_clock_mhz": 2100.0,
    "clock_limit_mhz": None,
    "default_clock_limit_mhz": None,
    "performance_level": "AMDSMI_DEV_PERF_LEVEL_AUTO",
    "throttled_percent": {"ppt": 60.0, "socket_thermal": 0.1},
}


def blocking(a, b):
    return [item for item in certificate(a, b) if item.state == BLOCKING]


def section(known: dict[str, Any], **changes: Any) -> dict[str, Any]:
    values = dict.fromkeys(KEYS) | known | changes
    return values | {"reasons": {key: "not looked for" for key in KEYS if values[key] is None}}


def results(platform: str, runs: int = 2, **changes: Any) -> list[dict[str, Any]]:
    known = {"nvd": H100, "amd": MI300X}[platform]
    made = [run(platform, number, 1.0, conditions=section(known, **changes)) for number in range(1, runs + 1)]
    assert problems(made[0]) == []
    return made


def found(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> dict[str, Any]:
    return {finding.name: finding for finding in items(a, b)}


def test_two_products_as_their_vendors_ship_them_are_comparable() -> None:
    said = found(results("nvd"), results("amd"))
    assert (said["power cap"].a, said["power cap"].b) == (
        "700 W, the default",
        "750 W, the highest that the board allows",
    )
    assert {name: finding.state for name, finding in said.items()} == {
        "power cap": ALLOWED,
        "clocks": ALLOWED,
        "NUMA balancing": SAME,
        "slowing down": SAME,
        "other work": SAME,
        "cpu governor": SAME,
    }
    assert not blocking(results("nvd"), results("amd"))


def test_the_same_product_twice_is_the_same_in_all() -> None:
    said = found(results("nvd"), results("nvd"))
    assert {finding.state for finding in said.values()} == {SAME}
    assert "ECC" in said and "compute mode" not in said, "the tool of neither side shows one"
    other = found(results("nvd", compute_mode="Default"), results("nvd"))["compute mode"]
    assert (other.state, other.a, other.b) == (UNKNOWN, "Default", "not shown there")


@pytest.mark.parametrize(
    ("platform", "changes", "name", "note"),
    [
        ("nvd", {"power_cap_watts": 500.0}, "power cap", "power cap below the default on one side"),
        (
            "amd",
            {"power_cap_watts": 600.0, "default_power_cap_watts": 750.0},
            "power cap",
            "power cap below the default on one side",
        ),
        ("nvd", {"clock_limit_mhz": 1200.0}, "clocks", "clocks limited on one side"),
        ("amd", {"performance_level": "low"}, "clocks", "clocks limited on one side"),
        ("amd", {"numa_balancing": True}, "NUMA balancing", "NUMA balancing slows one side"),
    ],
)
def test_a_handicap_on_one_side_forbids_the_comparison(
    platform: str, changes: dict[str, Any], name: str, note: str
) -> None:
    sides = {"nvd": results("nvd"), "amd": results("amd")}
    sides[platform] = results(platform, **changes)
    finding = found(sides["nvd"], sides["amd"])[name]
    assert (finding.state, finding.note) == (BLOCKING, note)
    blocked = blocking(sides["nvd"], sides["amd"])
    assert [item.name for item in blocked] == [name]


def test_one_capped_run_of_a_side_forbids_it_too() -> None:
    mixed = [*results("nvd", 1), *results("nvd", 1, power_cap_watts=500.0)]
    finding = found(mixed, results("amd"))["power cap"]
    assert (finding.state, finding.note) == (BLOCKING, "power cap differs between the runs of one side")
    assert finding.a == "700 W, the default or 500 W, default 700 W"


def test_the_same_handicap_on_both_sides_is_shown_and_allowed() -> None:
    capped = results("nvd", power_cap_watts=500.0)
    finding = found(capped, capped)["power cap"]
    assert (finding.state, finding.note) == (ALLOWED, "power cap: both sides are held back alike")
    numa = found(results("nvd", numa_balancing=True), results("amd", numa_balancing=True))["NUMA balancing"]
    assert numa.state == ALLOWED


def test_a_cap_above_the_default_and_numa_balancing_on_one_node_are_no_handicap() -> None:
    assert found(results("nvd", power_cap_watts=750.0), results("amd"))["power cap"].state == ALLOWED
    finding = found(results("nvd", numa_balancing=True, numa_nodes=1), results("amd"))["NUMA balancing"]
    assert (finding.state, finding.a) == (ALLOWED, "one node")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"power_cap_watts": None}, "unknown (not looked for)"),
        ({"power_cap_watts": 600.0}, "600 W, default unknown"),
    ],
)
def test_a_cap_that_cannot_be_judged_is_unknown_and_never_the_same(changes: dict[str, Any], said: str) -> None:
    for other in (results("nvd"), results("amd", **changes)):
        finding = found(results("amd", **changes), other)["power cap"]
        assert (finding.state, finding.a) == (UNKNOWN, said)


def test_slowing_down_and_other_work_on_one_side_are_shown() -> None:
    hot = results("nvd", throttled_percent={"hw_thermal_slowdown": 12.4, "sw_power_cap": 80.0})
    finding = found(hot, results("amd"))["slowing down"]
    assert (finding.state, finding.a, finding.b) == (ALLOWED, "hw_thermal_slowdown 12 % of the run", "no")
    assert finding.note == "one side was slowed down by heat or its power supply"
    old = found(results("nvd", throttled_percent=None), results("amd"))["slowing down"]
    assert (old.state, old.a) == (ALLOWED, "not at the end")
    busy = found(results("nvd", other_processes=2, busy_before_percent=50.0), results("amd"))["other work"]
    assert (busy.state, busy.a) == (ALLOWED, "2 processes on the GPUs, 50 % of the cores busy")


def test_results_without_conditions_are_not_recorded_and_still_compared() -> None:
    old = [run("nvd", number) for number in (1, 2)]
    said = found(old, results("amd"))
    assert {name: (finding.state, finding.a, finding.b) for name, finding in said.items()} == dict.fromkeys(
        ("power cap", "clocks", "NUMA balancing"), (UNKNOWN, "not recorded", "recorded")
    )
    assert not blocking(old, results("amd"))


def test_cpus_have_no_cap_and_no_gpu_clock() -> None:
    none = dict.fromkeys(KEYS) | {"numa_balancing": False, "numa_nodes": 1, "busy_before_percent": 1.0}
    none["reasons"] = {key: "no GPU" for key in KEYS if none[key] is None}
    pair = [example_result(conditions=none)]
    said = found(pair, pair)
    assert {name: finding.state for name, finding in said.items()} == dict.fromkeys(
        ("power cap", "clocks", "NUMA balancing", "slowing down", "other work"), SAME
    )
    assert not [item.name for item in certificate(pair, pair) if item.is_unproven]


def test_the_verdict_of_a_capped_side_is_not_comparable_with_that_reason() -> None:
    capped = section(H100, power_cap_watts=500.0)
    entries = [*side("nvd", 1.0, conditions=capped), *side("amd", 0.8, conditions=section(MI300X))]
    (judged,) = judge(pairs(entries, "platform", None), "platform")
    assert judged.word == NOT_COMPARABLE
    assert "power cap below the default on one side: 500 W, default 700 W against 750 W" in " ".join(judged.reasons)
    honest = [*side("nvd", 1.0, conditions=section(H100)), *side("amd", 0.8, conditions=section(MI300X))]
    (judged,) = judge(pairs(honest, "platform", None), "platform")
    assert judged.word == "faster"


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("tie_word_embeddings", "embedding shared with the output layer"),
        ("query_key_norm", "norm of queries and keys"),
    ],
)
@pytest.mark.parametrize(("has", "state"), [((True, True), SAME), ((True, False), BLOCKING), ((False, False), None)])
def test_a_trait_of_the_model_on_one_side_forbids_a_comparison(key, name, has, state) -> None:
    sides = [run(platform) for platform in ("nvd", "amd")]
    for result, is_there in zip(sides, has, strict=True):
        result["resolved_config"] |= {key: True} if is_there else {}
    found = {item.name: item.state for item in certificate(sides[:1], sides[1:])}
    assert found.get(name) == state
