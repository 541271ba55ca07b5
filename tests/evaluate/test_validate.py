from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from evaluate.checks.entries import Findings, check_result, load_results
from evaluate.validate import main
from tests.support.example import example_result
from utils.results import schema, store


def write(folder: Path, **changes: Any) -> Path:
    result = example_result(**changes)
    name = store.result_name(result["platform"], result["framework"], result["model"], result["run"])
    store.write(result, folder / name)
    return folder / name


def without_measurements(status: str = "oom") -> dict[str, Any]:
    result = example_result(status=status, reason="out of memory in step 1")
    for key in schema.SAMPLES:
        result[key] = []
    for section in ("performance_metrics", "memory_metrics", "resolved_config", "fingerprint"):
        result[section] = {"reasons": {"*": "the run ended before"}} | dict.fromkeys(schema.SECTIONS[section])
    return result


def test_consistent_result_is_not_rejected() -> None:
    assert check_result(example_result()).rejections == ()


# The example: 7 steady steps of 0.5 s, 64 sequences of 128 tokens on one device, so 16384 tokens/s.
@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"performance_metrics__avg_step_time_seconds": 0.502}, "avg_step_time_seconds: stored 0.502, the raw"),
        ({"performance_metrics__min_step_time_seconds": 0.4}, "min_step_time_seconds"),
        ({"performance_metrics__max_step_time_seconds": 2.0}, "max_step_time_seconds"),
        ({"performance_metrics__std_step_time_seconds": 0.1}, "std_step_time_seconds"),
        ({"performance_metrics__tokens_per_second": 65536.0}, "tokens_per_second: stored 65536, the raw samples give"),
        ({"performance_metrics__tokens_per_second_per_gpu": 16390.0}, "tokens_per_second_per_gpu"),
        ({"performance_metrics__steps_per_second": 0.5}, "steps_per_second"),
        ({"performance_metrics__warmup_steps_excluded": 1}, "warmup_steps_excluded: got 1 of 10 steps, wanted 3"),
        ({"performance_metrics__warmup_steps_excluded": 10}, "warmup_steps_excluded: got 10 of 10"),
        ({"training_config__gradient_accumulation": 4}, "MBS x DP x GA = 8 x 1 x 4 = 32"),
        ({"training_config__num_gpus": 2}, "DP x TP x PP x CP = 1 x 1 x 1 x 1 = 1"),
        ({"training_config__max_steps": 11}, "steps: got 10 steps, wanted each of 1 to 11"),
        ({"steps": [1, 2, 3, 4, 5, 6, 7, 8, 9, 11]}, "steps: got 10 steps, wanted each of 1 to 10"),
        ({"loss_values": [8.0] * 9 + [0.0]}, "loss_values: got 0.0"),
        ({"step_times": [2.0, 0.6, 0.55] + [0.5] * 6 + [0.0]}, "step_times: got 0.0 s"),
        ({"resolved_config__tp": 4}, "tp: asked 1, ran 4"),
        ({"resolved_config__precision": "fp8"}, "precision: asked 'fp32', ran 'fp8'"),
        ({"resolved_config__lr": 1.1e-3}, "lr: asked 0.001, ran 0.0011"),
        ({"fingerprint__epochs": 4.1}, "epochs: got 4.1, wanted at most 4"),
    ],
)
def test_inconsistent_result_is_rejected(changes: dict[str, Any], finding: str) -> None:
    assert any(finding in line for line in check_result(example_result(**changes)).rejections)


@pytest.mark.parametrize(("framework", "is_rejected"), [("mega", True), ("prim", False)])
def test_native_weights_are_rejected_only_for_frameworks_that_accept_given_ones(
    framework: str, is_rejected: bool
) -> None:
    found = check_result(example_result(framework=framework, resolved_config__init="native")).rejections
    assert any("init: asked 'equal', ran 'native'" in line for line in found) == is_rejected


def test_throughput_of_another_sequence_length_is_rejected() -> None:
    # computed with 512 tokens a sequence while 128 were trained
    result = example_result(
        performance_metrics__tokens_per_second=65536.0, performance_metrics__tokens_per_second_per_gpu=65536.0
    )
    assert len(check_result(result).rejections) == 2


def test_rounding_of_summary_and_samples_is_allowed(tmp_path: Path) -> None:
    # steady steps of 0.1 and 0.0666... s in turn, which neither six digits nor three decimals hold exactly
    long, short = 0.1, 0.2 / 3
    mean = (4 * long + 3 * short) / 7
    deviation = ((4 * (long - mean) ** 2 + 3 * (short - mean) ** 2) / 6) ** 0.5
    changes = {
        "avg_step_time_seconds": mean,
        "min_step_time_seconds": short,
        "max_step_time_seconds": long,
        "std_step_time_seconds": deviation,
        "tokens_per_second": 8192 / mean,
        "tokens_per_second_per_gpu": 8192 / mean,
        "steps_per_second": 1 / mean,
    }
    times = [2.0, 0.6, 0.55, long, short, long, short, long, short, long]
    path = write(tmp_path, step_times=times, **{f"performance_metrics__{key}": v for key, v in changes.items()})
    assert check_result(store.read(path)).rejections == ()


def test_throughput_from_the_rounded_average_is_rejected() -> None:
    # 0.0125 s a step is 655360 tokens/s; over the stored 0.013 s it would be 630154
    stored = {"avg": 0.013, "min": 0.013, "max": 0.013}
    changes: dict[str, Any] = {f"performance_metrics__{key}_step_time_seconds": value for key, value in stored.items()}
    changes |= {"performance_metrics__steps_per_second": 80.0, "step_times": [0.1] * 3 + [0.0125] * 7}
    good = {f"performance_metrics__tokens_per_second{end}": 655360.0 for end in ("", "_per_gpu")}
    bad = {f"performance_metrics__tokens_per_second{end}": 630153.846 for end in ("", "_per_gpu")}
    assert check_result(example_result(**changes, **good)).rejections == ()
    assert len(check_result(example_result(**changes, **bad)).rejections) == 2


def test_setting_rounded_to_float32_is_equal() -> None:
    as_float32 = struct.unpack("f", struct.pack("f", 1e-3))[0]
    assert as_float32 != 1e-3
    assert check_result(example_result(resolved_config__lr=as_float32)).rejections == ()


def test_repeated_data_is_allowed_only_on_request() -> None:
    findings = check_result(example_result(fingerprint__epochs=82.0, training_config__allow_repeat=True))
    assert findings.rejections == ()
    assert any("82 passes" in line for line in findings.warnings)


def test_second_epoch_is_a_warning() -> None:
    assert any("1.5 passes" in line for line in check_result(example_result(fingerprint__epochs=1.5)).warnings)
    assert not any("passes" in line for line in check_result(example_result(fingerprint__epochs=1.0)).warnings)


def test_exactly_repeated_step_times_are_a_warning_from_three_on() -> None:
    repeated = "repeat exactly, {} in a row"
    assert any(repeated.format(7) in line for line in check_result(example_result()).warnings)
    twice = [2.0, 0.6, 0.55, 0.5, 0.5, 0.51, 0.51, 0.5, 0.5, 0.49]
    assert not any("repeat" in line for line in check_result(example_result(step_times=twice)).warnings)


def waiting(share: float, *warnings: str) -> dict[str, Any]:
    """Return the example with waits of `share` of each steady step of 0.5 s, and of 1 s in each warm-up step."""
    waits = [1.0] * 3 + [0.5 * share] * 7
    changes = {"data_wait_seconds": waits, "performance_metrics__data_wait_fraction": share}
    return example_result(warnings=list(warnings), **changes)


SLOW_DATA = "data: waiting for samples took 2.34 % of a step (limit 1 %); do something"


def test_waiting_for_data_up_to_one_percent_is_no_finding() -> None:
    findings = check_result(waiting(0.01))
    assert findings.rejections == ()
    assert not any("data" in line for line in findings.warnings)


def test_warnings_of_the_trainer_are_among_the_warnings() -> None:
    findings = check_result(waiting(0.0234, SLOW_DATA, "another"))
    assert findings.rejections == ()
    assert findings.warnings[:2] == (SLOW_DATA, "another")


@pytest.mark.parametrize("warnings", [(), ("data is on a slow disk",)])
def test_waiting_for_data_above_one_percent_without_its_warning_is_rejected(warnings: tuple[str, ...]) -> None:
    (line,) = check_result(waiting(0.0101, *warnings)).rejections
    assert line == "warnings: a data_wait_fraction of 0.0101 is above the limit and none says so"


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"performance_metrics__data_wait_fraction": 0.005}, "stored 0.005, the raw samples give 0.00987"),
        ({"performance_metrics__data_wait_fraction": 0.00981}, "stored 0.00981, the raw samples give 0.00987"),
        ({"performance_metrics__data_wait_fraction": None}, "stored None, the raw samples give 0.00987"),
        ({"data_wait_seconds": [0.0] * 9 + [None]}, "stored 0.00987, the raw samples give None"),
        ({"data_wait_seconds": [-0.1] + [0.0] * 9}, "data_wait_seconds: got -0.1 s, wanted 0 or more"),
    ],
)
def test_share_that_does_not_follow_from_the_waits_is_rejected(changes: dict[str, Any], finding: str) -> None:
    result = waiting(0.00987)
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            result[section][key] = value
        else:
            result[section] = value
    assert any(finding in line for line in check_result(result).rejections)


def test_rounding_of_the_share_is_allowed_and_an_unknown_share_is_no_finding(tmp_path: Path) -> None:
    # waits of 1/3 and 1/7 ms in turn: 4/3 + 3/7 = 37/21 ms of 3.5 s
    waits = [0.001 / 3 if place % 2 else 0.001 / 7 for place in range(10)]
    share = (4 * 0.001 / 3 + 3 * 0.001 / 7) / 3.5
    path = write(tmp_path, data_wait_seconds=waits, performance_metrics__data_wait_fraction=share)
    stored = store.read(path)
    assert stored["performance_metrics"]["data_wait_fraction"] == 0.000503
    assert check_result(stored).rejections == ()
    unknown = example_result(data_wait_seconds=[None] * 10, performance_metrics__data_wait_fraction=None)
    assert check_result(unknown).rejections == ()


def test_setting_that_was_not_read_back_is_a_warning() -> None:
    result = example_result(resolved_config__init=None)
    result["resolved_config"]["reasons"]["init"] = "the framework does not say"
    findings = check_result(result)
    assert findings.rejections == ()
    assert "not read back from the framework: init" in findings.warnings


@pytest.mark.parametrize("status", ["oom", "failed", "timeout", "nan"])
def test_result_of_a_run_that_failed_early_is_valid(status: str) -> None:
    result = without_measurements(status)
    assert store.problems(result) == []
    assert check_result(result) == Findings()


@pytest.mark.parametrize("value", [10**400, 1e300])
def test_number_beyond_arithmetic_is_rejected_without_a_traceback(value: float) -> None:
    result = example_result(step_times=[0.5] * 9 + [value])
    assert check_result(result).rejections == (
        "step_times: got a number beyond 1e+18, which no measurement or setting is",
    )


def test_command_exits_0_when_all_are_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    write(tmp_path / "label", run=2)
    assert main([str(tmp_path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["cpu/mega", "llama", "tiny", "equal", "2", "ok", "valid"] in [row[:7] for row in rows]


def test_command_exits_1_and_shows_what_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    write(tmp_path, run=2, resolved_config__tp=4)
    assert main([str(tmp_path)]) == 1
    row = next(line for line in capsys.readouterr().out.splitlines() if "REJECTED" in line)
    assert "tp: asked 1, ran 4" in row


def test_command_exits_1_when_a_run_is_not_ok(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    store.write(without_measurements() | {"run": 2}, tmp_path / "train_2.json")
    assert main([str(tmp_path)]) == 1
    assert "out of memory" in capsys.readouterr().out


def test_file_that_is_not_a_result_is_a_rejected_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    (tmp_path / "train_half.json").write_text('{"schema_version": 1,')
    assert main([str(tmp_path)]) == 1
    row = next(line for line in capsys.readouterr().out.splitlines() if "train_half.json" in line)
    assert "REJECTED" in row


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_zero_results_is_a_failure(tmp_path: Path, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / folder)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1


def test_control_characters_of_a_result_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, label="\x1b[2J\u202e")
    main([str(tmp_path)])
    output = capsys.readouterr().out
    assert "\\x1b[2J\\u202e" in output
    assert "\x1b" not in output


def test_colour_is_only_for_terminals_without_no_color(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    main([str(tmp_path)])
    assert "\x1b[32mvalid\x1b[0m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main([str(tmp_path)])
    assert "\x1b" not in capsys.readouterr().out


def test_check_does_not_change_the_result() -> None:
    result = example_result()
    before = json.dumps(result)
    check_result(result)
    assert json.dumps(result) == before


def test_a_copied_run_is_rejected(tmp_path: Path) -> None:
    times = [2.0, 0.6, 0.55, *[0.5 + 0.001 * number for number in range(-3, 4)]]
    summary = {"max": 0.503, "min": 0.497, "std": 0.0021602}
    changes: dict[str, Any] = {f"performance_metrics__{key}_step_time_seconds": value for key, value in summary.items()}
    for run, last in ((1, 0.503), (2, 0.503), (3, 0.5031)):
        write(tmp_path, run=run, step_times=[*times[:-1], last], **changes)
    found = [entry.findings.rejections for entry in load_results([tmp_path]).entries]
    copied = "step_times: those of train_cpu_mega_llama_run1.json to the last digit; a copied run is no second run"
    assert [copied in rejections for rejections in found] == [False, True, False]
