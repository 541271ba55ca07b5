"""`evaluate.validate`: a number that does not follow from the raw samples or that no training has is rejected."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from sides import Result, both, failed_early, gpus, make_consistent, one_verdict, run, runs, validated, write

from evaluate.checks.entries import load_results
from evaluate.validate import main
from example import example_result

AS_FLOAT32 = struct.unpack("f", struct.pack("f", 1e-3))[0]
SLOW_DATA = "data: waiting for samples took 2.34 % of a step (limit 1 %); do something"


def summary(**values: Any) -> dict[str, Any]:
    return {f"performance_metrics__{key}": value for key, value in values.items()}


def waiting(share: float, *warnings: str, **changes: Any) -> dict[str, Any]:
    """Return changes to waits of `share` of each steady step of 0.5 s, and of 1 s in each warm-up step."""
    waits = [1.0] * 3 + [0.5 * share] * 7
    return {"data_wait_seconds": waits, "warnings": list(warnings)} | summary(data_wait_fraction=share) | changes


def of_rate(rate: float) -> dict[str, Any]:
    """Return changes to steps of 0.0125 s with this rate: 655360 tokens/s; over the stored 0.013 s 630154."""
    stored = dict.fromkeys((f"{key}_step_time_seconds" for key in ("avg", "min", "max")), 0.013)
    rates = {"tokens_per_second": rate, "tokens_per_second_per_gpu": rate, "steps_per_second": 80.0}
    return {"step_times": [0.1] * 3 + [0.0125] * 7} | summary(**stored, **rates)


# The example: 7 steady steps of 0.5 s, 64 sequences of 128 tokens on one device, so 16384 tokens/s.
REJECTED: list[tuple[dict[str, Any], str]] = [
    (summary(avg_step_time_seconds=0.502), "avg_step_time_seconds: stored 0.502, the raw"),
    (summary(min_step_time_seconds=0.4), "min_step_time_seconds"),
    (summary(max_step_time_seconds=2.0), "max_step_time_seconds"),
    (summary(std_step_time_seconds=0.1), "std_step_time_seconds"),
    (summary(tokens_per_second=65536.0), "tokens_per_second: stored 65536, the raw samples give"),
    (summary(tokens_per_second_per_gpu=16390.0), "tokens_per_second_per_gpu"),
    (summary(steps_per_second=0.5), "steps_per_second"),
    (of_rate(630153.846), "tokens_per_second_per_gpu: stored 630153.8, the raw samples give 655360"),
    (summary(warmup_steps_excluded=1), "warmup_steps_excluded: got 1 of 10 steps, wanted 3"),
    (summary(warmup_steps_excluded=10), "warmup_steps_excluded: got 10 of 10"),
    ({"training_config__gradient_accumulation": 4}, "MBS x DP x GA = 8 x 1 x 4 = 32"),
    ({"training_config__num_gpus": 2}, "DP x TP x PP x CP = 1 x 1 x 1 x 1 = 1"),
    ({"training_config__max_steps": 11}, "steps: got 10 steps, wanted each of 1 to 11"),
    ({"steps": [1, 2, 3, 4, 5, 6, 7, 8, 9, 11]}, "steps: got 10 steps, wanted each of 1 to 10"),
    ({"loss_values": [8.0] * 9 + [0.0]}, "loss_values: got 0.0"),
    ({"step_times": [2.0, 0.6, 0.55] + [0.5] * 6 + [0.0]}, "step_times: got 0.0 s"),
    ({"resolved_config__tp": 4}, "tp: asked 1, ran 4"),
    ({"resolved_config__precision": "fp8"}, "precision: asked 'fp32', ran 'fp8'"),
    ({"resolved_config__lr": 1.1e-3}, "lr: asked 0.001, ran 0.0011"),
    ({"resolved_config__init": "native"}, "init: asked 'equal', ran 'native'"),
    ({"fingerprint__epochs": 4.1}, "epochs: got 4.1, wanted at most 4"),
    # waits for data
    (waiting(0.0101), "warnings: a data_wait_fraction of 0.0101 is above the limit and none says so"),
    (waiting(0.0101, "data is on a slow disk"), "is above the limit and none says so"),
    (waiting(0.00987, **summary(data_wait_fraction=0.005)), "stored 0.005, the raw samples give 0.00987"),
    (waiting(0.00987, **summary(data_wait_fraction=0.00981)), "stored 0.00981, the raw samples give 0.00987"),
    (waiting(0.00987, data_wait_seconds=[-0.1] + [0.0] * 9), "data_wait_seconds: got -0.1 s, wanted 0 or more"),
    # numbers that no training has
    ({"step_times": [0.5] * 9 + [1e300]}, "step_times: got 1e+300, wanted a number from 0 to"),
    *(({"notes": [1, inner]}, f"notes{key}: got 1e+300") for inner, key in (([1e300], ""), ({"a": [1e300]}, ".a"))),
    *((both(**{key: 0}), f"{key}: got 0, wanted") for key in ("num_gpus", "global_batch_size", "sequence_length")),
    (both(micro_batch_size=0), "training_config.micro_batch_size: got 0, wanted"),
    (both(gradient_accumulation=-8), "training_config.gradient_accumulation: got -8"),
    (both(pp=1_000_000, num_gpus=1_000_000), "training_config.pp: got 1000000"),
    (both(pp=8, num_gpus=8), "got 8 pipeline stages for 4 layers"),
    (both(beta2=1.5), "training_config.beta2: got 1.5"),
    (both(max_steps=10**12), "training_config.max_steps: got 1000000000000"),
    (
        {"energy_metrics__joules": 1e-310, "energy_metrics__joules_per_token": 1e-310},
        "energy_metrics.joules: got 1e-310, wanted 1e-12 or more",
    ),
    ({"loss_values": [8.3, *[1e-310] * 9]}, "loss_values: got 1e-310"),
    ({"step_times": [2.0, *[3.2e7] * 9]}, "step_times: got 32000000.0"),
    ({"memory_metrics__peak_memory_allocated_gb": -1.0}, "memory_metrics.peak_memory_allocated_gb: got -1.0"),
    ({"gpu_info__total_memory_gb": 1e17}, "gpu_info.total_memory_gb: got 1e+17"),
    ({"run": 0}, "run: got 0, wanted"),
]
WARNED: list[tuple[dict[str, Any], str]] = [
    ({"fingerprint__epochs": 82.0, "training_config__allow_repeat": True}, "82 passes"),
    ({"fingerprint__epochs": 1.5}, "1.5 passes"),
    ({}, "repeat exactly, 7 in a row"),
    (summary(warmup_steps_excluded=5), "the stored summary leaves out 5 of 10 steps, the rule is"),
    (waiting(0.0234, SLOW_DATA, "another"), f"{SLOW_DATA}; warning: another"),
    (
        {"resolved_config__init": None, "resolved_config__reasons": {"init": "x", "sliding_window": "x"}},
        "not read back from the framework: init",
    ),
]
TWICE = [2.0, 0.6, 0.55, 0.5, 0.5, 0.51, 0.51, 0.5, 0.5, 0.49]
THIRDS = [0.001 / 3 if place % 2 else 0.001 / 7 for place in range(10)]
"""Waits of 1/3 and 1/7 ms in turn: 4/3 + 3/7 = 37/21 ms of the 3.5 s."""
HONEST: list[tuple[dict[str, Any], str]] = [
    (of_rate(655360.0), "tokens_per_second"),
    ({"resolved_config__lr": AS_FLOAT32}, "lr"),
    ({"framework": "prim", "resolved_config__init": "native"}, "init"),
    ({"fingerprint__epochs": 1.0}, "passes"),
    (waiting(0.01), "data"),
    (
        {"data_wait_seconds": [None] * 10, "source": "log"}
        | summary(data_wait_fraction=None, reasons={"data_wait_fraction": "not in the log"}),
        "data",
    ),
    ({"data_wait_seconds": THIRDS} | summary(data_wait_fraction=0.000503), "data"),
    (summary(avg_step_time_seconds=0.5004, max_step_time_seconds=0.4996), "step_time"),
    (both(micro_batch_size=4, gradient_accumulation=16), "batch"),
    (both(clip_grad=0.0), "clip"),
    (both(clip_grad=1e9), "clip"),
    (both(beta2=1.0), "beta2"),
    ({"step_times": [40.0, 23.0, 0.55] + [0.5] * 7, "provenance__finished_utc": "2026-11-21T00:01:10+00:00"}, "warmup"),
]
"""Changes that no rule may mention, with a word of the rule that is near."""
CASES = [*REJECTED, *WARNED, *HONEST]


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    hosts = [{"run": place, "provenance__host": f"h{place}"} for place in range(1, len(CASES) + 1)]
    results = [example_result(**(host | change)) for host, (change, _) in zip(hosts, CASES, strict=True)]
    return validated(tmp_path_factory.mktemp("results"), results)


@pytest.mark.parametrize("place", range(len(CASES)), ids=[str(case)[:60] for case in CASES])
def test_a_number_that_cannot_be_is_rejected_and_one_at_the_edge_is_not(
    findings: list[tuple[str, str]], place: int
) -> None:
    verdict, reason = findings[place]
    assert (verdict == "REJECTED") == (CASES[place] in REJECTED), reason
    assert ("".join(CASES[place][1].split()) in reason) == (CASES[place] not in HONEST), reason


def test_rounding_of_summary_and_samples_is_allowed(tmp_path: Path) -> None:
    # steady steps of 0.1 and 0.0666... s in turn, which neither six digits nor three decimals hold exactly
    long, short = 0.1, 0.2 / 3
    mean = (4 * long + 3 * short) / 7
    deviation = ((4 * (long - mean) ** 2 + 3 * (short - mean) ** 2) / 6) ** 0.5
    times = {"avg": mean, "min": short, "max": long, "std": deviation}
    rates = {"tokens_per_second": 8192 / mean, "tokens_per_second_per_gpu": 8192 / mean, "steps_per_second": 1 / mean}
    stored = {f"{key}_step_time_seconds": value for key, value in times.items()} | rates
    samples = [float(f"{time:.6g}") for time in (2.0, 0.6, 0.55, long, short, long, short, long, short, long)]
    result = example_result(step_times=samples, **summary(**{key: round(value, 3) for key, value in stored.items()}))
    assert validated(tmp_path, [result])[0][0] == "valid"


def test_the_result_of_a_run_that_failed_early_is_valid_and_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [failed_early(one, provenance__host=one) for one in ("oom", "failed", "timeout", "nan")]
    found = validated(tmp_path, results)
    assert {verdict for verdict, _ in found} == {"valid"} and not any("warning" in reason for _, reason in found)
    assert main([str(tmp_path)]) == 1
    assert "out of memory" in capsys.readouterr().out
    energy = {"energy_metrics__joules": -1.0, "energy_metrics__avg_watts": 500.0}
    ((verdict, reason),) = validated(tmp_path / "energy", [failed_early(**energy)])
    assert verdict == "REJECTED" and "energy:got" in reason, "it was sampled although no step ended"


def test_the_exit_code_is_0_when_all_are_ok_and_1_when_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, [example_result()])
    write(tmp_path / "label", [example_result(run=2)])
    assert main([str(tmp_path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["cpu/mega", "llama", "tiny", "equal", "2", "ok", "valid"] in [row[:7] for row in rows]
    (tmp_path / "train_half.json").write_text('{"schema_version": 1,')
    assert main([str(tmp_path)]) == 1


def test_colour_is_for_words_of_the_suite_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, [example_result(label="\x1b[2J\u202e")])
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    main([str(tmp_path)])
    output = capsys.readouterr().out
    assert "\x1b[32mvalid\x1b[0m" in output and "\\x1b[2J\\u202e" in output, "a name of a result is no colour"


# A copied run counts once, and runs that shared their GPUs do not count.

EQUAL = run("nvd")["loss_values"]


def at(result: Result, start: str, end: str, **more: Any) -> Result:
    clock = {"started_utc": f"2026-11-21T{start}+00:00", "finished_utc": f"2026-11-21T{end}+00:00"}
    result["provenance"] |= clock | more
    return result


def twice(first: dict[str, Any], second: dict[str, Any], platform: str = "nvd") -> list[Result]:
    """Return a run of two minutes and one that begins a minute later, with these facts of their provenance."""
    one, other = run("nvd", 1, **gpus(4)), run(platform, 2, **gpus(4))
    return [at(one, "01:00:00", "01:02:00", **first), at(other, "01:01:00", "01:03:00", **second)]


def visible(indices: str) -> dict[str, Any]:
    return {"environment": {"CUDA_VISIBLE_DEVICES": indices}}


def copied(platform: str = "nvd", number: int = 2) -> list[Result]:
    """Return a run, and one with its step times."""
    other = run(platform, number)
    other["step_times"] = run("nvd")["step_times"]
    make_consistent(other)
    return [run("nvd"), other]


COPY, OVERLAP = "acopiedrunisnosecondrun", "intimeon"
SEVERAL: dict[str, tuple[list[Result], list[str]]] = {
    "a copy": (copied(), ["", COPY]),
    "a copy on another platform": (copied("amd"), ["", COPY]),
    "a copy with the clock of the first": ([run("nvd"), run("nvd") | {"run": 2, "attempt": 2}], ["", COPY]),
    "honest runs": (runs("nvd", 1.0), ["", "", ""]),
    "equal losses of one seed": ([run("nvd", number) | {"loss_values": EQUAL} for number in (1, 2, 3)], ["", "", ""]),
    "the same file twice": ([run("nvd"), run("nvd")], ["", ""]),
    "at one time": (twice({}, {}), [OVERLAP, OVERLAP]),
    "a failed attempt beside it": (
        [twice({}, {})[0] | {"status": "failed", "reason": "ended by SIGKILL"}, twice({}, {})[1]],
        [OVERLAP, OVERLAP],
    ),
    "in one second": (
        [at(run("nvd", 1), "01:00:00", "01:02:00"), at(run("nvd", 2), "01:02:00", "01:04:00")],
        ["", ""],
    ),
    "one that lasts beyond the others": (
        [
            at(run("nvd", number), f"01:{start}:00", f"01:{end}:00")
            for number, (start, end) in enumerate([("00", "30"), ("05", "07"), ("20", "22"), ("40", "42")], 1)
        ],
        [OVERLAP, OVERLAP, OVERLAP, ""],
    ),
    "on another machine": (twice({}, {"host": "nvd-2"}), ["", ""]),
    "machines of one name": (twice({"host": "node0"}, {"host": "node0"}, "amd"), ["", ""]),
    "a node in common": (twice({"hosts": ["n1", "n2"]}, {"host": "n3", "hosts": ["n3", "n2"]}), [OVERLAP, OVERLAP]),
    "other GPUs": (twice(visible("0,1,2,3"), visible("4,5,6,7")), ["", ""]),
    "a GPU in common": (twice(visible("0,1,2,3"), visible("3,4,5,6")), [OVERLAP, OVERLAP]),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_copies_and_runs_that_shared_their_gpus_are_rejected_and_honest_runs_are_not(tmp_path: Path, name: str) -> None:
    results, wanted = SEVERAL[name]
    for (verdict, reason), words in zip(validated(tmp_path, results), wanted, strict=True):
        assert (verdict == "REJECTED", words in reason) == (bool(words), True), reason


def test_the_copies_of_a_run_leave_too_few_runs_for_a_word(tmp_path: Path) -> None:
    copies = [*copied(), copied(number=3)[1]]
    verdict = one_verdict(tmp_path, [*copies, *runs("amd", 0.8)])
    assert (verdict["verdict"], verdict["runs"]) == ("undecided", [1, 3])


def test_of_the_results_of_the_first_gpu_only_those_that_trained_alone_and_to_the_end_count() -> None:
    """The `full_` jobs trained one after the other; the others five at a time, as their times of day show."""
    found = load_results(sorted((ROOT / "tests" / "h200" / "results").glob("*.json")))
    entries = {entry.path.name.partition("__")[0]: entry for entry in found.entries}
    assert len(entries) == 15 and not found.unreadable
    full = {"full_fp8", "full_local", "full_sl2048_hf", "full_te8192"}
    assert {name for name, entry in entries.items() if entry.is_counted} == full
    failed = {"a_te_orig", "a_te", "a_fp8", "b_fp8cur", "b_moe_te", "full_sl2048_te_failed"}
    assert {name for name, entry in entries.items() if entry.result["status"] == "failed"} == failed
    beside_others = entries.keys() - full - {"full_sl2048_te_failed"}
    for name, entry in entries.items():
        assert any("in time on vm" in line for line in entry.findings.rejections) == (name in beside_others), name
