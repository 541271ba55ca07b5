"""Runs that differ in recipe, recomputation, optimizer state or kernels are two systems: two rows and two verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reports import report
from sides import Result, both, runs, write

from evaluate import history
from evaluate.verdict.system import TRAITS, setting_of

FP8 = {"precision": "fp8", "parameter_dtype": "bfloat16"}
TWO: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fp8_recipe": (FP8 | {"fp8_recipe": "delayed"}, FP8 | {"fp8_recipe": "mxfp8"}),
    "recompute": ({}, {"recompute": "full"}),
    "optimizer_state": ({}, {"optimizer_state": "bf16"}),
    "gradient_dtype": ({}, {"gradient_dtype": "bf16"}),
    "layers": ({}, {"layers": "local"}),
    "routing": ({}, {"routing": "balanced"}),
}


def two_systems(first: dict[str, Any], second: dict[str, Any], method: str = "equal") -> list[Result]:
    """Return three runs of each system on each side; the second system is a quarter faster."""
    results = []
    for platform, seconds in (("nvd", 1.0), ("amd", 0.9)):
        results += runs(platform, seconds, method=method, **both(**first))
        results += runs(platform, 0.8 * seconds, method=method, first=4, **both(**second))
    return results


def series_of(folder: Path, results: list[Result] | tuple[()]) -> list[dict[str, Any]]:
    """Return the series that a history makes of results, and of those that the folder has already."""
    write(folder, results)
    history.main([str(folder), "--output", str(folder / "history")])
    return list(json.loads((folder / "history" / "history.json").read_text())["series"])


@pytest.mark.parametrize("trait", TWO)
@pytest.mark.parametrize("method", ["equal", "best"])
def test_two_systems_on_each_side_are_two_rows_and_two_verdicts(trait: str, method: str, tmp_path: Path) -> None:
    found = report(tmp_path, two_systems(*TWO[trait], method), formats="json").json
    rows = [row for group in found["groups"] for row in group["rows"]]
    assert [row["runs_counted"] for row in rows] == [3, 3, 3, 3], "never averaged"
    assert len({(row["platform"], row["layout"]) for row in rows}) == 4
    verdicts = found["verdicts"]
    is_free = method == "best" and trait in ("recompute", "layers")
    assert len(verdicts) == (4 if is_free else 2), "with the method `best` every choice of one side meets the other's"
    assert {verdict["verdict"] for verdict in verdicts} <= {"faster", "slower"}
    ratios = sorted(verdict["ratio"] for verdict in verdicts)
    # 1.0 s a step over 0.9 s, and 0.8 s over 0.9 s where a slow choice of one side meets the other's fast one
    assert ratios[0] == pytest.approx(0.8 / 0.9 if is_free else 1 / 0.9, rel=0.01)
    names = {(verdict["a"], verdict["b"]) for verdict in verdicts}
    assert len(names) == len(verdicts), "each pair has names of its own"
    assert [len(series["runs"]) for series in series_of(tmp_path / "in", ())] == [3, 3, 3, 3]


def test_a_history_does_not_split_at_a_setting_that_its_framework_does_not_read(tmp_path: Path) -> None:
    usual, other = runs("nvd", 1.0, framework="hf"), runs("nvd", 1.0, framework="hf", first=4)
    for result in other:
        result["training_config"]["layers"] = "local"
    assert len(series_of(tmp_path, usual + other)) == 1


@pytest.mark.parametrize(("trait", "framework"), [("layers", "hf"), ("hf_kernels", "mega")])
def test_a_setting_that_a_framework_does_not_read_makes_no_other_system(trait: str, framework: str) -> None:
    usual, other = (runs("nvd", 1.0, 1, framework=framework)[0] for _ in range(2))
    other["training_config"][trait] = "local" if trait == "layers" else "liger"
    assert setting_of(usual) == setting_of(other)


def test_a_result_of_before_a_setting_existed_is_of_the_usual_system() -> None:
    usual, older = (runs("nvd", 1.0, 1)[0] for _ in range(2))
    for trait in TRAITS:
        older["training_config"].pop(trait.key, None)
    assert setting_of(usual) == setting_of(older)


def test_one_system_on_a_side_still_meets_another_and_the_difference_is_the_reason(tmp_path: Path) -> None:
    results = runs("nvd", 1.0) + runs("amd", 0.9, **both(recompute="full"))
    (verdict,) = report(tmp_path, results, formats="json").json["verdicts"]
    assert verdict["verdict"] == "not_comparable" and any("recompute" in reason for reason in verdict["reasons"])
