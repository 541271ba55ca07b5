"""At the end of run_train.sh: warnings by kind, then the verdict in five lines with the report's path last."""

import re
from pathlib import Path

import pytest
from sides import side

from evaluate.checks.entries import Loaded
from evaluate.compare import main as compare_main
from evaluate.report.brief import verdict_lines, warning_lines
from evaluate.report.comparison import compare
from evaluate.validate import main as validate_main
from example import example_result
from utils.results import store

REPORT = Path("output/compare.html")
RELEASES = {"llama": "Llama 3.1 8B", "qwen": "Qwen2.5 7B", "mistral": "Mistral 7B v0.1", "qwen3": "Qwen3 8B Base"}
MODELS = tuple(RELEASES)


def compared(entries):
    return compare(Loaded(tuple(entries), ()), [Path("output")])


def test_verdict_of_one_pair_takes_five_lines_with_ratio_first_and_path_last():
    lines = verdict_lines(compared(side("nvd", 1.0, 3) + side("amd", 0.9, 3)), REPORT, 100)
    assert len(lines) == 5 and all(len(line) <= 100 for line in lines)
    assert lines[0].startswith("faster: AMD Instinct MI300X is 1.1") and " as fast as NVIDIA H100" in lines[0]
    assert "3 runs a side" in " ".join(lines)
    assert lines[-1] == "report: output/compare.html"


@pytest.mark.parametrize("models", [MODELS[:2], MODELS])
def test_verdict_of_several_pairs_takes_at_most_five_lines_and_counts_what_only_the_report_has(models):
    entries = [
        one
        for model in models
        for platform, speed in (("nvd", 1.0), ("amd", 0.9))
        for one in side(platform, speed, 3, model=model)
    ]
    comparison = compared(entries)
    assert len(comparison.judged) == len(models)
    lines = verdict_lines(comparison, REPORT, 100)
    assert len(lines) <= 5 and lines[-1] == "report: output/compare.html"
    named = [line.partition(":")[0] for line in lines[:-2]]
    assert named == [f"{RELEASES[one.pair.model]} (tiny size)" for one in comparison.judged][:3]
    ratio = re.compile(r": faster, 1\.1\d+x \(1\.\d+ to 1\.\d+\): AMD Instinct MI300X against ")
    assert all(ratio.search(line) for line in lines[:-2])
    assert lines[-2].startswith(f"{len(models)} pairs: ")
    assert ("1 of them only in the report" in lines[-2]) == (len(models) == 4)


def test_without_two_sides_the_lines_have_the_reason_and_the_throughput():
    lines = verdict_lines(compared(side("nvd", 1.0, 3)), REPORT, 100)
    assert lines[0].startswith("No verdict: ") and lines[-1].endswith("compare.html") and len(lines) <= 5
    assert any("3 of 3 runs counted" in line and line.endswith("tokens/s/GPU") for line in lines)


def test_a_terminal_of_20_columns_does_not_cut_the_ratio_away():
    (first, *_) = verdict_lines(compared(side("nvd", 1.0, 3) + side("amd", 0.9, 3)), REPORT, 20)
    assert " is 1.1" in first


def results_with_warnings(folder):
    for run in range(1, 13):
        result = example_result(run=run, warnings=[f"machine: {90 + run % 3} % of the cores' time went elsewhere"])
        store.write(result, folder / f"train_cpu_mega_llama_run{run}.json")


def test_a_warning_of_twelve_jobs_is_one_line_with_their_number(tmp_path, capsys):
    results_with_warnings(tmp_path)
    log = tmp_path / "log"
    log.write_text("earlier\n")
    validate_main([str(tmp_path), "--brief", "--log", str(log)])
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("went elsewhere") == 1
    assert "machine: 90 to 92 % of the cores' time went elsewhere (12 jobs)" in said
    whole = log.read_text()
    assert whole.startswith("earlier\n") and whole.count("elsewhere") == 12


def test_without_brief_every_result_has_its_row(tmp_path, capsys):
    results_with_warnings(tmp_path)
    validate_main([str(tmp_path)])
    assert capsys.readouterr().out.count("elsewhere") == 12


def test_results_that_do_not_count_keep_their_row(tmp_path, capsys):
    store.write(
        example_result(status="oom", reason="out of memory at step 3"), tmp_path / "train_cpu_mega_llama_run1.json"
    )
    assert validate_main([str(tmp_path), "--brief"]) == 1
    said = capsys.readouterr().out
    assert "oom" in said and "out of memory" in " ".join(said.split())


def test_brief_comparison_writes_the_same_reports_and_keeps_the_whole_text_in_the_log(tmp_path, capsys):
    for number, one in enumerate(side("nvd", 1.0, 3) + side("amd", 0.9, 3)):
        store.write(one.result, tmp_path / f"r{number}" / "train_nvd_mega_llama_run1.json")
    code = compare_main([str(tmp_path), "--output", str(tmp_path / "whole"), "--format", "json,html"])
    whole = capsys.readouterr().out
    log = tmp_path / "log"
    options = ["--output", str(tmp_path / "few"), "--format", "json,html", "--brief", "--log", str(log)]
    assert compare_main([str(tmp_path), *options]) == code
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 5 and said.splitlines()[-1] == f"report: {tmp_path / 'few' / 'compare.html'}"
    assert log.read_text() == whole
    assert (tmp_path / "few" / "compare.json").read_bytes() == (tmp_path / "whole" / "compare.json").read_bytes()


def test_a_log_that_cannot_be_written_is_named(tmp_path, capsys):
    results_with_warnings(tmp_path)
    assert validate_main([str(tmp_path), "--brief", "--log", str(tmp_path / "no" / "log")]) == 2
    assert "error: --log " in capsys.readouterr().err


def test_no_warning_gives_no_line():
    assert warning_lines(side("nvd", 1.0, 3), 100) == []
