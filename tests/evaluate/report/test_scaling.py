"""Efficiency refers to one node with as many GPUs in use per node, and to nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluate.checks.entries import Entry, Loaded
from evaluate.compare import main
from evaluate.report.comparison import as_json, compare
from evaluate.report.scaling import NO_BASE, Scale, scaling
from evaluate.report.text import markdown, terminal
from tests.support.sides import entry, run
from utils.results import store


def nodes(count: int, seconds: float, runs: int = 2, gpus: int = 8, **changes: object) -> list[Entry]:
    """Return runs on `count` nodes of `gpus` GPUs at a global batch of 64 sequences, `seconds` per step."""
    total = count * gpus
    layout = {"num_gpus": total, "dp": total, "gradient_accumulation": 64 // total}
    sections = {
        f"{section}__{key}": value
        for section in ("training_config", "resolved_config")
        for key, value in layout.items()
    }
    found = []
    for number in range(1, runs + 1):
        result = run("nvd", number, seconds, label=f"nodes{count}", **{**sections, **changes})
        if count > 1:
            result["provenance"]["hosts"] = [f"n{node}" for node in range(count)]
        found.append(entry(result))
    return found


def compared(*sides: list[Entry], by: str = "nodes"):
    entries = [one for side in sides for one in side]
    assert not [one.findings.rejections for one in entries if one.findings.rejections]
    return compare(Loaded(entries, []), [Path("x")], by)


def of(found: list[Scale], count: int) -> Scale:
    (scale,) = [one for one in found if one.nodes == count]
    return scale


def test_efficiency_is_throughput_per_gpu_over_that_of_one_node() -> None:
    """By hand: two nodes that need 0.55 of the time do 1/0.55 = 1.82 times the work with twice the GPUs: 91 %."""
    found = scaling(compared(nodes(1, 1.0), nodes(2, 0.55), nodes(4, 0.3)).groups)
    assert [one.gpus for one in found] == [8, 16, 32]
    assert of(found, 1).efficiency == (1.0, 1.0, 1.0)
    share, low, high = of(found, 2).efficiency or (0, 0, 0)
    assert share == pytest.approx(1 / 0.55 / 2, rel=0.01) and low < share < high
    assert of(found, 4).speedup == pytest.approx(1 / 0.3, rel=0.01)
    assert (of(found, 4).efficiency or (0,))[0] == pytest.approx(1 / 0.3 / 4, rel=0.01)


def test_a_node_with_another_number_of_gpus_is_no_base() -> None:
    found = scaling(compared(nodes(1, 1.0, gpus=4), nodes(2, 0.3, gpus=8)).groups)
    assert of(found, 2).base is None and of(found, 2).efficiency is None
    assert of(found, 2).as_json()["reason"] == NO_BASE


def test_one_number_of_gpus_is_no_scaling_and_another_layout_is_another_system() -> None:
    assert scaling(compared(nodes(1, 1.0)).groups) == []
    other = {"training_config__micro_batch_size": 2, "resolved_config__micro_batch_size": 2}
    halved = {f"{section}__gradient_accumulation": 2 for section in ("training_config", "resolved_config")}
    assert scaling(compared(nodes(1, 1.0), nodes(2, 0.5, **other, **halved)).groups) == []


def test_scaling_is_shown_only_in_a_comparison_by_nodes() -> None:
    sides = (nodes(1, 1.0), nodes(2, 0.55))
    asked, other = compared(*sides), compared(*sides, by="framework")
    for show in (markdown, lambda one: terminal(one, 140)):
        assert "Efficiency" in show(asked) and "Efficiency" not in show(other)
    assert [one["nodes"] for one in as_json(asked)["scaling"]] == [1, 2] and "scaling" not in as_json(other)


def test_one_node_is_the_baseline_of_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, one in enumerate(nodes(1, 1.0, runs=5) + nodes(2, 0.55, runs=5)):
        folder = tmp_path / str(one.result["label"])
        store.write(one.result, folder / f"train_nvd_mega_llama_run{number}.json")
    assert main([str(tmp_path), "--by", "nodes", "--format", "json"]) == 0
    verdict = json.loads((tmp_path / "compare.json").read_text())["verdicts"][0]
    assert verdict["a"].startswith("8 GPUs") and verdict["b"].startswith("16 GPUs")
    assert verdict["ratio"] == pytest.approx(1 / 0.55, rel=0.01)
    assert verdict["scaling"]["per_gpu_ratio"] == pytest.approx(1 / 0.55 / 2, rel=0.01)
    assert "91" in capsys.readouterr().out
