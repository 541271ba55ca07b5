"""An acceptance test passes a job only on proof: its interval lies above the least share of a usable baseline."""

from __future__ import annotations

import json
import math
import shutil
import statistics

import pytest
from bundles import pack, sides as bundled, written
from reports import refused
from scipy import stats
from sides import SECTIONS, both, run, runs as some_runs, write

from evaluate import compare
from utils.results.performance import RunsRule

PASS, FAIL, UNKNOWN = "PASS", "FAIL", "UNKNOWN"
PUBLISHED_H100 = 10_682
"""tokens/s/GPU of Llama 3 8B in BF16 on 8 H100 at 8192 tokens: NVIDIA dgxc-benchmarking, 12.27 s a step of GBS 128."""
STEP = 64 * 8192 / 8 / PUBLISHED_H100
"""Seconds of a step of GBS 64 at that rate."""
LLAMA = {"model_size": "full", **both(sequence_length=8192), "resolved_config__norm_eps": 1e-5}
UNKNOWN_COUNT = {"resolved_config__parameter_count": None, "source": "log"}
FROM_A_LOG = {"resolved_config__reasons": {"parameter_count": "from a log", "sliding_window": "from a log"}}
QWEN = {f"resolved_config__{key}": value for key, value in (("qkv_bias", True), ("norm_eps", 1e-6), ("rope_base", 1e6))}


def runs(seconds: float, count: int = 5, platform: str = "nvd", **changes):
    return some_runs(platform, seconds, count, **changes)


@pytest.fixture
def outcome(capsys):
    """Return a function that runs the command and returns its code, the words of its lines, and the text."""

    def run_it(*arguments):
        code = compare.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        words = [line.split()[0] for line in printed.out.splitlines()]
        return code, [word for word in words if word in (PASS, FAIL, UNKNOWN)], printed.out + printed.err

    return run_it


@pytest.fixture
def baseline(tmp_path):
    return write(tmp_path / "baseline", runs(1.0, host="reference"))


@pytest.fixture
def against(tmp_path, baseline, outcome):
    """Return a function that compares new results with the baseline."""
    return lambda *results: outcome(write(tmp_path / "new", results), "--against", baseline)


# --- published figures ---


@pytest.mark.parametrize(
    ("share", "options", "word", "code"),
    [
        *((0.98, (), PASS, 0), (0.90, (), FAIL, 1), (0.951, (), UNKNOWN, 3), (0.949, (), UNKNOWN, 3)),
        *((0.90, ("--at-least", "88"), PASS, 0), (0.90, ("--at-least", "92"), FAIL, 1)),
    ],
)
def test_the_whole_interval_decides_against_the_published_figure(tmp_path, outcome, share, options, word, code):
    results = runs(STEP / share, **LLAMA)
    # tokens/s/GPU of the steady steps, which are those after the first ten, at GBS 64 on eight GPUs
    logs = [math.log(64 * 8192 / 8 / statistics.fmean(result["step_times"][10:])) for result in results]
    half = stats.t.ppf(1 - 0.04 / 2, 4) * statistics.stdev(logs) / math.sqrt(5)
    low, high = (100 * math.exp(statistics.fmean(logs) + sign * half) / PUBLISHED_H100 for sign in (-1, 1))
    assert word != UNKNOWN or low < 95 < high, "the case is what it is meant to be"
    got, words, text = outcome(write(tmp_path / "in", results), "--against", "published", *options)
    assert (got, words) == (code, [word])
    assert f"({low:,.1f} to {high:,.1f}) % of 10,682 (NVIDIA dgxc-benchmarking" in text and "2025-06-09" in text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"platform": "amd"}, "410 TFLOP/s as logged, without its formula"),
        ({"model_size": "tiny"}, "no figure of llama tiny"),
        (both(num_gpus=4, dp=4, gradient_accumulation=16), "on 4 x NVIDIA H100"),
        ({"gpu_info__device_name": "A new accelerator"}, "the device is not known here"),
        (UNKNOWN_COUNT | FROM_A_LOG, "do not prove their model"),
        ({"performance_metrics__loop_seconds": 1.18 * 100 * 2 * STEP}, "15% of the training loop is in no step"),
        ({"performance_metrics__loop_seconds": None}, "a run has no second timer"),
        ({"repeats": RunsRule.of(10).as_dict()}, "runs are missing, or their number was not fixed beforehand: 5 of 10"),
    ],
)
def test_without_a_usable_figure_a_job_is_unknown_and_never_0(tmp_path, outcome, changes, reason):
    folder = write(tmp_path / "in", runs(2 * STEP, **(LLAMA | changes)))
    code, words, text = outcome(folder, "--against", "published")
    assert (code, words) == (3, [UNKNOWN]) and reason in text, text


# --- a baseline of one's own ---


def test_an_archive_is_a_baseline_as_its_folder_is(tmp_path, outcome):
    archive = tmp_path / "ours.zip"
    shutil.move(pack(written(tmp_path / "ours", bundled({"nvd": 1.0}, runs=4))), archive)
    new = write(tmp_path / "new", runs(0.99, host="new"))
    assert outcome(new, "--against", archive)[:2] == outcome(archive, "--against", new)[:2] == (0, [PASS])


def test_a_job_that_nobody_measured_fails(baseline, against):
    write(baseline, runs(1.02, host="reference", framework="hf", resolved_config__layer_implementation="hf_llama"))
    code, words, text = against(*runs(0.99, host="new"))
    assert (code, words) == (1, [FAIL, PASS])
    assert "no result of it was given" in text.splitlines()[0] and " hf llama " in text.splitlines()[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"platform": "amd"}, "device AMD Instinct MI300X, baseline NVIDIA H100"),
        (both(global_batch_size=128), "GBS 128"),
        (both(micro_batch_size=2), "MBS 2"),
        ({"fingerprint__dataset_bin_sha256": "0" * 64}, "data"),
        ({"model": "qwen"} | QWEN, "no job of mega qwen"),
        ({"repeats": RunsRule.of(10).as_dict()}, "not proven to be the baseline's work: number of runs"),
        ({"provenance__environment": {"NCCL_P2P_DISABLE": "1"}}, "NCCL_P2P_DISABLE on one side only"),
    ],
)
def test_another_device_setting_or_work_is_unknown_and_names_the_difference(against, changes, reason):
    code, words, text = against(*runs(0.9, host="new", **changes))
    assert PASS not in words and UNKNOWN in words and code in (1, 3)
    assert reason in text, text


FAILED = run("nvd", 6, 0.9, host="new", status="failed", reason="no GPU")
UNKNOWN_HOST = {"host": None, "reasons": FAILED["provenance"]["reasons"] | {"host": "the run ended before"}}
BEFORE_ITS_HOST = FAILED | {
    "gpu_info": dict.fromkeys(SECTIONS["gpu_info"]) | {"reasons": {"*": "the run ended before"}},
    "provenance": FAILED["provenance"] | UNKNOWN_HOST,
}
INVALID = run("nvd", 6, 0.9, host="new")
INVALID["performance_metrics"]["tokens_per_second_per_gpu"] = 5.0
MACHINES = [one for host, seconds in (("a", 0.99), ("b", 0.98), ("c", 1.12)) for one in runs(seconds, host=host)]


@pytest.mark.parametrize(
    ("results", "wanted", "reason"),
    [
        (runs(1.01, host="new"), (0, [PASS]), "on new: "),
        (runs(1.10, host="new"), (1, [FAIL]), "on new: "),
        (runs(1.0526, host="new"), (3, [UNKNOWN]), "on new: "),
        (MACHINES, (1, [FAIL, PASS, PASS]), " on c: "),  # a slow machine is not hidden by the fast ones
        (runs(0.8, 1, host="new"), (3, [UNKNOWN]), "a single run"),
        (runs(0.8, 2, host="new"), (3, [UNKNOWN]), "wanted at least 3"),
        ([*runs(0.9, host="new"), FAILED], (1, [FAIL]), "run 6 is not ok (failed): no GPU"),
        ([*runs(0.9, host="new"), BEFORE_ITS_HOST], (1, [FAIL]), "run 6 is not ok (failed): no GPU"),
        ([FAILED], (1, [FAIL]), "run 6 is not ok (failed): no GPU"),
        ([*runs(0.9, host="new"), INVALID], (3, [UNKNOWN]), "run 6 is invalid"),
    ],
)
def test_a_job_is_tested_against_the_same_job_and_too_few_failed_or_invalid_runs_pass_nothing(
    against, results, wanted, reason
):
    code, words, text = against(*results)
    assert (code, words) == wanted and reason in text.splitlines()[0], text


def test_a_folder_against_itself_passes_nothing(tmp_path, baseline, outcome):
    code, words, text = outcome(baseline, "--against", baseline)
    assert (code, words) == (3, [UNKNOWN]) and "no measurement of" in text
    shutil.copytree(baseline, tmp_path / "copy")
    assert outcome(tmp_path / "copy", "--against", baseline)[:2] == (3, [UNKNOWN])


def test_a_baseline_without_a_valid_run_is_unknown(tmp_path, outcome):
    bad = write(tmp_path / "bad", runs(1.0, 3, host="x", status="nan", reason="loss nan"))
    code, words, text = outcome(write(tmp_path / "new", runs(0.9, host="new")), "--against", bad)
    assert (code, words) == (3, [UNKNOWN]) and "no valid run" in text


def test_an_unreadable_result_among_those_tested_is_no_pass(tmp_path, against):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "train_x.json").write_text("{")
    code, words, text = against(*runs(0.9, host="new"))
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
def test_bad_input_is_one_line_and_exit_2(tmp_path, arguments, wanted):
    (tmp_path / "empty").mkdir()
    places = {"empty": tmp_path / "empty", "new": write(tmp_path / "new", runs(1.0, 1))}
    places["broken"] = write(tmp_path / "broken", [[]])
    assert wanted in refused(compare.main, *(argument.format(**places) for argument in arguments))


def test_the_decisions_are_written_where_output_is_given_and_nowhere_else(tmp_path, baseline, outcome):
    arguments = (write(tmp_path / "new", runs(1.01, host="new")), "--against", baseline)
    before, out = sorted(tmp_path.rglob("*")), ("--output", tmp_path / "out")
    assert outcome(*arguments)[0] == 0 and sorted(tmp_path.rglob("*")) == before
    assert outcome(*arguments, *out)[0] == outcome(*arguments, *out)[0] == 0
    (path,) = (tmp_path / "out").iterdir()
    found = json.loads(path.read_text())
    (one,) = found["decisions"]
    assert (found["at_least_percent"], one["decision"], one["runs"], one["machine"]) == (95, PASS, 5, "new")
    path.write_text("{}")
    assert outcome(*arguments, *out)[0] == 2 and path.read_text() == "{}"
