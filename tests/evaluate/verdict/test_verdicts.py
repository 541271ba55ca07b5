"""Each pair gets the right verdict: planted faults are refused for the right reason, and their honest twins pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sides import STEPS, entry, run, side

from evaluate.checks.entries import Entry
from evaluate.fairness.certificate import certificate
from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN
from evaluate.verdict import steadiness
from evaluate.verdict.pairs import default_by, pairs
from evaluate.verdict.sentences import Judged
from evaluate.verdict.verdicts import as_json, judge


def judged(entries: list[Entry], by: str = "platform", **options: Any) -> list[Judged]:
    return judge(pairs(entries, by, options.pop("baseline", None)), by, **options)


def one(entries: list[Entry], by: str = "platform", **options: Any) -> Judged:
    (found,) = judged(entries, by, **options)
    return found


def test_a_faster_side_is_faster_and_the_sentence_is_complete() -> None:
    found = one(side("nvd", 1.0) + side("amd", 0.9))
    assert found.word == "faster", found.reasons
    assert found.estimate is not None and found.estimate.ratio == pytest.approx(1 / 0.9, rel=0.005)
    assert found.sentence.startswith("AMD Instinct MI300X is 1.110x as fast as NVIDIA H100 80GB HBM3 (1.10")
    assert found.sentence.endswith(
        ", equal settings, for these machines; 5 runs a side, 1 machine a side, steps 11 to 100; "
        "same model, data, settings and loss"
    )
    entry_ = as_json(found)
    assert (entry_["verdict"], entry_["runs"], entry_["machines"], entry_["track"]) == (
        "faster",
        [5, 5],
        [1, 1],
        "equal",
    )
    assert entry_["interval"][0] < entry_["ratio"] < entry_["interval"][1]


def test_swapped_it_is_slower_and_close_it_is_a_tie() -> None:
    assert one(side("nvd", 0.9) + side("amd", 1.0)).word == "slower"
    assert one(side("nvd", 1.0) + side("amd", 1.002)).word == "tie"
    assert one(side("nvd", 1.0) + side("amd", 0.9), baseline="amd").word == "slower"


def test_a_tie_that_was_shown_and_a_pair_that_is_undecided_are_told_apart() -> None:
    shown = one(side("nvd", 1.0) + side("amd", 1.002))
    assert (shown.word, shown.is_decided) == ("tie", True)
    assert ", a tie within 3.0%, Llama 3.1 8B" in shown.sentence
    # two runs a side that differ by a tenth among themselves
    runs = [("nvd", 1, 1.0), ("nvd", 2, 1.1), ("amd", 1, 0.9), ("amd", 2, 1.0)]
    open_ = one([entry(run(platform, number, seconds)) for platform, number, seconds in runs])
    assert (open_.word, open_.is_decided) == ("undecided", False)
    assert open_.sentence.startswith("AMD Instinct MI300X against NVIDIA H100 80GB HBM3 is undecided: 1.1")
    assert open_.reasons == ("a difference this large may be chance with so few runs",)
    assert open_.would_decide and "more runs on" in open_.would_decide
    assert (as_json(shown)["is_decided"], as_json(open_)["is_decided"]) == (True, False)


def test_maps_are_shown_in_words() -> None:
    fused = {"resolved_config__fused_ops": {"rope": True, "loss": False, "bias": False}}
    found = one(side("nvd", 1.0, framework="nemo", **fused) + side("amd", 0.9, framework="prim"))
    (item,) = [item for item in found.certificate or () if item.name == "fused operations"]
    assert (item.a, item.b) == ("on: rope; off: bias, loss", "none")


@pytest.mark.parametrize("counts", [(1, 1), (5, 1), (1, 5)])
@pytest.mark.parametrize("seconds", [1.0, 0.8, 0.3])
def test_a_single_run_decides_nothing_and_has_no_interval(counts: tuple[int, int], seconds: float) -> None:
    found = one(side("nvd", 1.0, runs=counts[0]) + side("amd", seconds, runs=counts[1]), band=0.0)
    content = as_json(found)
    assert (found.word, content["interval"], content["p_value"]) == ("undecided", None, None)
    assert content["ratio"] == pytest.approx(1 / seconds, rel=0.02)
    assert "a single run has no spread" in content["why_no_interval"]
    both = zip(("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"), counts, strict=True)
    names = [name for name, count in both if count == 1]
    assert found.reasons == tuple(f"no interval: {name}: a single run has no spread" for name in names)
    assert "no interval" in found.sentence and ", for these runs" in found.sentence


def test_one_real_pair_read_the_other_way_round_says_the_same() -> None:
    entries = side("nvd", 1.0, runs=1) + side("amd", 0.34, runs=1)
    there, back = one(entries), one(entries, baseline="amd")
    assert there.word == back.word == "undecided"
    assert there.estimate and back.estimate and there.estimate.ratio == pytest.approx(1 / back.estimate.ratio)


def test_two_runs_a_side_are_too_few_for_a_difference_and_three_are_enough() -> None:
    two = one(side("nvd", 1.0, runs=2) + side("amd", 0.5, runs=3))
    assert (two.word, two.would_decide) == ("undecided", "1 more run on NVIDIA H100 80GB HBM3, about 2 minutes")
    assert one(side("nvd", 1.0, runs=3) + side("amd", 0.5, runs=3)).word == "faster"


def interval(found: Judged) -> tuple[float, float]:
    assert found.estimate and found.estimate.low and found.estimate.high
    return found.estimate.low, found.estimate.high


def test_a_number_of_runs_that_followed_from_their_spread_needs_more_evidence() -> None:
    auto = {"repeats": {"runs": "auto", "least": 3, "most": 10, "target_percent": 1.0}}
    fixed = {"repeats": {"runs": "3", "least": 3, "most": 3, "target_percent": None}}
    plain, chosen = (one(side("nvd", 1.0, runs=3, **fixed) + side("amd", 0.9, runs=3, **how)) for how in (fixed, auto))
    assert as_json(plain)["selection"] == 1 and as_json(chosen)["selection"] == 2.5
    assert plain.estimate and chosen.estimate and plain.estimate.p_value and chosen.estimate.p_value
    assert chosen.estimate.p_value == pytest.approx(2.5 * plain.estimate.p_value)
    assert interval(chosen)[0] < interval(plain)[0] and interval(plain)[1] < interval(chosen)[1]


def test_the_fastest_of_several_layouts_needs_more_evidence() -> None:
    entries = side("nvd", 1.0, method="best") + side("amd", 0.9, method="best")
    slower = side("amd", 0.95, method="best", **both(micro_batch_size=2, gradient_accumulation=4))
    alone, chosen = one(entries), one(entries + slower)
    assert (as_json(alone)["selection"], as_json(chosen)["selection"]) == (1, 2)
    assert chosen.estimate and alone.estimate and chosen.estimate.ratio == alone.estimate.ratio
    assert interval(chosen)[0] < interval(alone)[0]


def levels(*parts: tuple[int, float]) -> list[float]:
    """Return step times with 0.2 % of noise: so many steps at each level."""
    random = np.random.default_rng(4)
    return [seconds * float(1 + random.normal(0, 0.002)) for count, seconds in parts for _ in range(count)]


def test_a_run_without_a_steady_state_leaves_the_pair_undecided_and_is_named() -> None:
    restless = entry(run("amd", 2, step_times=levels((30, 0.9), (30, 0.8), (25, 0.95), (15, 0.7))))
    entries = side("nvd", 1.0) + side("amd", 0.8)
    entries[6] = restless
    found = one(entries)
    assert found.word == "undecided"
    assert found.reasons == ("no steady state in run 2 of AMD Instinct MI300X",)
    assert found.would_decide == "these runs again, with more steps, or without other work on the machine"
    entries[6] = entry(run("amd", 2, step_times=levels((30, 0.95), (70, 0.8))))  # its twin warms up
    assert one(entries).word == "faster"


def test_a_run_with_too_few_steps_for_a_steady_state_says_how_many_it_has() -> None:
    short = {"step_times": levels((12, 0.9)), "steps": list(range(1, 13))}
    found = steadiness.unsteady(["amd"], [[run("amd", 1, **short)]])
    assert found.without == ("run 1 of amd (9 steps after the first ones, 10 are the least)",)


def drifting(platform: str, seconds: float, by: float) -> list[Entry]:
    """Return five runs whose step times change by this share from the first step to the last."""
    found = []
    for number in range(1, 6):
        random = np.random.default_rng(number)
        noise = random.normal(0, 0.015, STEPS)  # so much that a drift has no levels
        times = [seconds * float(1 + noise[place] + by * (place / STEPS - 0.5)) for place in range(STEPS)]
        found.append(entry(run(platform, number, seconds, step_times=times)))
    return found


def test_a_drift_that_would_change_the_word_leaves_the_pair_undecided() -> None:
    # 4 % faster on average, and slower at its end than at its middle by 2 %: half of the difference is left
    found = one(side("nvd", 1.0) + drifting("amd", 0.96, 0.04))
    assert found.word == "undecided" and "the step times drift in run 1 of AMD Instinct MI300X" in found.reasons[0]
    assert one(side("nvd", 1.0) + drifting("amd", 0.8, 0.04)).word == "faster", "far beyond the drift"
    assert one(drifting("nvd", 1.0, 0.04) + drifting("amd", 0.9, 0.04)).word == "faster", "both drift alike"


def test_several_machines_a_side_hold_for_the_product() -> None:
    entries = [
        found
        for platform, seconds in (("nvd", 1.0), ("amd", 0.8))
        for machine, effect in enumerate((0.99, 1.0, 1.01))
        for found in side(platform, seconds * effect, host=f"{platform}-{machine}")
    ]
    found = one(entries)
    assert found.estimate is not None and found.estimate.machines == (3, 3)
    assert found.word == "faster" and ", for these products" in found.headline


def both(**settings: Any) -> dict[str, Any]:
    """Return changes of settings that were requested and ran."""
    sections = ("training_config", "resolved_config")
    return {f"{section}__{key}": value for section in sections for key, value in settings.items()}


TP4 = both(tp=4, dp=2, gradient_accumulation=32)


def twin(**changes: Any) -> list[Entry]:
    """Return an honest pair with one side changed."""
    return side("nvd", 1.0) + side("amd", 0.9, **changes)


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "memorised data": (
        {"loss_values": [8.0 * 0.9**step for step in range(STEPS)]},
        "a loss this small is of memorised data",
    ),
    "3.03 against 5.4": (
        {"loss_values": [8.0 - 0.0274 * step for step in range(STEPS)]},
        "final losses are not shown to agree",
    ),
    "another initial loss": (
        {"loss_values": [8.5, *(3 + 5 * 0.95**step for step in range(1, STEPS))]},
        "initial losses differ by more than 0.1%",
    ),
    "diverged": ({"loss_values": [8.0 + 0.01 * step for step in range(STEPS)]}, "the loss ends above where it began"),
    "unequal precision": (both(precision="fp8"), "precision differs: bf16 against fp8"),
    "unequal TP": (TP4, "tensor parallel size differs: 1 against 4"),
    "QKV bias on one side only": ({"resolved_config__qkv_bias": True}, "QKV bias differs: false against true"),
    "norm epsilon": ({"resolved_config__norm_eps": 1e-6}, "norm epsilon differs: 1e-05 against 1e-06"),
    "rotary base": ({"resolved_config__rope_base": 10000.0}, "rotary base differs"),
    "a window on one side only": ({"resolved_config__sliding_window": 4097}, "attention window differs: none against"),
    "other data": ({"fingerprint__dataset_bin_sha256": "7" * 64}, "data differs"),
    "another order": ({"fingerprint__token_stream_sha256": "7" * 64}, "tokens of the first batches in order differs"),
    "another tokenizer": ({"fingerprint__tokenizer_sha256": "7" * 64}, "tokenizer differs"),
    "8-bit Adam": ({"resolved_config__optimizer": "bitsandbytes.optim.Adam8bit"}, "smaller states than AdamW's"),
    "a handicap": ({"provenance__environment": {"NCCL_NVLS_ENABLE": "0"}}, "NCCL_NVLS_ENABLE on one side only"),
    "another batch": (both(global_batch_size=128, gradient_accumulation=16), "global batch differs"),
    "another number of GPUs": (both(num_gpus=4, dp=4, gradient_accumulation=16), "number of GPUs differs"),
    "reduced gradients": ({"resolved_config__gradient_reduce_dtype": "bfloat16"}, "type of reduced gradients differs"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_not_comparable_for_its_reason(fault: str) -> None:
    changes, reason = FAULTS[fault]
    found = one(twin(**changes))
    assert found.word == "not_comparable"
    assert any(reason in said for said in found.reasons), found.reasons
    assert found.sentence.startswith("NOT COMPARABLE: NVIDIA H100 80GB HBM3 and AMD Instinct MI300X: ")


def test_the_honest_twin_passes() -> None:
    assert one(twin()).word == "faster"
    same_handicap = {"provenance__environment": {"NCCL_NVLS_ENABLE": "0"}}
    assert one(side("nvd", 1.0, **same_handicap) + side("amd", 0.9, **same_handicap)).word == "faster"


def test_a_vendors_own_setting_is_no_handicap_on_its_own_platform() -> None:
    alone, beside = {"NCCL_NVLS_ENABLE": "0"}, {"TORCH_NCCL_AVOID_RECORD_STREAMS": "1"}
    assert one(side("nvd", 1.0, provenance__environment=alone) + side("amd", 0.9)).word == "not_comparable"
    found = one(side("nvd", 1.0, provenance__environment=alone | beside) + side("amd", 0.9))
    assert found.word == "faster"
    assert any(
        item.name == "environment NCCL_NVLS_ENABLE" and item.state == ALLOWED for item in found.certificate or ()
    )


def test_a_speed_up_of_one_side_is_shown_with_its_effect() -> None:
    found = one(twin(provenance__environment={"PYTORCH_TUNABLEOP_ENABLED": "1"}))
    (item,) = [item for item in found.certificate or () if item.name.startswith("environment")]
    assert (found.word, item.state, item.a, item.b) == ("faster", ALLOWED, "not set", "1")
    assert item.note.startswith("the fastest kernel is looked for")


def test_a_handicap_in_one_of_the_runs_is_one_of_the_side() -> None:
    entries = side("nvd", 1.0) + side("amd", 0.9, runs=4)
    slow = run("amd", 5, 0.9, provenance__environment={"HIP_LAUNCH_BLOCKING": "1"})
    found = one([*entries, entry(slow)])
    assert any("HIP_LAUNCH_BLOCKING on one side only" in reason for reason in found.reasons)


def test_other_means_are_allowed_between_frameworks_and_with_the_best_method() -> None:
    other = {"resolved_config__gradient_reduce_dtype": "bfloat16", "resolved_config__tp": 1}
    found = one(side("nvd", 1.0, framework="nemo") + side("amd", 0.9, framework="prim", **other))
    assert found.word == "faster" and found.pair.framework == "nemo and prim"
    layout = {**TP4, "method": "best"}
    found = one(side("nvd", 1.0, method="best") + side("amd", 0.9, **layout))
    assert found.word == "faster"
    states = {item.name: item.state for item in found.certificate or ()}
    assert states["tensor parallel size"] == ALLOWED and states["QKV bias"] == SAME


def test_methods_are_never_mixed() -> None:
    assert judged(side("nvd", 1.0) + side("amd", 0.9, method="best")) == []


def test_a_side_without_a_valid_result_has_a_reason() -> None:
    oom = run("amd", status="oom", reason="out of memory at step 3")
    found = one([*side("nvd", 1.0), entry(oom)])
    assert found.word == "not_comparable"
    assert found.reasons == ("AMD Instinct MI300X has no valid result: out of memory at step 3",)


def test_an_unknown_item_is_named_and_does_not_forbid() -> None:
    found = one(twin(fingerprint__tokenizer_sha256=None, fingerprint__reasons={"tokenizer_sha256": "no manifest"}))
    assert found.word == "faster" and "not proven: tokenizer" in found.sentence


def seeded(*seeds: int) -> list[Entry]:
    """Return runs of both sides, each with its own seed."""
    return [
        entry(run(platform, number, 1.0, **both(seed=seed), fingerprint__token_stream_sha256=f"{seed}" * 64))
        for platform in ("nvd", "amd")
        for number, seed in enumerate(seeds, 1)
    ]


def test_runs_may_have_a_seed_each_as_long_as_both_sides_have_the_same() -> None:
    assert one(seeded(1, 2, 3)).word == "tie"
    found = one([*seeded(1, 2, 3)[:3], *seeded(1, 2, 4)[3:]])
    assert "seed differs: 1, 2, 3 against 1, 2, 4" in found.reasons


def test_losses_that_a_side_does_not_hold_are_not_proven() -> None:
    found = one(side("nvd", 1.0) + side("amd", 0.9, source="earlier", loss_values=[None] * STEPS))
    assert found.word == "not_comparable"
    item = next(item for item in found.certificate or () if item.name == "losses")
    assert (item.state, item.a, item.b, item.is_unproven) == (UNKNOWN, "known", "unknown", True)


def test_an_item_unknown_on_both_sides_is_not_the_same() -> None:
    unknown: dict[str, Any] = {"fingerprint__tokenizer_sha256": None, "resolved_config__seed": None}
    tokenizer = one(side("nvd", 1.0, **unknown) + side("amd", 0.9, **unknown)).certificate
    assert tokenizer and next(item for item in tokenizer if item.name == "tokenizer").state == SAME  # equal tokens
    unknown["fingerprint__dataset_bin_sha256"] = None
    unknown["resolved_config__reasons"] = {"seed": "not read back", "sliding_window": "this model has none"}
    found = one(side("nvd", 1.0, **unknown) + side("amd", 0.9, **unknown))
    states = {item.name: item.state for item in found.certificate or ()}
    assert states["tokenizer"] == states["seed"] == UNKNOWN and states["attention window"] == SAME
    assert found.headline.endswith("not proven: seed, data, tokenizer")


def test_more_nodes_may_have_more_gpus() -> None:
    entries = side("nvd", 1.0) + side("nvd", 0.55, **both(num_gpus=16, dp=16, gradient_accumulation=4))
    found = one(entries, by="nodes", baseline="8 GPUs")
    # half the time with twice the GPUs would be the same rate a GPU, and 0.55 of it is 1 / 1.1
    assert found.word == "faster" and found.estimate is not None and found.scaling is not None
    assert found.estimate.ratio == pytest.approx(1 / 0.55, rel=0.005)
    assert found.scaling.per_gpu == found.scaling.efficiency == pytest.approx(1 / 1.1, rel=0.005)
    assert found.pair.b_name == "16 GPUs on NVIDIA H100 80GB HBM3"


def test_frameworks_of_one_machine_are_compared_where_there_is_one_platform() -> None:
    entries = side("nvd", 1.0) + side("nvd", 0.7, framework="hf")
    assert default_by(entries) == "framework"
    found = one(entries, by="framework", baseline="mega")
    assert (found.word, found.pair.b_name) == ("faster", "hf on NVIDIA H100 80GB HBM3")


def test_many_comparisons_ask_for_more_evidence() -> None:
    noise = (0.99, 1.0, 1.01)

    def pair(model: str) -> list[Entry]:
        return [
            entry(run(platform, number, seconds * factor, model=model))
            for platform, seconds in (("nvd", 1.0), ("amd", 0.96))
            for number, factor in enumerate(noise, 1)
        ]

    alone = one(pair("m0"))
    assert alone.word == "faster" and alone.estimate and 0.03 / 12 < (alone.estimate.p_value or 0) < 0.03
    together = judged([found for number in range(12) for found in pair(f"m{number}")])
    assert {found.word for found in together} == {"undecided"}
    assert "Holm's correction" in together[0].reasons[0]


def test_items_that_forbid_come_first() -> None:
    found = list(certificate([run("nvd")], [run("amd", resolved_config__qkv_bias=True)]))
    assert found[0].name == "QKV bias" and found[0].state == BLOCKING
    assert [item.state for item in found] == sorted(
        (item.state for item in found), key=(BLOCKING, UNKNOWN, ALLOWED, SAME).index
    )
