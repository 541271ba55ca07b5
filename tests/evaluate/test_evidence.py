"""Evidence that does not agree with itself is refused for its reason, and the honest twin of each fault passes.

All of them go through the command lines, as a user's results do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from agreeing import make_consistent, schedule
from sides import STEPS, run

from evaluate import compare, validate
from evaluate.checks.entries import load_results
from example import example_result
from utils.models import get
from utils.results.performance import summarize

Result = dict[str, Any]
Change = Callable[[Result], Any]
CLOCK = ("provenance__started_utc", "provenance__finished_utc")


def full(platform: str = "nvd", number: int = 1, seconds: float = 6.2, **changes: Any) -> Result:
    """Return a run of Llama 3.1 8B on eight GPUs, 64 x 8,192 tokens in 6.2 s: 55 % of an H100's peak."""
    length = {f"{section}__sequence_length": 8192 for section in ("training_config", "resolved_config")}
    return run(platform, number, seconds, model_size="full", **length, **changes)


def nothing(result: Result) -> None:
    """Change nothing: the honest twin of most faults."""


def into(section: str, **values: Any) -> Change:
    return lambda result: result[section].update(values)


def ran(**values: Any) -> Change:
    return into("resolved_config", **values)


def times(factor: float) -> Change:
    """Return a change of all step times, with their summary and without the clock."""

    def change(result: Result) -> None:
        config = result["training_config"]
        result["step_times"] = [float(f"{time * factor:.6g}") for time in result["step_times"]]
        tokens = config["global_batch_size"] * config["sequence_length"]
        result["performance_metrics"] |= summarize(result["step_times"], tokens, config["num_gpus"])

    return change


def samples(key: str, new: Callable[[int, float], float]) -> Change:
    """Return a change of each sample of a list, from its place and value."""
    return lambda result: result.update({key: [new(place, value) for place, value in enumerate(result[key])]})


def rates(rule: Callable[[int, dict[str, Any]], float], **changes: Any) -> Change:
    """Return a change of the learning rates to those of a rule of step and settings."""

    def change(result: Result) -> None:
        result |= changes
        result["learning_rates"] = [rule(step, result["training_config"]) for step in result["steps"]]

    return change


def energy(watts_of_a_board: float, **more: Any) -> Change:
    """Return a change to an energy of eight boards over all steps, whose power agrees with it."""

    def change(result: Result) -> None:
        watts, seconds = 8 * watts_of_a_board, sum(result["step_times"])
        known = {"joules": watts * seconds, "avg_watts": watts, "joules_per_token": watts * seconds / (STEPS * 524288)}
        result["energy_metrics"] = known | {"source": "counter", "interval": "all steps", "reasons": {}} | more

    return change


def shape(size: str, model: str = "llama", **changes: Any) -> Change:
    def change(result: Result) -> None:
        result |= {"model": model, "model_size": size}
        make_consistent(result, CLOCK)
        result["resolved_config"] |= changes

    return change


def padded(result: Result) -> None:
    """Pad the vocabulary as Megatron does for eight tensor-parallel ranks: 129,024 is a multiple of 128 x 8."""
    for section in ("training_config", "resolved_config"):
        result[section] |= {"tp": 8, "dp": 1, "gradient_accumulation": 64}
    more = 2 * (129024 - 128256) * 4096
    result["resolved_config"] |= {"vocab_size": 129024, "parameter_count": 8_030_261_248 + more}


def of_cpu(steps: int, seconds: float, start_up: float) -> Change:
    """Return a change to a training on a CPU whose start-up lasts longer than its steps."""

    def change(result: Result) -> None:
        new = example_result(platform="cpu")
        for section in ("training_config", "resolved_config"):
            new[section]["max_steps"] = steps
        new["steps"] = list(range(1, steps + 1))
        new["step_times"] = [seconds * (1 + 0.01 * (step % 7)) for step in new["steps"]]
        new["loss_values"] = [8 - 0.001 * step for step in new["steps"]]
        new["grad_norms"] = [2 - 0.001 * step for step in new["steps"]]
        new["data_wait_seconds"] = [0.0] * steps
        make_consistent(new)
        end = round(sum(new["step_times"]) + start_up)
        new["provenance"] |= {
            "started_utc": "2026-11-21T00:00:00+00:00",
            "finished_utc": f"2026-11-21T{end // 3600:02}:{end // 60 % 60:02}:{end % 60:02}+00:00",
        }
        result.clear()
        result.update(new)

    return change


def five_hundred_steps(factor: float) -> Change:
    def change(result: Result) -> None:
        for section in ("training_config", "resolved_config"):
            result[section]["max_steps"] = 500
        for key in ("step_times", "data_wait_seconds"):
            result[key] = result[key] * 5
        result["steps"] = list(range(1, 501))
        result["loss_values"] = [8 * 0.998**step for step in range(500)]
        result["grad_norms"] = [2 * 0.998**step for step in range(500)]
        make_consistent(result)
        times(factor)(result)

    return change


# --- one result: `evaluate.validate` -------------------------------------------------------------------------------


@dataclass(frozen=True)
class InResult:
    """A fault in one result, the words of its reason, and the change that makes the honest twin."""

    change: Change
    said: str
    twin: Change = nothing


REJECTED = {
    "step times x 1000": InResult(times(1000), "step_times: 619,391 s in all, and the run took 639 s"),
    "a third of 100 steps": InResult(times(1 / 3), "s are in no step", times(0.999)),
    "a third of 500 steps": InResult(five_hundred_steps(1 / 3), "s are in no step", five_hundred_steps(1)),
    "a third of the loop": InResult(
        lambda result: (result["performance_metrics"].update(loop_seconds=640.0), times(1 / 3)(result)),
        "the training loop took 640 s",
        into("performance_metrics", loop_seconds=640.0),
    ),
    "finished before it started": InResult(
        into("provenance", finished_utc="2026-11-20T00:00:00+00:00"), "is before started_utc"
    ),
    "a start that is no time": InResult(into("provenance", started_utc="yesterday"), "wanted a time like"),
    "rates late by one step": InResult(
        rates(lambda step, config: schedule(max(1, step - 1), config)), "learning_rates: step 2 ran with"
    ),
    "rates early by one step": InResult(
        rates(lambda step, config: schedule(step + 1, config)), "learning_rates: step 1 ran with"
    ),
    "rate 0 after step 50": InResult(
        rates(lambda step, config: schedule(step, config) * (step <= 50)),
        "49 of 100 steps have a rate of 0",
    ),
    "rate 0 in another framework": InResult(
        rates(lambda step, config: schedule(step, config) * (step <= 50), framework="nemo"),
        "steps have a rate of 0",
        rates(lambda step, config: schedule(step, config), framework="nemo"),
    ),
    "rates above the one asked": InResult(
        rates(lambda step, config: 2 * schedule(step, config), framework="prim"), "the largest one asked is 0.001"
    ),
    "gradients of 0": InResult(samples("grad_norms", lambda place, norm: 0.0), "grad_norms: 100 of 100 are 0"),
    "one gradient of 0": InResult(samples("grad_norms", lambda place, norm: norm * (place != 50)), "1 of 100 are 0"),
    "constant gradients": InResult(samples("grad_norms", lambda place, norm: 1.7), "100 equal norms in a row"),
    "clipped gradients": InResult(
        samples("grad_norms", lambda place, norm: min(norm, 1 - 1e-6 * place)), "are the limit 1"
    ),
    "flat loss in the middle": InResult(
        samples("loss_values", lambda place, loss: 5.25 if 40 <= place < 60 else loss),
        "loss_values: 20 equal losses in a row",
        samples("loss_values", lambda place, loss: 5.25 if place in (40, 41) else loss),
    ),
    "half the parameters": InResult(
        ran(parameter_count=4_015_130_624), "parameter_count: llama full has 8,030,261,248, ran 4,015,130,624", padded
    ),
    "a layer less": InResult(ran(num_layers=31), "num_layers: llama full has 32, ran 31"),
    "narrow layers": InResult(ran(ffn_hidden_size=11008), "ffn_hidden_size: llama full has 14336, ran 11008"),
    "the name of another size": InResult(
        shape("tiny", hidden_size=4096), "hidden_size: llama tiny has 128, ran 4096", shape("tiny")
    ),
    "a proxy that is the whole model": InResult(
        shape("proxy", num_layers=6),
        "parameter_count: llama proxy has",
        shape("proxy", num_layers=6, parameter_count=get("llama", "proxy", proxy_layers=6).parameter_count),
    ),
    "amd with an H100": InResult(
        lambda result: result.update(platform="amd"), "NVIDIA H100 80GB HBM3 is no device of the platform amd"
    ),
    "nvd with an MI300X": InResult(
        into("gpu_info", device_name="AMD Instinct MI300X"), "AMD Instinct MI300X is no device of the platform nvd"
    ),
    "cpu with a GPU": InResult(
        lambda result: (of_cpu(30, 1.0, 5)(result), result["gpu_info"].update(device_name="NVIDIA H200")),
        "NVIDIA H200 is no device of the platform cpu",
        lambda result: (of_cpu(30, 1.0, 5)(result), result["gpu_info"].update(device_name="AMD EPYC 9454")),
    ),
    "nvd with ROCm": InResult(into("gpu_info", software_stack="rocm"), "software_stack: got rocm"),
    "memory below the weights": InResult(
        into("memory_metrics", peak_memory_allocated_gb=7.0, avg_memory_allocated_gb=6.0),
        "peak_memory_allocated_gb: got 7 GB, the weights alone are 32.1 GB",
        lambda result: (
            ran(parameter_dtype="bfloat16")(result),
            into("memory_metrics", peak_memory_allocated_gb=17.0)(result),
        ),
    ),
    "less reserved than allocated": InResult(
        into("memory_metrics", peak_memory_reserved_gb=40.0),
        "peak_memory_reserved_gb: got 40 GB, less than the 48.18 GB",
        into("memory_metrics", peak_memory_reserved_gb=49.0),
    ),
    "energy of one board of eight": InResult(energy(600 / 8), "of fewer boards than trained", energy(600)),
    "energy of four boards of eight": InResult(energy(600 / 2), "of fewer boards than trained", energy(500)),
    "energy that names four boards": InResult(energy(600, boards=4), "energy: of 4 boards", energy(600, boards=8)),
    "energy of some boards by its source": InResult(
        energy(600, source="NVML, 7 of 8 GPUs"), "energy: of 7 boards", energy(600, source="NVML, 8 of 8 GPUs")
    ),
    "more watts than a board draws": InResult(energy(900), "draws 700 W at the most", energy(700)),
    "more hosts than devices": InResult(
        into("provenance", hosts=[f"n{number}" for number in range(9)]),
        "9 hosts for 8 devices",
        into("provenance", hosts=["a", "b"]),
    ),
    "recomputation of another name": InResult(
        ran(recompute_granularity="full"),
        "recompute_granularity: ran 'full', and recompute was asked to be none",
        ran(recompute_granularity=None),
    ),
    "fp8 of another name": InResult(
        ran(fp8="hybrid"), "fp8: ran 'hybrid', and precision was asked to be bf16", ran(fp8=None, bf16=True)
    ),
}
MARKED = {
    "a host twice": InResult(
        into("provenance", hosts=["a", "a"]), "a host is named twice", into("provenance", hosts=["a", "b"])
    ),
    "start-up longer than the steps": InResult(of_cpu(10, 0.2, 100), "s are in no step", of_cpu(10, 0.2, 25)),
    "a slow start of a large model": InResult(
        lambda result: result["provenance"].update(finished_utc="2026-11-21T00:25:00+00:00"), "s are in no step"
    ),
    "devices that did not train": InResult(into("gpu_info", device_count=16), "16 devices were found, 8 trained"),
    "runaway gradients": InResult(samples("grad_norms", lambda place, norm: 500 * norm), "times the limit"),
    "average above the peak": InResult(
        into("memory_metrics", avg_memory_allocated_gb=60.0), "more than the peak of 48.18 GB"
    ),
    "another warm-up in another framework": InResult(
        rates(lambda step, config: schedule(max(1, step - 5), config), framework="nemo"),
        "learning_rates: step",
        rates(
            lambda n, c: c["lr"] * n / c["warmup_iters"] if n <= c["warmup_iters"] else schedule(n, c), framework="prim"
        ),
    ),
}


def validated(folder: Path, change: Change, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code of `evaluate.validate` on one result, and its reasons on one line."""
    result = full()
    change(result)
    (folder / "train_one.json").write_text(json.dumps(result))
    code = validate.main([str(folder)])
    capsys.readouterr()
    loaded = load_results([folder])
    assert not loaded.unreadable, loaded.unreadable
    (found,) = (one.findings for one in loaded.entries)
    return code, "; ".join((*found.rejections, "WARNINGS", *found.warnings))


@pytest.mark.parametrize("fault", REJECTED)
def test_a_result_that_contradicts_itself_is_rejected_and_its_twin_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    code, reasons = validated(tmp_path, REJECTED[fault].change, capsys)
    assert code == 1 and REJECTED[fault].said in reasons.partition("WARNINGS")[0]
    code, reasons = validated(tmp_path, REJECTED[fault].twin, capsys)
    assert code == 0 and reasons.startswith("WARNINGS"), reasons
    assert REJECTED[fault].said not in reasons


@pytest.mark.parametrize("fault", MARKED)
def test_evidence_that_proves_nothing_is_marked_and_its_twin_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    code, reasons = validated(tmp_path, MARKED[fault].change, capsys)
    assert code == 0 and MARKED[fault].said in reasons.partition("WARNINGS")[2], reasons
    code, reasons = validated(tmp_path, MARKED[fault].twin, capsys)
    assert code == 0 and MARKED[fault].said not in reasons


# --- several results: copies and runs at one time ------------------------------------------------------------------


def copied() -> list[Result]:
    """Return a run and two copies of it as attempts, on the same day one after the other."""
    found = [run("nvd") | {"attempt": attempt, "run": attempt} for attempt in (1, 2, 3)]
    for result in found:
        make_consistent(result)
    return found


def same_clock() -> list[Result]:
    """Return a run and two copies with its own start and end, as renamed files have them."""
    found = copied()
    for result in found:
        result["provenance"] = found[0]["provenance"]
    return found


def honest(shape_of_times: Callable[[int], float], count: int = 3) -> list[Result]:
    """Return runs whose step times share a shape and have noise of their own."""
    found = [run("nvd", number) for number in range(1, count + 1)]
    for result in found:
        result["step_times"] = [time * shape_of_times(place) for place, time in enumerate(result["step_times"])]
        make_consistent(result)
    return found


def at(result: Result, start: str, end: str, **more: Any) -> Result:
    result["provenance"] |= {"started_utc": f"2026-11-21T{start}+00:00", "finished_utc": f"2026-11-21T{end}+00:00"}
    result["provenance"] |= more
    return result


def gpus(indices: str) -> dict[str, Any]:
    return {"environment": {"CUDA_VISIBLE_DEVICES": indices}}


COPIES = {
    "exact": (copied(), True),
    "the clock of the first": (same_clock(), True),
    "another platform": ([run("nvd"), run("amd") | {"step_times": run("nvd")["step_times"]}], True),
    "honest": (honest(lambda place: 1.0), False),
    "a pause each ten steps": (honest(lambda place: 1.5 if place % 10 == 0 else 1.0), False),
    "equal losses of one seed": (
        [run("nvd", number) | {"loss_values": run("nvd")["loss_values"]} for number in (1, 2, 3)],
        False,
    ),
}
OVERLAPS = {
    "at one time": (at(run("nvd", 1), "01:00:00", "01:02:00"), at(run("nvd", 2), "01:01:00", "01:03:00"), True),
    "a failed attempt beside it": (
        at(run("nvd", 1, status="failed", reason="ended by SIGKILL"), "01:00:00", "01:09:00"),
        at(run("nvd", 2), "01:01:00", "01:03:00"),
        True,
    ),
    "in one second": (at(run("nvd", 1), "01:00:00", "01:02:00"), at(run("nvd", 2), "01:02:00", "01:04:00"), False),
    "on another machine": (
        at(run("nvd", 1), "01:00:00", "01:02:00"),
        at(run("nvd", 2, host="nvd-2"), "01:01:00", "01:03:00"),
        False,
    ),
    "machines of one name": (
        at(run("nvd", 1, host="node0"), "01:00:00", "01:02:00"),
        at(run("amd", 1, host="node0"), "01:00:00", "01:02:00"),
        False,
    ),
    "a node in common": (
        at(run("nvd", 1), "01:00:00", "01:02:00", hosts=["n1", "n2"]),
        at(run("nvd", 2), "01:01:00", "01:03:00", host="n3", hosts=["n3", "n2"]),
        True,
    ),
    "other GPUs": (
        at(run("nvd", 1), "01:00:00", "01:02:00", **gpus("0,1,2,3")),
        at(run("nvd", 2), "01:01:00", "01:03:00", **gpus("4,5,6,7")),
        False,
    ),
    "a GPU in common": (
        at(run("nvd", 1), "01:00:00", "01:02:00", **gpus("0,1,2,3")),
        at(run("nvd", 2), "01:01:00", "01:03:00", **gpus("3,4,5,6")),
        True,
    ),
}


def rejections(folder: Path, results: Sequence[Result]) -> list[str]:
    for number, result in enumerate(results):
        (folder / f"train_{number}.json").write_text(json.dumps(result))
    return ["; ".join(one.findings.rejections) for one in load_results([folder]).entries]


@pytest.mark.parametrize("name", COPIES)
def test_a_copied_run_counts_once_and_honest_runs_all_count(tmp_path: Path, name: str) -> None:
    results, is_copy = COPIES[name]
    found = rejections(tmp_path, results)
    assert found[0] == ""
    assert all(("a copied run is no second run" in text) == is_copy for text in found[1:]), found
    assert is_copy or not any(found)


def test_the_copies_of_a_run_leave_too_few_runs_for_a_word(tmp_path: Path) -> None:
    (verdict,) = verdicts(tmp_path, [*copied(), *(run("amd", number, 0.8) for number in (1, 2, 3))])
    assert (verdict["verdict"], verdict["runs"]) == ("undecided", [1, 3])


@pytest.mark.parametrize("name", OVERLAPS)
def test_runs_at_one_time_on_the_same_gpus_are_rejected(tmp_path: Path, name: str) -> None:
    *results, is_shared = OVERLAPS[name]
    found = rejections(tmp_path, results)
    assert [("in time on" in text) for text in found] == [is_shared, is_shared], found
    assert is_shared or not any(found)


def test_the_same_file_twice_is_neither_a_copy_nor_an_overlap(tmp_path: Path) -> None:
    assert rejections(tmp_path, [run("nvd"), run("nvd")]) == ["", ""]


# --- two sides: `evaluate.compare` ---------------------------------------------------------------------------------


def conditions(**known: Any) -> dict[str, Any]:
    from tests.evaluate.fairness.test_pair_conditions import H100, section

    return section(H100, **known)


def in_runs(change: Change, *numbers: int) -> Change:
    """Return a change of the runs of these numbers only."""
    return lambda result: change(result) if result["run"] in numbers else None


def clock(start_up: float) -> Change:
    """Return a change of the end of a run to so many seconds more than its steps take."""

    def change(result: Result) -> None:
        start = datetime.fromisoformat(result["provenance"]["started_utc"])
        end = start + timedelta(seconds=round(sum(result["step_times"]) + start_up))
        result["provenance"]["finished_utc"] = end.isoformat()

    return change


P2P = into("provenance", environment={"NCCL_P2P_DISABLE": "1"})
NO_ENVIRONMENT = into(
    "provenance", environment=None, reasons=dict.fromkeys(("image", "image_digest", "environment"), "x")
)
CAPPED = conditions(power_cap_watts=400.0)
LOSSES = run("nvd")["loss_values"]


@dataclass(frozen=True)
class InPair:
    """A fault of three runs a side, as changes of the runs of NVIDIA and of AMD; the twin changes both sides alike."""

    nvd: Change
    amd: Change
    said: str
    twin: Change = nothing


PAIRS = {
    "handicap in all and in one": InPair(P2P, in_runs(P2P, 2), "NCCL_P2P_DISABLE in some runs only", P2P),
    "handicap in one run": InPair(nothing, in_runs(P2P, 3), "NCCL_P2P_DISABLE on one side only"),
    "handicap, and nothing known of the rest": InPair(
        NO_ENVIRONMENT,
        lambda result: (NO_ENVIRONMENT if result["run"] > 1 else P2P)(result),
        "NCCL_P2P_DISABLE on one side only",
        NO_ENVIRONMENT,
    ),
    "power cap in all and in one": InPair(
        lambda result: result.update(conditions=CAPPED),
        lambda result: result.update(conditions=CAPPED if result["run"] == 1 else conditions()),
        "power cap differs between the runs of one side",
        lambda result: result.update(conditions=CAPPED),
    ),
    "power cap of an unknown default in one run": InPair(
        lambda result: result.update(conditions=conditions()),
        lambda result: result.update(
            conditions=conditions(default_power_cap_watts=None, power_cap_watts=400.0 if result["run"] == 1 else 700.0)
        ),
        "power cap differs between the runs of one side",
        lambda result: result.update(conditions=conditions(default_power_cap_watts=None)),
    ),
    "power cap in the only record": InPair(
        nothing,
        in_runs(lambda result: result.update(conditions=CAPPED), 2),
        "power cap below the default on one side",
        in_runs(lambda result: result.update(conditions=conditions()), 2),
    ),
    "power cap beside unknown ones": InPair(
        lambda result: result.update(conditions=conditions(power_cap_watts=None)),
        lambda result: result.update(conditions=conditions(power_cap_watts=None if result["run"] > 1 else 400.0)),
        "power cap below the default on one side",
        lambda result: result.update(conditions=conditions(power_cap_watts=None)),
    ),
    "more machines": InPair(
        nothing,
        into("provenance", hosts=["x", "y"]),
        "the runs are spread over another number of machines: 1 against 2",
        lambda result: result["provenance"].update(hosts=[f"{result['platform']}-{name}" for name in "xy"]),
    ),
    "dropout on one side": InPair(
        ran(attention_dropout=0.1),
        nothing,
        "setting attention_dropout differs: 0.1 against off",
        ran(hidden_dropout=0.0),
    ),
    "equal losses": InPair(
        lambda result: result.update(loss_values=LOSSES),
        lambda result: result.update(loss_values=LOSSES),
        "100 losses are equal to the last digit on two vendors",
    ),
    "diverged in the middle": InPair(
        nothing,
        samples("loss_values", lambda place, loss: loss + 9 if 40 <= place < 60 else loss),
        "the loss stays above its first value in the middle of a run",
        samples("loss_values", lambda place, loss: loss + 9 if 40 <= place < 43 else loss),
    ),
    "a third, and its clock too short to prove it": InPair(
        clock(10),
        lambda result: (times(1 / 3)(result), clock(59)(result)),
        "most of the time of one side is in no step",
        lambda result: clock(10 if result["platform"] == "nvd" else 59)(result),
    ),
}


def verdicts(folder: Path, results: Sequence[Result]) -> list[dict[str, Any]]:
    for number, result in enumerate(results):
        (folder / f"train_{number:03}.json").write_text(json.dumps(result))
    compare.main([str(folder), "--format", "json"])
    return list(json.loads((folder / "compare.json").read_text())["verdicts"])


def sides_of(changes: Sequence[Change], model: str) -> Iterator[Result]:
    for (platform, seconds), change in zip((("nvd", 1.0), ("amd", 0.8)), changes, strict=True):
        for number in (1, 2, 3):
            result = run(platform, number, seconds + 1e-6 * (sum(map(ord, model)) % 997), host=f"{platform}-{model}")
            result["model"] = model
            change(result)
            yield result


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the verdicts of one `evaluate.compare` over all pairs and their twins, by name."""
    found = []
    for name, pair in PAIRS.items():
        found += sides_of((pair.nvd, pair.amd), name)
        found += sides_of((pair.twin, pair.twin), f"honest {name}")
    return {one["model"]: one for one in verdicts(tmp_path_factory.mktemp("pairs"), found)}


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_whose_evidence_disagrees_is_not_comparable_and_its_twin_is(
    judged: dict[str, dict[str, Any]], name: str
) -> None:
    fault, twin = judged[name], judged[f"honest {name}"]
    assert fault["verdict"] == "not_comparable"
    assert any(PAIRS[name].said in reason for reason in fault["reasons"]), fault["reasons"]
    assert twin["verdict"] == "faster", twin["reasons"]


def test_an_unknown_environment_is_unproven_and_never_not_set(judged: dict[str, dict[str, Any]]) -> None:
    certificate = judged["honest handicap, and nothing known of the rest"]["certificate"]
    (item,) = (one for one in certificate if one["name"].startswith("environment"))
    assert (item["name"], item["state"], item["a"]) == ("environment", "unknown", "not recorded")


def test_nodes_and_hosts_are_in_the_certificate(judged: dict[str, dict[str, Any]]) -> None:
    shown = {one["name"]: (one["a"], one["b"]) for one in judged["honest more machines"]["certificate"]}
    assert shown["nodes"] == ("2", "2") and shown["hosts"] == ("nvd-x, nvd-y", "amd-x, amd-y")
