"""Each pair gets the right word, with an interval only where the runs allow one, and with what would decide it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sides import (
    FIRST_START,
    SAMPLES,
    STEPS,
    Result,
    both,
    is_bold,
    make_consistent,
    one_verdict,
    run,
    runs,
    start_at,
    verdicts,
)

H100, MI300X = "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"
AUTO = {"repeats": {"runs": "auto", "least": 3, "most": 10, "target_percent": 1.0, "reasons": {}}}
FIXED = {"repeats": {"runs": "3", "least": 3, "most": 3, "target_percent": None, "reasons": {"target_percent": "x"}}}


@pytest.mark.parametrize(
    ("nvd", "amd", "options", "word"),
    [
        (1.0, 0.9, (), "faster"),
        (0.9, 1.0, (), "slower"),
        (1.0, 1.002, (), "tie"),
        (1.0, 0.9, ("--baseline", "amd"), "slower"),
        (1.0, 0.9, ("--band", "0.2"), "tie"),
    ],
)
def test_the_word_is_that_of_the_second_side(
    tmp_path: Path, nvd: float, amd: float, options: tuple[str, ...], word: str
) -> None:
    found = one_verdict(tmp_path, runs("nvd", nvd, 5) + runs("amd", amd, 5), *options)
    assert (found["verdict"], found["is_decided"], found["runs"], found["machines"]) == (word, True, [5, 5], [1, 1])
    ratio = nvd / amd if found["b"] == MI300X else amd / nvd
    assert found["ratio"] == pytest.approx(ratio, rel=0.005)
    assert found["interval"][0] < found["ratio"] < found["interval"][1]


def test_runs_that_differ_too_much_leave_a_pair_undecided(tmp_path: Path) -> None:
    found = one_verdict(tmp_path, [run("nvd", 1, 1.0), run("nvd", 2, 1.1), run("amd", 1, 0.9), run("amd", 2, 1.0)])
    assert (found["verdict"], found["is_decided"]) == ("undecided", False)
    assert found["sentence"].startswith(f"{MI300X} against {H100} is undecided: 1.1")
    assert found["reasons"] == ["a difference this large may be chance with so few runs"]
    assert "more runs on" in found["would_decide"]


@pytest.mark.parametrize("counts", [(1, 1), (5, 1), (1, 5)])
def test_a_single_run_decides_nothing_and_has_no_interval(tmp_path: Path, counts: tuple[int, int]) -> None:
    found = one_verdict(tmp_path, runs("nvd", 1.0, counts[0]) + runs("amd", 0.3, counts[1]), "--band", "0")
    assert (found["verdict"], found["interval"], found["p_value"]) == ("undecided", None, None)
    assert found["ratio"] == pytest.approx(1 / 0.3, rel=0.02)
    alone = [name for name, count in zip((H100, MI300X), counts, strict=True) if count == 1]
    assert found["reasons"] == [f"no interval: {name}: a single run has no spread" for name in alone]
    assert found["why_no_interval"] and "no interval" in found["sentence"] and ", for these runs" in found["sentence"]


def test_two_runs_a_side_are_too_few_for_a_difference_and_three_are_enough(tmp_path: Path) -> None:
    two = one_verdict(tmp_path / "2", runs("nvd", 1.0, 2) + runs("amd", 0.5, 3))
    assert (two["verdict"], two["would_decide"]) == ("undecided", f"1 more run on {H100}, about 2 minutes")
    assert one_verdict(tmp_path / "3", runs("nvd", 1.0, 3) + runs("amd", 0.5, 3))["verdict"] == "faster"


SLOWER = runs("amd", 0.95, first=4, **both(micro_batch_size=2, gradient_accumulation=4))


@pytest.mark.parametrize(
    ("changes", "more", "method", "selection"),
    [
        ([AUTO, AUTO, AUTO], [], "equal", 2.5),  # a number of runs that followed from their spread
        ([FIXED, FIXED, AUTO], [], "equal", 40),  # runs that were added to others
        ([FIXED, FIXED, FIXED], SLOWER, "best", 2),  # the fastest of two layouts
    ],
)
def test_a_choice_by_speed_needs_more_evidence(
    tmp_path: Path, changes: list[dict[str, Any]], more: list[Result], method: str, selection: float
) -> None:
    nvd, amd = runs("nvd", 1.0, method=method, **FIXED), runs("amd", 0.9, method=method, **FIXED)
    plain = one_verdict(tmp_path / "plain", nvd + amd)
    amd = [result | change for result, change in zip(amd, changes, strict=True)]
    chosen = one_verdict(tmp_path / "chosen", nvd + amd + [result | {"method": method} for result in more])
    assert (plain["selection"], chosen["selection"], chosen["ratio"]) == (1, selection, plain["ratio"])
    assert chosen["p_value"] == pytest.approx(selection * plain["p_value"])
    assert chosen["interval"][0] < plain["interval"][0] < plain["interval"][1] < chosen["interval"][1]


def levels(*parts: tuple[int, float]) -> list[float]:
    """Return step times with 0.2 % of noise: so many steps at each level."""
    random = np.random.default_rng(4)
    return [seconds * float(1 + random.normal(0, 0.002)) for count, seconds in parts for _ in range(count)]


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        (((30, 0.9), (30, 0.8), (25, 0.95), (15, 0.7)), "undecided"),
        (((30, 0.95), (70, 0.8)), "faster"),  # its twin warms up
    ],
)
def test_a_run_without_a_steady_state_leaves_the_pair_undecided_and_is_named(
    tmp_path: Path, parts: tuple[tuple[int, float], ...], word: str
) -> None:
    results = runs("nvd", 1.0) + runs("amd", 0.8)
    results[4] = run("amd", 2, step_times=levels(*parts))
    found = one_verdict(tmp_path, results)
    assert found["verdict"] == word
    if word == "undecided":
        assert found["reasons"] == [f"no steady state in run 2 of {MI300X}"]
        assert found["would_decide"].startswith("these runs again, with more steps")


def test_a_run_with_too_few_steps_for_a_steady_state_says_how_many_it_has(tmp_path: Path) -> None:
    found = runs("nvd", 1.0) + runs("amd", 0.8)
    short = [{key: one[key][:12] for key in SAMPLES if key != "learning_rates"} | both(max_steps=12) for one in found]
    results = [run(one["platform"], one["run"], **changes) for one, changes in zip(found, short, strict=True)]
    verdict = one_verdict(tmp_path, results)
    assert verdict["verdict"] == "undecided"
    assert "(9 steps after the first ones, 10 are the least)" in verdict["reasons"][0]


def drifting(platform: str, seconds: float, by: float) -> list[Result]:
    """Return five runs whose step times change by this share from the first step to the last."""
    found = []
    for number in range(1, 6):
        noise = np.random.default_rng([number, len(platform), round(seconds * 100)]).normal(0, 0.015, STEPS)
        times = [seconds * float(1 + noise[place] + by * (place / STEPS - 0.5)) for place in range(STEPS)]
        found.append(run(platform, number, seconds, step_times=times))  # so much noise that a drift has no levels
    return found


def test_a_drift_that_would_change_the_word_leaves_the_pair_undecided(tmp_path: Path) -> None:
    # 4 % faster on average, and slower at its end than at its middle by 2 %: half of the difference is left
    found = one_verdict(tmp_path / "1", runs("nvd", 1.0, 5) + drifting("amd", 0.96, 0.04))
    assert found["verdict"] == "undecided" and "the step times drift in run" in found["reasons"][0]
    far = one_verdict(tmp_path / "2", runs("nvd", 1.0, 5) + drifting("amd", 0.8, 0.04))
    alike = one_verdict(tmp_path / "3", drifting("nvd", 1.0, 0.04) + drifting("amd", 0.9, 0.04))
    assert (far["verdict"], alike["verdict"]) == ("faster", "faster")


def test_several_machines_a_side_hold_for_the_product(tmp_path: Path) -> None:
    results = [
        result
        for platform, seconds in (("nvd", 1.0), ("amd", 0.8))
        for machine, effect in enumerate((0.99, 1.0, 1.01))
        for result in runs(platform, seconds * effect, host=f"{platform}-{machine}", first=10 * machine + 1)
    ]
    found = one_verdict(tmp_path, results)
    assert (found["verdict"], found["machines"]) == ("faster", [3, 3])
    assert ", for these products" in found["headline"]


def test_methods_are_never_mixed(tmp_path: Path) -> None:
    assert verdicts(tmp_path, runs("nvd", 1.0) + runs("amd", 0.9, method="best")) == []


def test_frameworks_of_one_machine_are_compared_where_there_is_one_platform(tmp_path: Path) -> None:
    found = one_verdict(tmp_path, runs("nvd", 1.0) + runs("nvd", 0.7, first=4, framework="hf"), "--baseline", "mega")
    assert (found["verdict"], found["b"]) == ("faster", f"hf on {H100}")


def scattered(model: str, amd: float, noise: float) -> list[Result]:
    """Return three runs a side that differ by `noise` among themselves; models of other lengths have other samples."""
    factors = [factor + 1e-6 * len(model) for factor in (1 - noise, 1.0, 1 + noise)]
    return [
        run(platform, number, seconds * factor, f"{platform}-{model}", model=model)
        for platform, seconds in (("nvd", 1.0), ("amd", amd))
        for number, factor in enumerate(factors, 1)
    ]


def test_the_weakest_of_several_pairs_needs_no_more_evidence_than_alone(tmp_path: Path) -> None:
    # Holm's correction divides the level of the largest p-value by 1
    weak = scattered("weak", 0.95, 0.02)
    clear = [result for length in range(5, 16) for result in scattered("c" * length, 0.5, 0.0)]
    alone = one_verdict(tmp_path / "alone", weak)
    (found,) = (one for one in verdicts(tmp_path / "all", weak + clear) if one["model"] == "weak")
    assert found["adjusted_p_value"] == alone["p_value"]
    assert (found["verdict"], found["would_decide"]) == ("undecided", alone["would_decide"])


def test_many_comparisons_ask_for_more_evidence(tmp_path: Path) -> None:
    alone = one_verdict(tmp_path / "1", scattered("m", 0.96, 0.01))
    assert alone["verdict"] == "faster" and 0.03 / 12 < alone["p_value"] < 0.03
    results = [found for length in range(1, 13) for found in scattered("m" * length, 0.96, 0.01)]
    for found in verdicts(tmp_path / "12", results):
        assert found["verdict"] == "undecided" and "Holm's correction" in found["reasons"][0]


@pytest.mark.parametrize(
    ("framework", "key", "value", "said"),
    [
        ("mega", "layer_implementation", "megatron_core_local", "untuned: {}, mega on megatron-core's local layers"),
        ("mega", "layer_implementation", "transformer_engine", ""),
        ("nemo", "layer_implementation", "megatron_core_local", ""),
        ("hf", "hf_kernels", "stock", "untuned: {}, hf on transformers' own functions"),
        ("hf", "hf_kernels", "liger", "{}, hf on the kernels of liger-kernel"),
    ],
)
def test_untuned_layers_and_those_of_liger_are_named(
    tmp_path: Path, framework: str, key: str, value: str, said: str
) -> None:
    known: dict[str, Any] = {f"resolved_config__{key}": value, "framework": framework}
    found = one_verdict(tmp_path, runs("nvd", 1.0, **known) + runs("amd", 1.2, **known))
    assert found["verdict"] == "slower" and is_bold(found)
    assert found["sentence"].endswith(f"; {said.format(f'{H100} and {MI300X}')}" if said else "loss")
    assert ("untuned" in found["sentence"]) == said.startswith("untuned")


# The saving of one side over the other agrees with rates and prices computed by hand.

PRICES = {"NVIDIA H100 SXM 80GB": 3.0, "AMD Instinct MI300X": 1.8}
TOKENS_A_STEP = 64 * 128
"""GBS x SL of tests/support/sides.py, on 8 GPUs; a step takes 1 s on nvd and 1.2 s on amd, give or take 0.2 %."""


def priced(folder: Path, *options: str, prices: dict[str, float] = PRICES, seconds: float = 1.2, **amd: Any) -> Any:
    rows = {name: {"price": price, "date": "2026-01-01", "source": "our contract"} for name, price in prices.items()}
    folder.mkdir(exist_ok=True)
    (folder / "prices").write_text(json.dumps({"currency": "EUR", "prices": rows}))
    results = runs("nvd", 1.0, model_size="full") + runs("amd", seconds, model_size="full", **amd)
    return one_verdict(folder, results, "--prices", str(folder / "prices"), "--format", "json,md", *options)


def test_costs_and_saving_follow_from_rates_and_prices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = priced(tmp_path)["saving"]
    # 1e12 tokens / 8,192 a step x seconds a step x 8 GPUs x dollars an hour / 3600
    nvd, amd = (1e12 / TOKENS_A_STEP * seconds * 8 * price / 3600 for seconds, price in ((1.0, 3.0), (1.2, 1.8)))
    costs = [found[key]["value"] for key in ("cost_a", "cost_b")]
    assert costs == pytest.approx([nvd, amd], rel=0.005)
    assert (found["saved"]["value"], found["saved"]["unit"]) == (pytest.approx(costs[0] - costs[1]), "EUR")
    assert found["percent"]["value"] == pytest.approx(28, abs=0.6)  # 1 - 1.2 x 1.8 / 3
    # one price 25 % up, the other 25 % down: 1 - 0.72 x 1.25 / 0.75 and 1 - 0.72 x 0.75 / 1.25
    assert found["percent_range"] == pytest.approx((-20, 56.8), abs=1)
    text = " ".join(capsys.readouterr().out.split())
    assert "1 trillion tokens cost 58" in text and ",000 EUR on AMD Instinct MI300X" in text
    assert "AMD Instinct MI300X costs 28 % less; -20 to 57 % less if the prices are 25% off" in text


def test_the_dearer_side_is_said_to_cost_more_for_the_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = priced(tmp_path, "--token-budget", "15e12", seconds=2.0)  # 2.0 x 1.8 against 3.0: a fifth more
    assert found["saving"]["percent"]["value"] == pytest.approx(-20, abs=1)
    said = " ".join(capsys.readouterr().out.split())
    assert "15 trillion tokens" in said and "AMD Instinct MI300X costs 20 % more; -28 to 100 % more" in said


def test_without_a_price_or_a_comparison_nothing_is_saved(tmp_path: Path) -> None:
    saved = priced(tmp_path / "1", prices={"NVIDIA H100 SXM 80GB": 3.0})["saving"]["saved"]
    assert saved["value"] is None and "no price of AMD Instinct MI300X" in saved["how"]
    assert priced(tmp_path / "2", resolved_config__qkv_bias=True)["saving"] is None


# Runs of one side after those of the other on one machine, and runs that resemble the one before, are named.

AFTER, DRIFT = "were before those of", "which drifts"


def two(starts: dict[str, list[int]], drift_per_hour: float, noise: float = 1e-4) -> list[Result]:
    """Return runs of mega and hf on one machine that start at these hours, which all become slower over time."""
    random, found = np.random.default_rng(3), []
    for framework, hours in starts.items():
        for number, hour in enumerate(hours, 1):
            seconds = (1 + drift_per_hour * hour) * (1 + noise * float(random.normal()))
            one = run("nvd", number, 1.0, framework=framework)
            one["step_times"] = [seconds * (1 + 1e-4 * (step % 7 - 3)) for step in one["steps"]]
            one["loss_values"] = [loss * (1 + 1e-6 * len(found)) for loss in one["loss_values"]]
            make_consistent(one)
            start_at(one, FIRST_START + timedelta(hours=hour))
            found.append(one)
    return found


@pytest.mark.parametrize(
    ("starts", "drift", "said"),
    [
        ({"mega": [0, 1, 2, 3], "hf": [4, 5, 6, 7]}, 0.002, [AFTER, DRIFT]),
        ({"mega": [0, 1, 2, 3], "hf": [4, 5, 6, 7]}, 0.0, [AFTER]),
        ({"mega": [0, 2, 4, 6], "hf": [1, 3, 5, 7]}, 0.002, []),
        ({"mega": [0, 2, 4, 6], "hf": [1, 3, 5, 7]}, 0.0, []),
    ],
)
def test_one_side_after_the_other_is_named_and_so_is_a_drift(
    tmp_path: Path, starts: dict[str, list[int]], drift: float, said: list[str]
) -> None:
    found = one_verdict(tmp_path, two(starts, drift, 1e-4 if drift else 1e-3))
    text = "; ".join(found["remarks"])
    assert [words for words in (AFTER, DRIFT) if words in text] == said, text
    if DRIFT in said:
        assert "-0.8% between them" in text, "0.2 % an hour, 4 hours apart"


@pytest.mark.parametrize(
    ("levels", "is_said"),
    [
        ([0, 0, 0, 1, 1, 1, 1, 0, 0, 0], True),
        ([0, 1] * 5, False),
        ([0] * 4 + [1] * 4, True),
        ([0] * 3 + [1] * 3, False),  # six runs can never show it: 0.62 at the most, and chance explains 0.67
    ],
)
def test_runs_like_the_ones_before_them_are_named(tmp_path: Path, levels: list[int], is_said: bool) -> None:
    count = len(levels)
    results = two({"mega": list(range(0, 2 * count, 2)), "hf": list(range(1, 2 * count, 2))}, 0.0)
    for level, result in zip(levels, results[:count], strict=True):
        result["step_times"] = [seconds * (1 + 0.01 * level) for seconds in result["step_times"]]
        make_consistent(result)
        start_at(result, FIRST_START + timedelta(hours=2 * (result["run"] - 1)))
    text = "; ".join(one_verdict(tmp_path, results)["remarks"])
    assert ("runs are like the ones before them" in text) == is_said, text
