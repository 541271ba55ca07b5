"""Notes on a group: observations that a reader needs before trusting its numbers. They are not verdicts.

The certificate (`evaluate/fairness/`) says in what two systems differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from evaluate.metrics.steady import tokens_per_second_per_gpu
from evaluate.report.groups import ENOUGH_RUNS, Group, mean_of
from evaluate.report.tables import plain
from utils.results.schema import Result

ENERGY_KINDS = {
    "gpu_counter": "GPU counter, not the wall",
    "gpu_power": "GPU power, integrated, not the wall",
    "cpu_rapl": "CPU RAPL, not the wall",
}
"""`method` of `energy_metrics`, in words."""


@lru_cache(maxsize=256)
def notes(group: Group) -> list[str]:
    """Return one line for each observation about `group`. Cached: several reports show them."""
    return [*few_runs(group), *_sources(group), *_licences(group), *_warnings(group)]


def few_runs(group: Group) -> Iterator[str]:
    """Yield a line about the systems with fewer than ENOUGH_RUNS runs."""
    few = [f"{row.name} ({len(row.counted)})" for row in group.rows if 0 < len(row.counted) < ENOUGH_RUNS]
    if few:
        yield f"fewer than five runs: {', '.join(few)}; the spread between runs is hardly known"


def _sources(group: Group) -> Iterator[str]:
    """Yield a line if the energies of a group, or its memory figures, are of different kinds, such as a counter and
    integrated power."""
    energies: dict[str | None, list[str]] = {}
    memories: dict[str | None, list[str]] = {}
    for row in group.rows:
        for entry in row.counted:
            energies.setdefault(_kind_of_energy(entry.result), []).append(row.name)
            memories.setdefault(entry.result["memory_metrics"]["source"], []).append(row.name)
    for name, kinds in (("energy", energies), ("memory", memories)):
        sides = [f"{kind} ({', '.join(dict.fromkeys(rows))})" for kind, rows in kinds.items() if kind]
        if len(sides) > 1:
            yield plain(f"{name} is not comparable: {'; '.join(sides)}")


def _kind_of_energy(result: Result) -> str | None:
    """Return the kind of the energy of a result; in results of earlier versions, which have no `method`, its source."""
    energy = result["energy_metrics"]
    if energy["joules_per_token"] is None:
        return None
    source: str | None = energy["source"]
    return ENERGY_KINDS.get(energy.get("method") or "", source)


def _licences(group: Group) -> Iterator[str]:
    """Yield the licences of the data, of each name once; results of earlier versions record none."""
    by_name: dict[str, list[str]] = {}
    for entry in group.counted:
        for name, licence in (entry.result["fingerprint"].get("licences") or {}).items():
            if licence:
                by_name.setdefault(name, []).append(licence)
    texts = [f"{name} {', '.join(dict.fromkeys(licences))}" for name, licences in sorted(by_name.items())]
    if texts:
        yield plain(f"licences: {'; '.join(texts)}")


def _warnings(group: Group) -> Iterator[str]:
    for row in group.rows:
        runs: dict[str, list[int]] = {}
        for entry in row.counted:
            for warning in entry.findings.warnings:
                runs.setdefault(warning, []).append(entry.result["run"])
        for warning, numbers in runs.items():
            yield plain(f"{row.name}, run {', '.join(map(str, sorted(numbers)))}: {warning}")


# Strong scaling: tokens/s and tokens/s/GPU by number of GPUs, and the efficiency against one node.
#
# The global batch is the same on every number of GPUs, so each GPU of a larger number does less work between two
# exchanges of gradients. Efficiency is tokens/s/GPU over that of the base: one node of the same system that uses as
# many GPUs of the node as the larger run uses of each of its nodes. Among runs on one node, the base is the run with
# the fewest GPUs.

HEADER = ("System", "GPUs", "Nodes", "Runs", "tokens/s", "tokens/s/GPU", "Speed-up", "Efficiency")
KNOWN = ("speedup", "efficiency", "efficiency_min", "efficiency_max")
"""Figures against the base, by their keys in compare.json."""
NO_BASE = "no counted result of one node with as many GPUs on it"
EXPLANATION = (
    "Efficiency is the geometric mean of tokens/s/GPU over that of the base, one node with as many GPUs on it, at the "
    "same global batch (strong scaling); min to max are the smallest and the largest quotient of two runs. Speed-up is "
    "the same of tokens/s. Both are over the runs of all hosts."
)


def scaling(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the entries of `scaling` in compare.json: one for each number of GPUs of every system that was measured on
    several."""
    return [entry for group in groups for entry in _of_group(group)]


def scaling_cells(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the row of an entry in a table with HEADER."""
    speedup, share = entry["reason"], "-"
    if not entry["reason"]:
        speedup, share = f"{entry['speedup']:.2f}", f"{entry['efficiency']:.1%}"
    low, high = entry["efficiency_min"], entry["efficiency_max"]
    if low != high:
        share += f", min to max {low:.1%} to {high:.1%}"
    return (
        f"{entry['group']}: {entry['system']}",
        str(entry["gpus"]),
        str(entry["nodes"]),
        str(entry["runs"]),
        f"{entry['tokens_per_second']:,.0f}",
        f"{entry['tokens_per_second_per_gpu']:,.0f}",
        speedup,
        share,
    )


def _of_group(group: Group) -> Iterator[dict[str, Any]]:
    systems: dict[tuple[Any, ...], dict[tuple[int, int], list[float]]] = {}
    for entry in group.counted:
        result, config = entry.result, entry.result["training_config"]
        split = tuple(config[key] for key in ("tp", "pp", "cp", "micro_batch_size", "ep"))
        system = (result["platform"], result["framework"], result["gpu_info"]["device_name"], split)
        value = tokens_per_second_per_gpu(result)
        size = (len(result["provenance"].get("hosts") or [0]), config["num_gpus"])
        if value is not None:
            systems.setdefault(system, {}).setdefault(size, []).append(value)
    for (platform, framework, device, (tp, pp, cp, mbs, ep)), sizes in sorted(systems.items(), key=str):
        if len(sizes) == 1:
            # nothing to scale
            continue
        layout = f"MBS {mbs}, TP {tp}, PP {pp}, CP {cp}"
        if ep not in (None, 1):
            layout += f", EP {ep}"
        name = plain(f"{platform}/{framework} {device or 'unknown device'}, {layout}")
        for size in sorted(sizes):
            yield {"group": group.key.title, "system": name} | _scaled(size, sizes)


def _scaled(size: tuple[int, int], runs: Mapping[tuple[int, int], Sequence[float]]) -> dict[str, Any]:
    """Return the figures of a number of nodes and GPUs; a base itself has an efficiency of 1.0, which is no loss."""
    nodes, gpus = size
    rates = runs[size]
    mean = mean_of(rates)
    entry: dict[str, Any] = {
        "gpus": gpus,
        "nodes": nodes,
        "runs": len(rates),
        "tokens_per_second": mean * gpus,
        "tokens_per_second_per_gpu": mean,
        "base_gpus": None,
        "speedup": 1.0,
        "efficiency": 1.0,
        "efficiency_min": 1.0,
        "efficiency_max": 1.0,
        "reason": None,
    }
    # one node that is used as the larger run uses each of its nodes
    of_base = (1, gpus // nodes) if nodes > 1 else min(runs)
    if size == of_base:
        return entry
    if of_base not in runs:
        return entry | dict.fromkeys(KNOWN) | {"reason": NO_BASE}
    base, base_gpus = runs[of_base], of_base[1]
    return entry | {
        "base_gpus": base_gpus,
        "speedup": mean * gpus / (mean_of(base) * base_gpus),
        "efficiency": mean / mean_of(base),
        "efficiency_min": min(rates) / max(base),
        "efficiency_max": max(rates) / min(base),
    }
