"""The section "why": the gap of a pair by kind of time, from one profile of each side, through the command."""

from datetime import datetime, timedelta

import pytest
from made_traces import write_profile
from reports import report, write_probe
from sides import SAMPLES, run, summarise

NVD, AMD = (
    [run(platform, number, seconds) for number in (1, 2, 3)] for platform, seconds in (("nvd", 1.0), ("amd", 1.1))
)
SLOW = {"product": "Cijk_Alik_Bljk", "microseconds": 150}


def later(hours):
    began = datetime.fromisoformat(AMD[-1]["provenance"]["started_utc"])
    return (began + timedelta(hours=hours)).isoformat()


def compared(folder, amd=AMD, nvd=NVD, **changes):
    """Compare both sides; `changes` are of the profile of the amd side."""
    write_profile(folder / "in", nvd[0])
    if changes.pop("is_profiled", True):
        write_profile(folder / "in", amd[0], SLOW, **changes)
    found = report(folder, [*nvd, *amd], formats="md,html,json")
    return found.verdict["why"], found.markdown, found.page


def test_the_kinds_of_both_profiled_steps_and_their_differences_add_up(tmp_path):
    why, text, page = compared(tmp_path, started_utc=later(23))  # of the same day
    assert why["step_seconds"] == pytest.approx({"a": 1e-3, "b": 1.05e-3})
    kinds = {row["kind"]: [row[key] for key in ("a", "b", "difference")] for row in why["kinds"]}
    wanted = {"matmul": [1e-4, 1.5e-4, 5e-5], "memory_bound": [2e-4, 2e-4, 0], "idle": [6.5e-4, 6.5e-4, 0]}
    for kind, seconds in (wanted | {"communication_exposed": [5e-5, 5e-5, 0]}).items():
        assert kinds[kind] == pytest.approx(seconds, abs=1e-9)
    assert sum(difference for *_, difference in kinds.values()) == pytest.approx(5e-5)
    assert why["operators"][0] == {
        **{"kind": "matmul", "phase": "forward"},
        **{"operator": "matrix product", "shapes": "(4096, 1024) x (1024, 4096)"},
        **{"a": pytest.approx(1e-4), "b": pytest.approx(1.5e-4), "difference": pytest.approx(5e-5)},
    }
    assert why["rates"] == [] and len(why["remarks"]) == 2
    assert "a profiled step takes 1 ms, the others 0.8 ms" in why["remarks"][0]
    assert "| matrix products | 0.1 | 0.15 | +0.05 |" in text.partition("\n## Why\n")[2]
    traces = "profiles/profiled_train_{}_mega_llama_run1_attempt1/rank0.json.gz"
    assert why["traces"] == {"a": traces.format("nvd"), "b": traces.format("amd")}
    assert all((tmp_path / "in" / trace).is_file() for trace in why["traces"].values())
    assert why["phases"][0] == {"phase": "forward", "a": pytest.approx(3e-4), "b": pytest.approx(3.5e-4)}
    section = page.partition('<h2 id="why"')[2].partition("<h2")[0]
    assert section.count("<figure>") == 1 and "matrix products 0.15 ms" in section and "<b>" not in section


MEASURED = {
    "attention": {"tflops": 500.0, "spread_percent": 1.0},
    "bandwidth": {"triad": {"gb_per_second": 3000.0, "spread_percent": 1.0, "gb": 3.2}},
    "collectives": [
        {"name": "all_reduce", "bytes": size, "ranks": 8, "nodes": 1, "seconds": 1e-3, "spread_percent": 1.0}
        | {"bus_gb_per_second": rate}
        for size, rate in ((2**20, 90.0), (2**30, 400.0))
    ],
    "findings": [],
}


def test_what_each_machine_was_measured_to_reach_stands_beside_what_its_operators_reached(tmp_path):
    write_probe(tmp_path / "in", probe_version=2, **MEASURED)
    known = {key: AMD[0]["gpu_info"][key] for key in ("device_name", "total_memory_gb")} | {"host": "amd-1"}
    write_probe(tmp_path / "in", platform="amd", started_utc=AMD[0]["provenance"]["started_utc"], **known)
    why, text, _ = compared(tmp_path)
    flops, shares = 2 * 4096 * 1024 * 4096 / 1e12, ("a_share", "b_share")
    rates = {row["kind"]: [row[key] for key in ("unit", "a", "b", *shares)] for row in why["rates"]}
    assert rates == {
        "matmul": ["TFLOP/s", 800.0, 800.0, *(pytest.approx(flops / seconds / 800) for seconds in (1e-4, 1.5e-4))],
        "attention": ["TFLOP/s", 500.0, None, None, None],  # no attention in the trace
        "memory_bound": ["GB/s", 3000.0, None, None, None],
        "communication_exposed": ["GB/s (bus)", 400.0, None, None, None],  # of the largest size
    }
    assert "| best matrix products | TFLOP/s | 800 | 43% | 800 | 29% |" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"is_profiled": False},
        {"host": "other"},
        {"device_name": "NVIDIA H100 80GB HBM3"},
        {"model": "qwen"},
        {"settings": AMD[0]["training_config"] | {"micro_batch_size": 2}},
        {"started_utc": later(25)},
        {"amd": [run("amd", number, 1.1, resolved_config__qkv_bias=True) for number in (1, 2, 3)]},
    ],
    ids=["no profile", "host", "device", "model", "settings", "25 hours", "not comparable"],
)
def test_a_pair_without_a_profile_of_each_side_has_no_gap(tmp_path, changes):
    why, text, page = compared(tmp_path, **changes)
    assert why is None and "## Why" not in text and 'id="why"' not in page


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"traces": {"0": {"file": "rank0.json.gz", "sha256": "0" * 64}}}, "its SHA-256 differs"),
        ({"traces": {}, "reasons": {"rank0": "no room"}}, "has no trace: no room"),
        ({"traces": {"0": {"file": "rank7.json.gz", "sha256": "0" * 64}}}, "cannot be used"),
    ],
)
def test_a_trace_that_cannot_be_used_is_a_reason_in_place_of_the_kinds(tmp_path, changes, reason):
    why, text, page = compared(tmp_path, **changes)
    assert why["step_seconds"] == {"a": pytest.approx(1e-3), "b": None} and why["kinds"] == why["operators"] == []
    assert reason in why["remarks"][1] and reason in text and reason in page


# A profiled run is compared with none that was not profiled, and is averaged with none.

PROFILE, OTHER, STEPS = "steps 41-43 of rank 0", "steps 41-43 of all ranks", (41, 42, 43)


def side(platform, seconds, profile=None, first=1, **changes):
    """Return three runs, of which some steps were under a profiler if it is named."""
    results = [run(platform, number, seconds, **changes) for number in range(first, first + 3)]
    for result in results if profile else ():
        kept = [place for place, step in enumerate(result["steps"]) if step not in STEPS]
        for key in SAMPLES:
            result[key] = [result[key][place] for place in kept]
        result["excluded_steps"] = dict.fromkeys(map(str, STEPS), "profiled")
        result["training_config"]["profile"] = profile
        summarise(result)
    return results


@pytest.mark.parametrize(
    ("nvd", "amd", "word", "said"),
    [
        (None, PROFILE, "not_comparable", "profile differs: none against steps 41-43 of rank 0"),
        (PROFILE, PROFILE, "faster", ""),
        (PROFILE, OTHER, "not_comparable", ""),
    ],
)
def test_only_sides_that_were_profiled_alike_are_compared(tmp_path, nvd, amd, word, said):
    sides = side("nvd", 1.0, nvd, label="profiled" if nvd else "") + side("amd", 0.9, amd, label="profiled")
    found = report(tmp_path, sides)
    printed = " ".join(found.printed.split())
    assert found.verdict["verdict"] == word and "REJECTED" not in printed and said in printed


def test_profiled_runs_beside_others_are_left_out_and_named(tmp_path):
    found = report(tmp_path, side("nvd", 1.0) + side("amd", 0.9) + side("amd", 1.3, PROFILE, first=4))
    assert (found.verdict["verdict"], found.verdict["runs"]) == ("faster", [3, 3])
    printed = " ".join(found.printed.split())
    assert "the other side has no run of" in printed and "profile of steps 41-43 of rank 0" in printed
