"""An acceptance test passes a job only on proof: its interval lies above the least share of a usable baseline."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from pathlib import Path

import pytest
from scipy import stats

from evaluate import compare
from evaluate.acceptance import command
from evaluate.acceptance.deciding import FAIL, PASS, UNKNOWN
from evaluate.metrics.throughput import tokens_per_second_per_gpu
from tests.support import bundles
from tests.support.sides import run
from utils.housekeeping import footprint
from utils.results import store

PUBLISHED_H100 = 10_682
"""tokens/s/GPU of Llama 3 8B in BF16 on 8 H100 at 8192 tokens: NVIDIA dgxc-benchmarking, 12.27 s a step of GBS 128."""
STEP = 64 * 8192 / 8 / PUBLISHED_H100
"""Seconds of a step of GBS 64 at that rate."""
LLAMA = {
    "model_size": "full",
    "training_config__sequence_length": 8192,
    "resolved_config__sequence_length": 8192,
    "resolved_config__norm_eps": 1e-5,
}


def save(folder: Path, *results):
    for result in results:
        name = f"train_{result['platform']}_{result['framework']}_{result['model']}_run{result['run']}.json"
        store.write(result, folder / f"{result['provenance']['host']}_{result['label']}" / name)
    return folder


def runs(seconds: float, count: int = 5, platform: str = "nvd", **changes):
    return [run(platform, number, seconds, **changes) for number in range(1, count + 1)]


def outcome(capsys, *arguments):
    """Return the exit code, the words of the lines by framework and machine, and the text."""
    code = compare.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    lines = [line for line in printed.out.splitlines() if line.split()[0] in (PASS, FAIL, UNKNOWN)]
    return code, [line.split()[0] for line in lines], printed.out + printed.err


@pytest.fixture
def baseline(tmp_path):
    return save(tmp_path / "baseline", *runs(1.0, host="reference"))


# --- published figures ---


@pytest.mark.parametrize(
    ("share", "word", "code"), [(0.98, PASS, 0), (0.90, FAIL, 1), (0.951, UNKNOWN, 3), (0.949, UNKNOWN, 3)]
)
def test_the_whole_interval_decides_against_the_published_figure(tmp_path, capsys, share, word, code):
    results = runs(STEP / share, **LLAMA)
    logs = [math.log(tokens_per_second_per_gpu(result)) for result in results]
    half = stats.t.ppf(1 - 0.04 / 2, 4) * statistics.stdev(logs) / math.sqrt(5)
    low, high = (100 * math.exp(statistics.fmean(logs) + sign * half) / PUBLISHED_H100 for sign in (-1, 1))
    if word == UNKNOWN:
        assert low < 95 < high, "the case is what it is meant to be"
    save(tmp_path / "in", *results)
    got, words, text = outcome(capsys, tmp_path / "in", "--against", "published")
    assert (got, words) == (code, [word])
    assert f"({low:,.1f} to {high:,.1f}) % of 10,682 (NVIDIA dgxc-benchmarking" in text and "2025-06-09" in text


def test_the_least_share_is_the_users(tmp_path, capsys):
    save(tmp_path / "in", *runs(STEP / 0.90, **LLAMA))
    assert outcome(capsys, tmp_path / "in", "--against", "published", "--at-least", "88")[:2] == (0, [PASS])
    assert outcome(capsys, tmp_path / "in", "--against", "published", "--at-least", "92")[:2] == (1, [FAIL])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"platform": "amd"}, "410 TFLOP/s as logged, without its formula"),
        ({"model_size": "tiny"}, "no figure of llama tiny"),
        ({"training_config__num_gpus": 4, "training_config__dp": 4, "resolved_config__num_gpus": 4,
          "resolved_config__dp": 4, "training_config__gradient_accumulation": 16,
          "resolved_config__gradient_accumulation": 16}, "on 4 x NVIDIA H100"),
        ({"gpu_info__device_name": "A new accelerator"}, "the device is not known here"),
        ({"resolved_config__parameter_count": None, "resolved_config__reasons": {"parameter_count": "from a log",
          "sliding_window": "from a log"}, "source": "log"},
         "do not prove their model"),
    ],
)  # fmt: skip
def test_without_a_usable_figure_a_job_is_unknown_and_never_0(tmp_path, capsys, changes, reason):
    changes = dict(changes)
    platform = changes.pop("platform", "nvd")
    save(tmp_path / "in", *runs(2 * STEP, platform=platform, **{**LLAMA, **changes}))
    code, words, text = outcome(capsys, tmp_path / "in", "--against", "published")
    assert (code, words) == (3, [UNKNOWN]) and reason in text, text


# --- a baseline of one's own ---


@pytest.mark.parametrize(("seconds", "word", "code"), [(1.01, PASS, 0), (1.10, FAIL, 1), (1.0526, UNKNOWN, 3)])
def test_a_job_is_tested_against_the_same_job_of_another_folder_or_archive(
    tmp_path, baseline, capsys, seconds, word, code
):
    save(tmp_path / "new", *runs(seconds, host="new"))
    assert outcome(capsys, tmp_path / "new", "--against", baseline)[:2] == (code, [word])


def test_an_archive_is_a_baseline_as_its_folder_is(tmp_path, capsys):
    folder = tmp_path / "ours"
    footprint.mark(folder, footprint.OUTPUT)
    for result in bundles.sides({"nvd": 1.0}, runs=4):
        bundles.write_run(folder, result)
    shutil.move(bundles.pack(folder), tmp_path / "ours.zip")
    save(tmp_path / "new", *runs(0.99, host="new"))
    assert outcome(capsys, tmp_path / "new", "--against", tmp_path / "ours.zip")[:2] == (0, [PASS])
    assert outcome(capsys, tmp_path / "ours.zip", "--against", tmp_path / "new")[:2] == (0, [PASS])


def test_one_slow_machine_is_not_hidden_by_the_fast_ones(tmp_path, baseline, capsys):
    for host, seconds in (("a", 0.99), ("b", 0.98), ("c", 1.12)):
        save(tmp_path / "new", *runs(seconds, host=host))
    code, words, text = outcome(capsys, tmp_path / "new", "--against", baseline)
    assert (code, words) == (1, [FAIL, PASS, PASS])
    assert " on c: " in text.splitlines()[0]


def test_a_job_that_nobody_measured_fails(tmp_path, baseline, capsys):
    save(baseline, *runs(1.02, host="reference", framework="hf", resolved_config__layer_implementation="hf_llama"))
    save(tmp_path / "new", *runs(0.99, host="new"))
    code, words, text = outcome(capsys, tmp_path / "new", "--against", baseline)
    assert (code, words) == (1, [FAIL, PASS])
    assert "no result of it was given" in text.splitlines()[0] and " hf llama " in text.splitlines()[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"platform": "amd"}, "device AMD Instinct MI300X, baseline NVIDIA H100"),
        ({"training_config__global_batch_size": 128, "resolved_config__global_batch_size": 128}, "GBS 128"),
        ({"training_config__micro_batch_size": 2, "resolved_config__micro_batch_size": 2}, "MBS 2"),
        ({"fingerprint__dataset_bin_sha256": "0" * 64}, "data"),
        ({"resolved_config__attention_backend": "another"}, "attention"),
        ({"resolved_config__parameter_dtype": None, "resolved_config__reasons": {"parameter_dtype": "not shown",
          "sliding_window": "none"}}, "parameter type"),
        ({"model": "qwen", "resolved_config__qkv_bias": True, "resolved_config__norm_eps": 1e-6,
          "resolved_config__rope_base": 1e6}, "no job of mega qwen"),
    ],
)  # fmt: skip
def test_another_device_setting_or_work_is_unknown_and_names_the_difference(
    tmp_path, baseline, capsys, changes, reason
):
    changes = dict(changes)
    platform = changes.pop("platform", "nvd")
    save(tmp_path / "new", *runs(0.9, platform=platform, host="new", **changes))
    code, words, text = outcome(capsys, tmp_path / "new", "--against", baseline)
    assert PASS not in words and UNKNOWN in words and code in (1, 3)
    assert reason in text, text


@pytest.mark.parametrize(("count", "reason"), [(1, "a single run"), (2, "wanted at least 3")])
def test_too_few_runs_pass_nothing(tmp_path, baseline, capsys, count, reason):
    save(tmp_path / "new", *runs(0.8, count, host="new"))
    code, words, text = outcome(capsys, tmp_path / "new", "--against", baseline)
    assert (code, words) == (3, [UNKNOWN]) and reason in text, text


def test_a_failed_run_fails_its_job_and_an_invalid_one_forbids_a_pass(tmp_path, baseline, capsys):
    failed = run("nvd", 6, 0.9, host="new", status="oom", reason="out of memory")
    save(tmp_path / "failed", *runs(0.9, host="new"), failed)
    code, words, text = outcome(capsys, tmp_path / "failed", "--against", baseline)
    assert (code, words) == (1, [FAIL]) and "run 6 is not ok (oom): out of memory" in text
    invalid = run("nvd", 6, 0.9, host="new")
    invalid["performance_metrics"]["tokens_per_second_per_gpu"] = 5.0
    save(tmp_path / "invalid", *runs(0.9, host="new"), invalid)
    code, words, text = outcome(capsys, tmp_path / "invalid", "--against", baseline)
    assert (code, words) == (3, [UNKNOWN]) and "run 6 is invalid" in text
    save(tmp_path / "only", failed)
    assert outcome(capsys, tmp_path / "only", "--against", baseline)[:2] == (1, [FAIL])


def test_a_failure_before_the_host_was_known_belongs_to_its_job(tmp_path, baseline, capsys):
    empty = dict.fromkeys(store.SECTIONS["gpu_info"]) | {"reasons": {"*": "the run ended before"}}
    early = run("nvd", 6, 0.9, status="failed", reason="no GPU")
    early["gpu_info"] = empty
    early["provenance"]["host"] = None
    early["provenance"]["reasons"] = early["provenance"]["reasons"] | {"host": "the run ended before"}
    save(tmp_path / "new", *runs(0.9, host="new"), early)
    code, words, text = outcome(capsys, tmp_path / "new", "--against", baseline)
    assert (code, words) == (1, [FAIL]) and "run 6 is not ok (failed): no GPU" in text


def test_a_folder_against_itself_passes_nothing(tmp_path, baseline, capsys):
    code, words, text = outcome(capsys, baseline, "--against", baseline)
    assert (code, words) == (3, [UNKNOWN]) and "no measurement of" in text
    shutil.copytree(baseline, tmp_path / "copy")
    assert outcome(capsys, tmp_path / "copy", "--against", baseline)[:2] == (3, [UNKNOWN])


def test_a_baseline_without_a_valid_run_is_unknown(tmp_path, capsys):
    save(tmp_path / "bad", *(run("nvd", n, 1.0, host="x", status="nan", reason="loss nan") for n in (1, 2, 3)))
    save(tmp_path / "new", *runs(0.9, host="new"))
    code, words, text = outcome(capsys, tmp_path / "new", "--against", tmp_path / "bad")
    assert (code, words) == (3, [UNKNOWN]) and "no valid run" in text


def test_an_unreadable_result_among_those_tested_is_no_pass(tmp_path, baseline, capsys):
    save(tmp_path / "new", *runs(0.9, host="new"))
    (tmp_path / "new" / "train_x.json").write_text("{")
    code, words, text = outcome(capsys, tmp_path / "new", "--against", baseline)
    assert (code, words) == (3, [PASS]) and "train_x.json" in text


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["{new}", "--against", "nowhere"], "wanted published, or a folder"),
        (["{new}", "--against", ""], "got an empty text"),
        (["{new}", "--against", "{empty}"], "--against: "),
        (["{new}", "--against", "{broken}"], "--against: "),
        (["{empty}", "--against", "published"], "got no result"),
        (["{new}", "--against", "published", "--by", "platform"], "--by: has no meaning with --against"),
        (["{new}", "--against", "published", "--format", "csv"], "--format: has no meaning with --against"),
        (["{new}", "--against", "published", "--at-least", "0.95"], "e.g. 95"),
        (["{new}", "--against", "published", "--at-least", "nan"], "e.g. 95"),
        (["{new}", "--at-least", "95"], "without --against"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path, capsys, arguments, wanted):
    save(tmp_path / "new", *runs(1.0, 1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "train_x.json").write_text("[]")
    places = {name: tmp_path / name for name in ("new", "empty", "broken")}
    try:
        code = compare.main([argument.format(**places) for argument in arguments])
    except SystemExit as left:
        code = left.code
    error = capsys.readouterr().err
    assert code == 2 and error.startswith("error: ") and error.count("\n") == 1 and wanted in error, error


def test_the_decisions_are_written_where_output_is_given_and_nowhere_else(tmp_path, baseline, capsys):
    new = save(tmp_path / "new", *runs(1.01, host="new"))
    before = sorted(tmp_path.rglob("*"))
    assert outcome(capsys, new, "--against", baseline)[0] == 0
    assert sorted(tmp_path.rglob("*")) == before
    for _ in range(2):
        assert outcome(capsys, new, "--against", baseline, "--output", tmp_path / "out")[0] == 0
    found = json.loads((tmp_path / "out" / command.FILE).read_text())
    (one,) = found["decisions"]
    assert (found["at_least_percent"], one["decision"], one["runs"], one["machine"]) == (95, PASS, 5, "new")
    rates = [[tokens_per_second_per_gpu(r) for r in side] for side in (runs(1.01, host="new"), runs(1.0, host="r"))]
    share = 100 * statistics.geometric_mean(rates[0]) / statistics.geometric_mean(rates[1])
    assert one["share_percent"]["value"] == pytest.approx(share)
    (tmp_path / "out" / command.FILE).write_text("{}")
    assert outcome(capsys, new, "--against", baseline, "--output", tmp_path / "out")[0] == 2
    assert (tmp_path / "out" / command.FILE).read_text() == "{}"
