"""Two made-up machines with known ceilings and known losses: the attribution gives the truth back within 2 %.

tests/support/made_up_machines.py makes their files from plain numbers. Each planted fault has an honest twin.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from made_up_machines import AMD, DAY, KINDS, NVD, Machine, probe_of, result_of, slower, truth, write

from evaluate.compare import main

Compared = Callable[..., dict[str, Any]]
Pair = tuple[Machine, Machine]
US = 1e-6
NOISE = {"run_noise": 0.003, "probe_noise": 0.004}


@pytest.fixture
def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compared:
    """Return a function that compares what is in `tmp_path`, and returns the pair with the text in `printed`."""

    def compare(*options: str) -> dict[str, Any]:
        out = tmp_path / "report"
        main([str(tmp_path), "--output", str(out), "--format", "json,md", *options])
        (pair,) = json.loads((out / "compare.json").read_text())["verdicts"]
        text = capsys.readouterr().out + (out / "compare.md").read_text()
        return dict(pair) | {"printed": " ".join(text.split())}

    return compare


SCENARIOS: dict[str, Pair] = {
    "equal software": (NVD, slower(AMD, speed=dict.fromkeys(("matmul", "attention"), 0.8))),
    "slower matmul library": (NVD, slower(AMD, speed={"matmul": 1.35})),
    "slow operator": (NVD, slower(AMD, slowness={"attention": 2.5})),
    "launch gaps": (NVD, slower(AMD, speed={"memory_bound": 0.7}, gap=30.0)),
    "waits for data": (slower(NVD, data_wait=900.0), AMD),
    "slow collective, exposed": (NVD, slower(AMD, slow_collective=6.0)),
    "communication above computation": (NVD, slower(AMD, bandwidth=5_000.0, slow_collective=1.2)),
    "optimizer unfused": (slower(NVD, unfused=20, slowness={"optimizer": 3.0}), AMD),
    "all at once": (
        slower(NVD, gap=5.0, slowness={"matmul": 1.05, "memory_bound": 1.4}),
        slower(AMD, speed={"matmul": 0.7, "optimizer": 1.5}, slowness={"matmul": 1.5}, gap=12.0, slow_collective=3.0),
    ),
}


@pytest.mark.parametrize("seed", [None, 1, 2], ids=["exact", "noise 1", "noise 2"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_truth_of_two_machines_comes_back_within_two_percent(
    tmp_path: Path, compared: Compared, scenario: str, seed: int | None
) -> None:
    a, b = (slower(machine, **NOISE) if seed else machine for machine in SCENARIOS[scenario])
    for machine in (a, b):
        write(tmp_path / machine.platform, machine, seed=seed or 0)
    pair = compared()
    why, wanted = pair["why"], truth(a, b)
    assert why["refused"] == ""
    for name, value in wanted.items():
        assert why[name]["value"] == pytest.approx(value, rel=0.02), name
        assert why[name]["low"] <= why[name]["value"] <= why[name]["high"]
    assert why["ratio"]["value"] == pair["ratio"]
    for machine, side in ((a, why["a"]), (b, why["b"])):
        assert side["step_seconds"] == pytest.approx(machine.step * US, rel=0.01)
        found = {loss["kind"]: loss["seconds"] / US for loss in side["losses"]}
        for kind, lost in machine.losses().items():
            # rounding of the step times, and in the noisy cases the errors of the ceilings: 1 % of the kind at the most
            near = 0.01 * machine.floor()[kind] if seed else 1.0
            assert found.get(kind, 0.0) == pytest.approx(lost, rel=0.02, abs=near), kind
        floor = sum(side["floor_by_kind"].values())
        assert floor + sum(found.values()) * US == pytest.approx(sum(side["measured_by_kind"].values()), rel=1e-9)
        assert side["remarks"] == []


def test_the_largest_loss_is_named_with_its_operator(tmp_path: Path, compared: Compared) -> None:
    slow = slower(AMD, slowness={"attention": 2.5})
    unfused = slower(NVD, unfused=20, slowness={"optimizer": 3.0})
    for machine in (unfused, slow):
        write(tmp_path / machine.platform, machine)
    why = compared()["why"]
    assert why["b"]["losses"][0]["words"].startswith(
        "attention: 720 us over the floor, mostly aten::_flash_attention_f"
    )
    assert why["a"]["losses"][0]["words"] == "optimizer: 1.20 ms over the floor, mostly aten::_foreach_addcdiv_"


def test_the_sentences_stand_in_both_texts(tmp_path: Path, compared: Compared) -> None:
    for machine in SCENARIOS["all at once"]:
        write(tmp_path / machine.platform, machine)
    found = compared()
    assert len(found["why"]["sentences"]) == 3
    assert " is what the hardware's libraries deliver on these operators and " in found["why"]["sentences"][0]
    assert found["printed"].count(found["why"]["sentences"][0]) == 2


def test_idle_time_is_divided_into_data_and_gaps(tmp_path: Path, compared: Compared) -> None:
    for machine in (NVD, slower(AMD, data_wait=900.0)):
        write(tmp_path / machine.platform, machine)
    (idle,) = [loss for loss in compared()["why"]["b"]["losses"] if loss["kind"] == "idle"]
    # 46 kernels with a gap of 2 us each, and 20 us at the start
    assert idle["words"].endswith(": 900 us wait for data, 112 us launch gaps and other waits of the host")


def test_a_baseline_on_the_other_side_inverts_the_factors(tmp_path: Path, compared: Compared) -> None:
    for machine in SCENARIOS["all at once"]:
        write(tmp_path / machine.platform, machine)
    forward, back = compared()["why"], compared("--baseline", "amd")["why"]
    for name in ("ratio", "hardware", "framework"):
        assert back[name]["value"] == pytest.approx(1 / forward[name]["value"])
        assert back[name]["low"] == pytest.approx(1 / forward[name]["high"])
    assert back["a"]["name"] == forward["b"]["name"]


def test_without_a_profile_the_loss_is_one_and_not_divided(tmp_path: Path, compared: Compared) -> None:
    for machine in (NVD, AMD):
        write(tmp_path / machine.platform, machine, profile=machine is NVD)
    why = compared()["why"]
    (loss,) = why["b"]["losses"]
    assert why["b"]["measured_by_kind"] is None and loss["kind"] == "unattributed"
    assert loss["seconds"] == pytest.approx(sum(AMD.losses().values()) * US, rel=0.01)
    assert why["a"]["measured_by_kind"] and why["refused"] == ""


def test_without_a_probe_by_operator_nothing_is_said(tmp_path: Path, compared: Compared) -> None:
    for machine in (NVD, AMD):
        write(tmp_path / machine.platform, machine, probe=False)
        old = {
            key: value for key, value in probe_of(machine).items() if key not in ("operators", "jobs", "collectives")
        }
        path = tmp_path / f"probe_{machine.platform}_{machine.host}.json"
        path.write_text(json.dumps(old | {"probe_version": 1}))
    found = compared()
    assert found["why"] is None and "libraries deliver" not in found["printed"] and "- why:" not in found["printed"]


def test_one_run_a_side_has_factors_without_an_interval(tmp_path: Path, compared: Compared) -> None:
    for machine in (NVD, AMD):
        write(tmp_path / machine.platform, slower(machine, probe_noise=0.01), runs=1)
    why = compared()["why"]
    assert why["refused"] == "" and why["ratio"]["low"] is None and why["framework"]["low"] is None
    assert why["hardware"]["low"] < why["hardware"]["value"] and why["b"]["step_low"] is None


def test_jobs_of_different_size_are_attributed_as_jobs(tmp_path: Path, compared: Compared) -> None:
    """Twice the GPUs, half of the floor: the ratio is that of the jobs, and so is the hardware's."""
    few, many = NVD, slower(NVD, host="nvd-2", gpus=16, speed=dict.fromkeys(KINDS, 0.5))
    for machine in (few, many):
        write(tmp_path / machine.host, machine, profile=False)
    pair = compared("--by", "nodes")
    why, wanted = pair["why"], truth(few, many)
    assert why["refused"] == "" and wanted["hardware"] == 2.0
    for name, value in wanted.items():
        assert why[name]["value"] == pytest.approx(value, rel=0.001), name
    assert why["ratio"]["value"] == pair["ratio"]
    assert why["b"]["step_seconds"] == pytest.approx(many.step * US, rel=0.001)


# --- refusals --------------------------------------------------------------------------------------------------------

Content = dict[str, Any]


def another_day(probe: Content) -> None:
    probe["started_utc"] = (DAY + timedelta(hours=30)).isoformat()


def another_cap(probe: Content) -> None:
    probe["machine"]["power_cap_watts"] = 600.0


def another_torch(probe: Content) -> None:
    probe["machine"]["pytorch_version"] = "2.12.0"


def another_clock(probe: Content) -> None:
    probe["machine"]["max_sm_clock_mhz"] = 1700.0


def another_device(probe: Content) -> None:
    probe["device_name"] = "AMD Instinct MI325X"


def other_work(probe: Content) -> None:
    probe["conditions"] = {"other_processes": 2}


def another_length(probe: Content) -> None:
    probe["jobs"][0]["settings"] = probe["jobs"][0]["settings"] | {"sequence_length": 256}


def another_model(probe: Content) -> None:
    probe["jobs"][0]["model"] = "qwen"


def other_flops(probe: Content) -> None:
    probe["operators"][0]["flops"] *= 1.1


def too_slow(probe: Content) -> None:
    for operator in probe["operators"]:
        operator["warm_seconds"] *= 1.5
        operator["seconds"] *= 1.5


def no_collectives(probe: Content) -> None:
    probe["collectives"] = []


def small_collectives(probe: Content) -> None:
    probe["collectives"] = probe["collectives"][:2]


FAULTS: dict[str, tuple[Callable[[Content], None], str]] = {
    "another day": (another_day, "probe_amd_amd-1.json was measured 29 hours from run 1, wanted 24 at most"),
    "another cap": (another_cap, "in another state of the machine: power cap in W 600, the result's is 750"),
    "another torch": (another_torch, "version of torch 2.12.0, the result's is 2.13.0"),
    "another clock": (another_clock, "highest clock in MHz 1700, the result's is 2000"),
    "another device": (another_device, "is of another device: device 'AMD Instinct MI325X'"),
    "other work": (other_work, "was measured while 2 other processes on the GPU"),
    "another length": (another_length, "with other settings: sequence length 256, the result's is 128"),
    "another model": (another_model, "has the operators of mega qwen tiny, not of mega llama tiny"),
    "other work of the sides": (other_flops, "the sides do different work: matrix products of a token in GFLOP"),
    "floor above the step": (too_slow, "is above the measured step of 6.14 ms"),
    "no collectives": (no_collectives, "has no time of all_reduce of 40,000,000 bytes over 8 ranks"),
    "collectives too small": (small_collectives, "the largest measured size is 10,000,000 bytes"),
}
HONEST: dict[str, Callable[[Content], None]] = {
    "the same day": lambda probe: probe.update(started_utc=(DAY + timedelta(hours=20)).isoformat()),
    "a cap read with a fraction": lambda probe: probe["machine"].update(power_cap_watts=750.4),
    "a state that is not known": lambda probe: probe.update(machine={}),
    "another learning rate": lambda probe: probe["jobs"][0]["settings"].update(lr=5e-4, seed=7, max_steps=9),
    "a second job": lambda probe: probe["jobs"].insert(0, probe["jobs"][0] | {"framework": "hf"}),
    "all operators a little slower": lambda probe: probe["operators"][0].update(warm_seconds=151e-6),
}


def with_probe(tmp_path: Path, change: Callable[[Content], None]) -> None:
    for machine in (NVD, AMD):
        write(tmp_path / machine.platform, machine, profile=False)
    path = tmp_path / "amd" / "probe_amd_amd-1.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_probe_of_something_else_is_refused_with_the_reason(tmp_path: Path, compared: Compared, fault: str) -> None:
    change, words = FAULTS[fault]
    with_probe(tmp_path, change)
    found = compared()
    why = found["why"]
    assert words in why["refused"] and words in found["printed"]
    assert (why["ratio"], why["hardware"], why["framework"]) == (None, None, None)
    assert len(why["sentences"]) == 1


@pytest.mark.parametrize("case", HONEST)
def test_a_probe_that_fits_is_not_refused(tmp_path: Path, compared: Compared, case: str) -> None:
    with_probe(tmp_path, HONEST[case])
    assert compared()["why"]["refused"] == ""


NONSENSE: dict[str, Callable[[Content], None]] = {
    "countless calls": lambda probe: probe["jobs"][0]["calls"][0].__setitem__(1, 1e308),
    "endless calls": lambda probe: probe["operators"][0].update(seconds=1e308, warm_seconds=1e308),
    "no spread to speak of": lambda probe: probe["operators"][0].update(spread_percent=1e300),
    "collectives of nothing": lambda probe: probe["collectives"][0].update(bytes=0),
    "countless collectives": lambda probe: probe["jobs"][0]["collectives"][0].update(count=1e308),
    "no products": lambda probe: [operator.update(flops=0.0) for operator in probe["operators"]] and None,
    "a state of other types": lambda probe: probe["machine"].update(power_cap_watts=[1], driver_version={"a": 1}),
    "settings of other types": lambda probe: probe["jobs"][0].update(settings={"precision": ["bf16"]}),
    "a probe that is no JSON object": lambda probe: probe.clear(),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_a_probe_of_nonsense_stops_nothing(tmp_path: Path, compared: Compared, case: str) -> None:
    with_probe(tmp_path, NONSENSE[case])
    found = compared()
    assert found["verdict"] in ("tie", "undecided") and len(found["why"]["sentences"]) in (1, 3)


def test_a_probe_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_probe(tmp_path, lambda content: content["operators"][0].update(seconds=-1))
    main([str(tmp_path), "--output", str(tmp_path / "report"), "--format", "json"])
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning:")]
    assert "probe_amd_amd-1.json: operators[0]: seconds: got -1" in line and line.endswith("; the file is not used")


def test_a_side_without_a_probe_is_refused_if_the_other_has_one(tmp_path: Path, compared: Compared) -> None:
    for machine in (NVD, AMD):
        write(tmp_path / machine.platform, machine, profile=False, probe=machine is NVD)
    why = compared()["why"]
    assert "there is no probe by operator of machine amd-1" in why["refused"]
    assert why["a"]["floor_seconds"] > 0 and why["b"] is None


def test_every_machine_of_a_side_needs_its_own_probe(tmp_path: Path, compared: Compared) -> None:
    other = slower(AMD, host="amd-2", speed={"matmul": 1.2})
    for machine in (NVD, AMD):
        write(tmp_path / machine.platform, machine, profile=False)
    for number in (5, 6):
        (tmp_path / f"train_amd_mega_llama_run{number}.json").write_text(json.dumps(result_of(other, number)))
    assert "no probe by operator of machine amd-2" in compared()["why"]["refused"]
    (tmp_path / "probe_amd_amd-2.json").write_text(json.dumps(probe_of(other)))
    why = compared()["why"]
    mean = (sum(AMD.floor().values()) + sum(other.floor().values())) / 2
    assert why["refused"] == "" and why["b"]["floor_seconds"] == pytest.approx(mean * US)
    assert why["b"]["probe"] == "probe_amd_amd-1.json and probe_amd_amd-2.json"
    # four runs of the one and two of the other: each machine counts once, as in the verdict
    assert why["ratio"]["value"] == pytest.approx(why["a"]["step_seconds"] / why["b"]["step_seconds"])


def test_a_pair_that_is_not_comparable_is_not_attributed(tmp_path: Path, compared: Compared) -> None:
    write(tmp_path / "nvd", NVD, profile=False)
    write(tmp_path / "amd", AMD, profile=False)
    for path in (tmp_path / "amd").glob("train_*.json"):
        result = json.loads(path.read_text())
        result["fingerprint"]["dataset_bin_sha256"] = "7" * 64
        path.write_text(json.dumps(result))
    found = compared()
    assert found["verdict"] == "not_comparable"
    assert found["why"]["refused"].startswith("the pair is not comparable: ")


# --- profiles --------------------------------------------------------------------------------------------------------


def with_profile(tmp_path: Path, change: Callable[[Content], None]) -> None:
    for machine in (NVD, AMD):
        write(tmp_path / machine.platform, machine)
    (path,) = (tmp_path / "amd" / "profiles").glob("*/profile.json")
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def other_trace(profile: Content) -> None:
    profile["traces"]["0"]["sha256"] = "0" * 64


def old_profile(profile: Content) -> None:
    profile["started_utc"] = (DAY + timedelta(hours=40)).isoformat()


def other_settings(profile: Content) -> None:
    profile["settings"]["micro_batch_size"] = 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_trace, "rank0.json.gz is not the trace that profile.json names"),
        (old_profile, "profile.json was measured 39 hours from run 1, wanted 24 at most"),
        (other_settings, "is of other settings: micro batch 2, the result's is 4"),
    ],
)
def test_a_profile_that_does_not_fit_is_not_used_and_says_why(
    tmp_path: Path, compared: Compared, change: Callable[[Content], None], words: str
) -> None:
    with_profile(tmp_path, change)
    side = compared()["why"]["b"]
    assert side["profile"] == "" and side["losses"][0]["kind"] == "unattributed"
    assert [remark for remark in side["remarks"] if remark.startswith("not used: ") and words in remark]


def test_a_profiled_run_of_another_speed_is_remarked(tmp_path: Path, compared: Compared) -> None:
    fast = {"unprofiled_step_seconds": AMD.step * US * 0.9}
    with_profile(tmp_path, lambda profile: profile.update(fast))
    remarks = compared()["why"]["b"]["remarks"]
    assert len(remarks) == 1 and "a step of the profiled run takes 5.53 ms, of the compared runs 6.14 ms" in remarks[0]


def test_a_profiler_that_costs_a_quarter_of_the_step_is_remarked(tmp_path: Path, compared: Compared) -> None:
    write(tmp_path / "nvd", NVD)
    write(tmp_path / "amd", slower(AMD, recording=40.0))
    side = compared()["why"]["b"]
    assert any("30 % longer" in remark for remark in side["remarks"])
    assert sum(side["profiled_by_kind"].values()) == pytest.approx((AMD.step + 46 * 40) * US)
    assert sum(side["measured_by_kind"].values()) == pytest.approx(AMD.step * US)


def test_a_broken_profile_beside_the_results_stops_nothing(tmp_path: Path, compared: Compared) -> None:
    with_profile(tmp_path, lambda profile: profile.pop("steps"))
    why = compared()["why"]
    assert why["refused"] == "" and why["b"]["measured_by_kind"] is None
    assert [remark for remark in why["b"]["remarks"] if "profile.json: steps: got None" in remark]
