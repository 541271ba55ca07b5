"""Strong scaling: tokens/s and tokens/s/GPU by number of GPUs, and the efficiency against one node.

The global batch is the same on every number of GPUs, so each GPU of a larger number does less work between two
exchanges of gradients. Efficiency is tokens/s/GPU over that of the base: one node of the same system that uses as many
GPUs of the node as the larger run uses of each of its nodes. Among runs on one node, the base is the run with the
fewest GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluate.metrics.throughput import tokens_per_second_per_gpu
from evaluate.report.groups import Group, Spread
from evaluate.report.tables import plain

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


def cells(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the row of an entry in a table with HEADER."""
    low, high = entry["efficiency_min"], entry["efficiency_max"]
    share = "-" if entry["reason"] else f"{entry['efficiency']:.1%}"
    if low != high:
        share += f", min to max {low:.1%} to {high:.1%}"
    return (
        f"{entry['group']}: {entry['system']}",
        *(str(entry[key]) for key in ("gpus", "nodes", "runs")),
        *(f"{entry[key]:,.0f}" for key in ("tokens_per_second", "tokens_per_second_per_gpu")),
        entry["reason"] or f"{entry['speedup']:.2f}",
        share,
    )


def _of_group(group: Group) -> Iterator[dict[str, Any]]:
    systems: dict[tuple[Any, ...], dict[tuple[int, int], list[float]]] = {}
    for entry in group.counted:
        result, config = entry.result, entry.result["training_config"]
        split = tuple(config[key] for key in ("tp", "pp", "cp", "micro_batch_size"))
        system = (result["platform"], result["framework"], result["gpu_info"]["device_name"], split)
        value = tokens_per_second_per_gpu(result)
        size = (len(result["provenance"].get("hosts") or [0]), config["num_gpus"])
        if value is not None:
            systems.setdefault(system, {}).setdefault(size, []).append(value)
    for (platform, framework, device, (tp, pp, cp, mbs)), sizes in sorted(systems.items(), key=str):
        name = plain(f"{platform}/{framework} {device or 'unknown device'}, MBS {mbs}, TP {tp}, PP {pp}, CP {cp}")
        spreads = {size: Spread(tuple(values)) for size, values in sorted(sizes.items())}
        for size in spreads if len(spreads) > 1 else ():
            yield {"group": group.key.title, "system": name} | _scaled(size, spreads)


def _scaled(size: tuple[int, int], spreads: Mapping[tuple[int, int], Spread]) -> dict[str, Any]:
    """Return the figures of a number of nodes and GPUs; a base itself has an efficiency of 1.0, which is no loss."""
    (nodes, gpus), found = size, spreads[size]
    of_base = (1, gpus // nodes) if nodes > 1 else min(spreads)
    base = spreads.get(of_base) if size != of_base else None
    rate = found.mean * gpus
    known = dict.fromkeys(KNOWN, 1.0 if size == of_base else None)
    if base is not None:
        quotients = (
            *(rate / (base.mean * of_base[1]), found.mean / base.mean),
            *(min(found.values) / max(base.values), max(found.values) / min(base.values)),
        )
        known = dict(zip(KNOWN, quotients, strict=True))
    return {
        "gpus": gpus,
        "nodes": nodes,
        "runs": len(found.values),
        "tokens_per_second": rate,
        "tokens_per_second_per_gpu": found.mean,
        "base_gpus": of_base[1] if base else None,
        **known,
        "reason": NO_BASE if known["efficiency"] is None else None,
    }
