"""Efficiency refers to one node with as many GPUs in use per node, and to nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from reports import report
from sides import both, run


def nodes(count: int, seconds: float, runs: int = 2, gpus: int = 8, **changes: Any) -> list[dict[str, Any]]:
    """Return runs on `count` nodes of `gpus` GPUs at a global batch of 64 sequences, `seconds` per step."""
    total = count * gpus
    layout = {"num_gpus": total, "dp": total, "gradient_accumulation": 64 // total} | changes
    found = [run("nvd", number, seconds, label=f"nodes{count}", **both(**layout)) for number in range(1, runs + 1)]
    for result in found if count > 1 else ():
        result["provenance"]["hosts"] = [f"n{node}" for node in range(count)]
    return found


def scaling(folder: Path, *sides: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return what compare.json says of each number of nodes."""
    found = report(folder, [one for side in sides for one in side], "--by", "nodes")
    assert all(one["is_counted"] for g in found.json["groups"] for row in g["rows"] for one in row["results"])
    return {one["nodes"]: one for one in found.json["scaling"]}


def test_efficiency_is_throughput_per_gpu_over_that_of_one_node(tmp_path: Path) -> None:
    """By hand: two nodes that need 0.55 of the time do 1/0.55 = 1.82 times the work with twice the GPUs: 91 %."""
    found = scaling(tmp_path, nodes(1, 1.0), nodes(2, 0.55), nodes(4, 0.3))
    assert [one["gpus"] for one in found.values()] == [8, 16, 32]
    assert found[1]["efficiency"] == 1.0
    assert found[2]["efficiency"] == pytest.approx(1 / 0.55 / 2, rel=0.01)
    assert found[2]["efficiency_min"] < found[2]["efficiency"] < found[2]["efficiency_max"]
    assert found[4]["speedup"] == pytest.approx(1 / 0.3, rel=0.01)
    assert found[4]["efficiency"] == pytest.approx(1 / 0.3 / 4, rel=0.01)


def test_a_node_with_another_number_of_gpus_is_no_base(tmp_path: Path) -> None:
    found = scaling(tmp_path, nodes(1, 1.0, gpus=4), nodes(2, 0.3, gpus=8))
    assert found[2]["base_gpus"] is None and found[2]["efficiency"] is None and found[2]["reason"]


def test_one_number_of_gpus_is_no_scaling_and_another_layout_is_another_system(tmp_path: Path) -> None:
    assert scaling(tmp_path / "one", nodes(1, 1.0)) == {}
    other = nodes(2, 0.5, micro_batch_size=2, gradient_accumulation=2)
    assert scaling(tmp_path / "other", nodes(1, 1.0), other) == {}


def test_scaling_is_shown_only_in_a_comparison_by_nodes(tmp_path: Path) -> None:
    results = nodes(1, 1.0, runs=5) + nodes(2, 0.55, runs=5)
    asked = report(tmp_path / "asked", results, "--by", "nodes", formats="json,md,html")
    other = report(tmp_path / "other", results, "--by", "framework", formats="json,md,html")
    for text in (asked.markdown, asked.printed):
        assert "Efficiency" in text and "91" in text
    assert '<table><caption class="unseen">Scaling<' in asked.page and 'href="#scaling"' in asked.page
    assert not any("Efficiency" in text for text in (other.markdown, other.printed))
    assert "Scaling" not in other.page and "scaling" not in other.json
    verdict, scaled = asked.verdict, asked.verdict["scaling"]
    assert (verdict["verdict"], verdict["quantity"]) == ("faster", "tokens/s of the job")
    assert verdict["a"].startswith("8 GPUs") and verdict["b"].startswith("16 GPUs"), "one node is the baseline"
    assert verdict["ratio"] == pytest.approx(1 / 0.55, rel=0.01)
    assert scaled["per_gpu_ratio"] == scaled["efficiency"] == pytest.approx(1 / 0.55 / 2, rel=0.01)
    assert scaled["per_gpu_interval"][0] == pytest.approx(verdict["interval"][0] / 2)
    (table,) = (one for one in asked.json["scaling"] if one["nodes"] == 2)
    assert (table["speedup"], table["efficiency"]) == pytest.approx((verdict["ratio"], scaled["efficiency"]))
    said = r"the job is 1\.8\d+x .* per GPU 0\.9\d+x .* scaling efficiency 9\d\.\d%"
    assert re.search(said, " ".join(asked.printed.split()))
