"""Attributions of a made-up pair with round numbers, for the tests of the section "why".

Side a: floor 100 ms, step 130 ms. Side b: floor 90 ms, step 156 ms. So the speed of b over a is 130 / 156 = 0.833, of
which 100 / 90 = 1.111 is the hardware and (130 / 100) / (156 / 90) = 0.75 the framework.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sides import side

from evaluate.checks.entries import Loaded
from evaluate.floor.parts import Factor, Loss, PairWhy, SideWhy
from evaluate.report.comparison import Comparison, compare
from utils.kinds import KINDS

A, B = "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"
FACTORS = "Of 0.833x, 1.11x is what the hardware's libraries deliver on these operators and 0.750x is the framework."
ARITHMETIC = "a step of A takes 130 ms and at least 100 ms; so 0.833x = 1.11 x 0.750."


def kinds(**milliseconds: float) -> dict[str, float]:
    """Return seconds of all kinds; those that are not named are 0."""
    assert set(milliseconds) <= set(KINDS)
    return {kind: milliseconds.get(kind, 0.0) / 1e3 for kind in KINDS}


def side_a(**changes: Any) -> SideWhy:
    """Return side a; it loses 30 ms: 15 idle, 6 in matrix products, 4 + 4 + 1 elsewhere."""
    losses = (
        Loss("idle", 15e-3, "idle (the device waits for the host): 15.0 ms, launch gaps and other waits of the host"),
        Loss("matmul", 6e-3, "matrix products: 6.00 ms over the floor, mostly aten::mm (4096, 1024) x (1024, 4096)"),
        Loss("memory_bound", 4e-3, "memory-bound operators: 4.00 ms over the floor"),
        Loss("communication_exposed", 4e-3, "exposed communication: 4.00 ms over the floor"),
        Loss("host_copy", 1e-3, "copies between host and device: 1.00 ms over the floor"),
    )
    found = SideWhy(
        name=A,
        step_seconds=0.130,
        step_low=0.129,
        step_high=0.131,
        floor_seconds=0.100,
        floor_spread_percent=2.0,
        floor_by_kind=kinds(matmul=60, attention=10, memory_bound=20, optimizer=5, communication_exposed=5),
        measured_by_kind=kinds(
            matmul=66, attention=10, memory_bound=24, optimizer=5, communication_exposed=9, host_copy=1, idle=15
        ),
        losses=losses,
        probe="probe_nvd_node1.json",
        profile="profiles/train_nvd_mega_llama_run1",
        remarks=(),
    )
    return replace(found, **changes)


def side_b(**changes: Any) -> SideWhy:
    """Return side b; it loses 66 ms: 36 in matrix products, 20 idle, 10 in attention."""
    losses = (
        Loss("matmul", 36e-3, "matrix products: 36.0 ms over the floor, mostly aten::mm (4096, 1024) x (1024, 4096)"),
        Loss("idle", 20e-3, "idle (the device waits for the host): 20.0 ms, launch gaps and other waits of the host"),
        Loss("attention", 10e-3, "attention: 10.0 ms over the floor"),
    )
    found = SideWhy(
        name=B,
        step_seconds=0.156,
        step_low=0.154,
        step_high=0.158,
        floor_seconds=0.090,
        floor_spread_percent=1.0,
        floor_by_kind=kinds(matmul=50, attention=15, memory_bound=15, optimizer=5, communication_exposed=5),
        measured_by_kind=kinds(matmul=86, attention=25, memory_bound=15, optimizer=5, communication_exposed=5, idle=20),
        losses=losses,
        probe="probe_amd_node2.json",
        profile="profiles/train_amd_mega_llama_run1",
        remarks=("the probe ran 3 hours after the first run",),
    )
    return replace(found, **changes)


def unprofiled(found: SideWhy) -> SideWhy:
    """Return a side without a profile: its whole loss is not divided."""
    over = found.step_seconds - found.floor_seconds
    words = f"{over * 1e3:.3g} ms over the floor, not divided, because there is no profile of this job and machine"
    return replace(found, measured_by_kind=None, losses=(Loss("unattributed", over, words),), profile="")


def attributed(a: SideWhy | None = None, b: SideWhy | None = None) -> PairWhy:
    """Return the attribution of the pair."""
    return PairWhy(
        a=a or side_a(),
        b=b or side_b(),
        refused="",
        ratio=Factor(130 / 156, 0.82, 0.85),
        hardware=Factor(100 / 90, 1.09, 1.13),
        framework=Factor(0.75, 0.73, 0.77),
        sentences=(FACTORS, ARITHMETIC, "Most is lost in matrix products."),
    )


def refused(reason: str) -> PairWhy:
    """Return a pair of which nothing is attributed."""
    return PairWhy(None, None, reason, None, None, None, (f"How much of the ratio is hardware is unknown: {reason}.",))


def comparison(*whys: PairWhy | None) -> Comparison:
    """Return a comparison of as many pairs, each with its attribution; None: without one."""
    entries = []
    for number in range(len(whys)):
        entries += side("nvd", 0.130, 3, model=f"m{number}") + side("amd", 0.156, 3, model=f"m{number}")
    found = compare(Loaded(tuple(entries), ()), [Path("output")])
    assert len(found.judged) == len(whys)
    return replace(found, whys=whys)
