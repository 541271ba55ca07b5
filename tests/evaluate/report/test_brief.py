"""At the end of run_train.sh: warnings by kind, then the verdict in five lines with the report's path last."""

import re

import pytest
from reports import report
from sides import run, write

from evaluate import validate
from example import example_result

RELEASES = {"llama": "Llama 3.1 8B", "qwen": "Qwen2.5 7B", "mistral": "Mistral 7B v0.1", "qwen3": "Qwen3 8B Base"}
MODELS = tuple(RELEASES)


def pair(factor=1.0, **changes):
    return [run(name, n, factor * s, **changes) for name, s in (("nvd", 1.0), ("amd", 0.9)) for n in (1, 2, 3)]


def brief(folder, results):
    """Return the report, and the lines that it printed."""
    found = report(folder, results, "--brief", "--log", str(folder / "log"), formats="json,html")
    lines = found.printed.splitlines()
    assert len(lines) <= 5 and lines[-1] == f"report: {found.folder / 'compare.html'}"
    return found, lines


def test_verdict_of_one_pair_takes_five_lines_and_the_whole_text_stands_in_the_log(tmp_path):
    few, lines = brief(tmp_path / "few", pair())
    assert len(lines) == 5 and all(len(line) <= 100 for line in lines[:-1])
    assert lines[0].startswith("faster: AMD Instinct MI300X is 1.1") and " as fast as NVIDIA H100" in lines[0]
    assert "3 runs a side" in " ".join(lines)
    whole = report(tmp_path / "whole", pair(), formats="json,html")
    assert (tmp_path / "few" / "log").read_text() == whole.printed and few.code == whole.code
    assert few.verdict["ratio"] == whole.verdict["ratio"]


@pytest.mark.parametrize("models", [MODELS[:2], MODELS])
def test_verdict_of_several_pairs_counts_what_only_the_report_has(tmp_path, models):
    results = [one for number, model in enumerate(models) for one in pair(1 + number / 100, model=model)]
    found, lines = brief(tmp_path, results)
    assert len(found.json["verdicts"]) == len(models)
    named = [line.partition(":")[0] for line in lines[:-2]]
    assert named == [f"{RELEASES[one['model']]} (tiny size)" for one in found.json["verdicts"]][:3]
    ratio = re.compile(r": faster, 1\.1\d+x \(1\.\d+ to 1\.\d+\): mega MI300X against mega H100 80GB HBM3")
    assert all(ratio.search(line) for line in lines[:-2]), lines
    assert lines[-2].startswith(f"{len(models)} pairs: ")
    assert ("1 of them only in the report" in lines[-2]) == (len(models) == 4)


TWELVE = [
    example_result(run=run, warnings=[f"machine: {90 + run % 3} % of the cores' time went elsewhere"])
    for run in range(1, 13)
]


@pytest.mark.parametrize(("options", "count"), [(["--brief"], 1), ([], 12)])
def test_a_warning_of_twelve_jobs_is_one_line_of_the_brief_text(tmp_path, capsys, options, count):
    write(tmp_path, TWELVE)
    log = tmp_path / "log"
    validate.main([str(tmp_path), *options, "--log", str(log)])
    said, whole = " ".join(capsys.readouterr().out.split()), log.read_text()
    assert said.count("went elsewhere") == count
    assert ("machine: 90 to 92 % of the cores' time went elsewhere (12 jobs)" in said) == (count == 1)
    assert whole.count("elsewhere") == 12
