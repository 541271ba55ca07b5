"""Strong scaling: tokens/s and tokens/s/GPU by number of GPUs, and the efficiency against one node.

The global batch is the same on every number of GPUs, so each GPU of a larger number does less work between two
exchanges of gradients. Efficiency is tokens/s/GPU over that of the base: one node of the same system that uses as many
GPUs of the node as the larger run uses of each of its nodes. Among runs on one node, the base is the run with the
fewest GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evaluate.metrics.throughput import tokens_per_second_per_gpu
from evaluate.report.groups import Group, Spread
from evaluate.report.tables import plain
from utils.results.schema import Result

HEADER = ("System", "GPUs", "Nodes", "Runs", "tokens/s", "tokens/s/GPU", "Speed-up", "Efficiency")
NO_BASE = "no counted result of one node with as many GPUs on it"
EXPLANATION = (
    "Efficiency is the geometric mean of tokens/s/GPU over that of the base, one node with as many GPUs on it, at the "
    "same global batch (strong scaling); min to max are the smallest and the largest quotient of two runs. Speed-up is "
    "the same of tokens/s. Both are over the runs of all hosts."
)


@dataclass(frozen=True)
class Scale:
    """The runs of one system on one number of GPUs."""

    group: str
    system: str
    gpus: int
    nodes: int
    per_gpu: Spread
    """tokens/s/GPU of each counted run."""
    base: Scale | None
    """Reference of speed-up and efficiency; None for a base itself, or if none fits."""

    def as_json(self) -> dict[str, Any]:
        """Return the entry of `scaling` in compare.json; a base itself has an efficiency of 1.0, which is no loss."""
        rate, base = self.per_gpu.mean * self.gpus, self.base
        known: dict[str, Any] = dict.fromkeys(("speedup", "efficiency", "efficiency_min", "efficiency_max"))
        if base is not None:
            known = {
                "speedup": rate / (base.per_gpu.mean * base.gpus),
                "efficiency": self.per_gpu.mean / base.per_gpu.mean,
                "efficiency_min": self.per_gpu.low / base.per_gpu.high,
                "efficiency_max": self.per_gpu.high / base.per_gpu.low,
            }
        elif self.nodes == 1:
            known = dict.fromkeys(known, 1.0)
        return {
            "group": self.group,
            "system": self.system,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "runs": len(self.per_gpu.values),
            "tokens_per_second": rate,
            "tokens_per_second_per_gpu": self.per_gpu.mean,
            "base_gpus": base.gpus if base else None,
            **known,
            "reason": NO_BASE if known["efficiency"] is None else None,
        }

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table with HEADER."""
        known = self.as_json()
        low, high = known["efficiency_min"], known["efficiency_max"]
        share = "-" if known["reason"] else f"{known['efficiency']:.1%}"
        if low != high:
            share += f", min to max {low:.1%} to {high:.1%}"
        return (
            f"{self.group}: {self.system}",
            *(str(known[key]) for key in ("gpus", "nodes", "runs")),
            *(f"{known[key]:,.0f}" for key in ("tokens_per_second", "tokens_per_second_per_gpu")),
            known["reason"] or f"{known['speedup']:.2f}",
            share,
        )


def scaling(groups: Sequence[Group]) -> list[Scale]:
    """Return one entry for each number of GPUs of every system that was measured on several."""
    return [scale for group in groups for scale in _of_group(group)]


def nodes_of(result: Result) -> int:
    """Return the number of machines that a result was measured on."""
    return len(result["provenance"].get("hosts") or [0])


def _of_group(group: Group) -> Iterator[Scale]:
    systems: dict[tuple[Any, ...], dict[tuple[int, int], list[float]]] = {}
    for entry in group.counted:
        result, config = entry.result, entry.result["training_config"]
        split = tuple(config[key] for key in ("tp", "pp", "cp", "micro_batch_size"))
        system = (result["platform"], result["framework"], result["gpu_info"]["device_name"], split)
        value = tokens_per_second_per_gpu(result)
        size = (nodes_of(result), config["num_gpus"])
        if value is not None:
            systems.setdefault(system, {}).setdefault(size, []).append(value)
    for (platform, framework, device, (tp, pp, cp, mbs)), sizes in sorted(systems.items(), key=str):
        if len(sizes) < 2:
            continue
        name = plain(f"{platform}/{framework} {device or 'unknown device'}, MBS {mbs}, TP {tp}, PP {pp}, CP {cp}")
        yield from _of_system(group.key.title, name, sizes)


def _of_system(group: str, system: str, sizes: dict[tuple[int, int], list[float]]) -> Iterator[Scale]:
    ones: dict[int, Scale] = {}
    for nodes, gpus in sorted(sizes):
        spread = Spread(tuple(sizes[nodes, gpus]))
        base = ones.get(gpus // nodes) if nodes > 1 else ones[min(ones)] if ones else None
        scale = Scale(group, system, gpus, nodes, spread, base)
        if nodes == 1:  # one machine with fewer and more GPUs
            ones[gpus] = scale
        yield scale
