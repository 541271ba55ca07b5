"""Certificate items on the conditions of both sides: power cap, clocks, throttling, NUMA balancing, other work.

They come from the section `conditions` of the results (train/machine/conditions.py), which results of earlier versions
lack, and from the environment: a variable that slows a side down must not be set on one side alone. Caps and clocks of
different products differ by design; an item compares how far each side was held below the default of its own product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluate.fairness.items import ALLOWED, BLOCKING, SAME, UNKNOWN, Item
from utils.provenance.origin import on_record
from utils.results.schema import SLOWDOWNS, Result

NOT_RECORDED = "not recorded"
NO_GPU = "no GPU"
NOT_SHOWN = "not shown there"
ALWAYS = ("power cap", "clocks", "NUMA balancing")
"""Names of the items that every certificate has."""
TOLERANCE = 0.01
LEAST_PERCENT = 1.0
MAX_BUSY_PERCENT = 20.0
"""The limit above which train/preflight/job_checks.py warns."""
OF_MACHINE = {"cpu_governor": "cpu governor"}
MODES = {"ecc": "ECC", "partition": "partition", "persistence": "persistence mode", "compute_mode": "compute mode"}

Section = Mapping[str, Any]
HANDICAPS = {
    ("CUDA_LAUNCH_BLOCKING", "1"): "every kernel is waited for (CUDA C++ Programming Guide)",
    ("HIP_LAUNCH_BLOCKING", "1"): "every kernel is waited for (HIP documentation)",
    ("AMD_SERIALIZE_KERNEL", "1"): "each kernel waits for the one before (HIP documentation)",
    ("AMD_SERIALIZE_KERNEL", "2"): "every kernel is waited for (HIP documentation)",
    ("AMD_SERIALIZE_KERNEL", "3"): "every kernel is waited for (HIP documentation)",
    ("AMD_SERIALIZE_COPY", "3"): "every copy is waited for (HIP documentation)",
    ("HSA_ENABLE_SDMA", "0"): "copies take compute units instead of the copy engines (ROCm documentation)",
    ("HSA_NO_SCRATCH_RECLAIM", "0"): "scratch memory is given back after each kernel; AMD's own benchmark sets 1",
    ("NCCL_P2P_DISABLE", "1"): "GPUs exchange through the host (NCCL documentation)",
    ("NCCL_SHM_DISABLE", "1"): "GPUs of a machine exchange through the network (NCCL documentation)",
    ("NCCL_IB_DISABLE", "1"): "machines exchange over sockets, not InfiniBand (NCCL documentation)",
    ("NCCL_COLLNET_ENABLE", "0"): "reductions in the network are off (NCCL documentation)",
    ("NCCL_NET_GDR_LEVEL", "LOC"): "the network does not read GPU memory itself (NCCL documentation)",
    ("NCCL_P2P_LEVEL", "LOC"): "GPUs exchange through the host (NCCL documentation)",
    ("NCCL_NVLS_ENABLE", "0"): "reductions in the switch are off (NCCL documentation)",
    ("RCCL_MSCCL_ENABLE", "0"): "RCCL's tuned collectives are off (RCCL documentation)",
    ("RCCL_MSCCLPP_ENABLE", "0"): "RCCL's tuned collectives are off (RCCL documentation)",
    ("NVTE_FLASH_ATTN", "0"): "TransformerEngine may not take FlashAttention",
    ("NVTE_FUSED_ATTN", "0"): "TransformerEngine may not take fused attention",
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"): "every allocation goes to the driver (PyTorch documentation)",
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"): "collectives are checked as they run (PyTorch documentation)",
    ("TORCH_NCCL_BLOCKING_WAIT", "1"): "every collective is waited for (PyTorch documentation)",
    ("NVIDIA_TF32_OVERRIDE", "1"): "32-bit matrix products are made with fewer bits (cuBLAS documentation)",
}
"""Effect of a variable and its value on a side: time that it costs, or work that it skips."""
SPEED_UPS = {
    ("PYTORCH_TUNABLEOP_ENABLED", "1"): "the fastest kernel is looked for, by shape (PyTorch documentation, TunableOp)",
    ("TORCH_BLAS_PREFER_HIPBLASLT", "1"): "hipBLASLt is taken where there is a choice (PyTorch documentation)",
    ("NVTE_FUSED_ATTN", "1"): "TransformerEngine may take fused attention",
    ("NVTE_FLASH_ATTN", "1"): "TransformerEngine may take FlashAttention",
}
"""Means of a vendor, like its kernels and compilers: they may differ, and are shown with their effect."""
RECIPES = {
    ("nvd", "NCCL_NVLS_ENABLE", "0"): (
        ("TORCH_NCCL_AVOID_RECORD_STREAMS", "1"),
        "NVIDIA's own recipe has it (NeMo 2.3, scripts/performance), with TORCH_NCCL_AVOID_RECORD_STREAMS=1",
    ),
}
"""Values that a vendor sets for speed on its platform, by platform, variable and value: another variable of the same
recipe, and the source. Without that other variable the value does not follow the recipe; it switches a feature off."""


@dataclass(frozen=True)
class _Condition:
    """One condition of one run, in words."""

    text: str
    is_handicap: bool | None
    """True if it slows the run; None if unknown."""
    share: float = 1.0
    """Share of the product's default, at most 1."""


def items(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield an item for each condition that either side has on record, and always one for each of ALWAYS."""
    sides: list[list[Section]] = [[one.get("conditions") or {} for one in side] for side in (a, b)]
    if not all(section for side in sides for section in side):
        words = [NOT_RECORDED if not all(side) else "recorded" for side in sides]
        yield from (Item(name, UNKNOWN, *words) for name in ALWAYS)
        return
    yield _handicaps("power cap", sides, _power_cap, "power cap below the default on one side")
    yield _handicaps("clocks", sides, _clocks, "clocks limited on one side")
    yield _handicaps("NUMA balancing", sides, _numa, "NUMA balancing slows one side")
    yield _noted("slowing down", sides, _slowing, "one side was slowed down by heat or its power supply")
    yield _noted("other work", sides, _other_work, "other work was there before one side's job")
    is_one_vendor = a[0]["platform"] == b[0]["platform"] != "cpu"
    for key, name in (*OF_MACHINE.items(), *(MODES.items() if is_one_vendor else ())):
        if any(section.get(key) is not None for side in sides for section in side):  # else no machine has it
            yield _plain(name, sides, key)


def _handicaps(name: str, sides: Sequence[Sequence[Section]], read: Callable[[Section], _Condition], note: str) -> Item:
    """Return an item that blocks if one side is held back more than the other, or if the runs of one side differ."""
    (left, right), (text_a, text_b) = _read(sides, read)
    known = [one.is_handicap is not None for one in (*left, *right)]
    if text_a == text_b and not any(known):
        return Item(name, SAME if text_a == NO_GPU else UNKNOWN, text_a, text_b)
    if not all(known):
        return Item(name, UNKNOWN, text_a, text_b)
    shares = [[one.share for one in side] for side in (left, right)]
    if any(max(side) - min(side) > TOLERANCE for side in shares):
        return Item(name, BLOCKING, text_a, text_b, f"{name} differs between the runs of one side")
    if abs(min(shares[0]) - min(shares[1])) > TOLERANCE:
        return Item(name, BLOCKING, text_a, text_b, note)
    both = f"{name}: both sides are held back alike" if any(one.is_handicap for one in left) else ""
    return Item(name, SAME if text_a == text_b and not both else ALLOWED, text_a, text_b, both)


def _noted(name: str, sides: Sequence[Sequence[Section]], read: Callable[[Section], _Condition], note: str) -> Item:
    """Return an item on an event during a run. It never blocks, because the interval of the ratio covers its effect."""
    (left, right), (text_a, text_b) = _read(sides, read)
    if any(one.is_handicap is None for one in (*left, *right)):
        return Item(name, SAME if text_a == text_b == NO_GPU else UNKNOWN, text_a, text_b)
    hit = [any(one.is_handicap for one in side) for side in (left, right)]
    if hit[0] != hit[1]:
        return Item(name, ALLOWED, text_a, text_b, note)
    return Item(name, SAME if text_a == text_b else ALLOWED, text_a, text_b)


def _read(
    sides: Sequence[Sequence[Section]], read: Callable[[Section], _Condition]
) -> tuple[list[list[_Condition]], tuple[str, str]]:
    found = [[read(section) for section in side] for side in sides]
    text_a, text_b = (" or ".join(dict.fromkeys(one.text for one in side)) for side in found)
    return found, (text_a, text_b)


def _plain(name: str, sides: Sequence[Sequence[Section]], key: str) -> Item:
    words = [sorted({str(section.get(key) or NOT_SHOWN) for section in side}) for side in sides]
    text_a, text_b = (" or ".join(side) for side in words)
    if NOT_SHOWN in words[0] + words[1]:
        return Item(name, UNKNOWN, text_a, text_b)
    return Item(name, SAME if words[0] == words[1] and len(words[0]) == 1 else ALLOWED, text_a, text_b)


def _power_cap(section: Section) -> _Condition:
    cap, default = section.get("power_cap_watts"), section.get("default_power_cap_watts")
    most = section.get("max_power_cap_watts")
    if cap is None:
        return _unknown(section, "power_cap_watts")
    if default:
        share = min(1.0, cap / default)
        if abs(cap - default) <= TOLERANCE * default:
            return _Condition(f"{cap:g} W, the default", is_handicap=False)
        return _Condition(f"{cap:g} W, default {default:g} W", cap < default, share)
    if most and cap >= most * (1 - TOLERANCE):
        return _Condition(f"{cap:g} W, the highest that the board allows", is_handicap=False)
    return _Condition(f"{cap:g} W, default unknown", None)


def _clocks(section: Section) -> _Condition:
    limit, default, most = (
        section.get(key) for key in ("clock_limit_mhz", "default_clock_limit_mhz", "max_sm_clock_mhz")
    )
    level = str(section.get("performance_level") or "auto").lower().removeprefix("amdsmi_dev_perf_level_")
    if level not in ("auto", "unknown"):
        return _Condition(f"performance level {level}", is_handicap=True, share=0.0)
    if limit is not None and default and limit < default * (1 - TOLERANCE):
        return _Condition(f"limited to {limit:g} MHz, default {default:g} MHz", is_handicap=True, share=limit / default)
    if most is None:
        return _unknown(section, "max_sm_clock_mhz")
    return _Condition(f"up to {most:g} MHz", is_handicap=False)


def _numa(section: Section) -> _Condition:
    balancing, nodes = section.get("numa_balancing"), section.get("numa_nodes")
    if nodes == 1:
        return _Condition("one node", is_handicap=False)
    if balancing is None:
        return _Condition("not shown by the kernel", None)
    return _Condition("on", is_handicap=True, share=0.0) if balancing else _Condition("off", is_handicap=False)


def _slowing(section: Section) -> _Condition:
    shares = section.get("throttled_percent")
    if shares is not None:
        slow = {name: share for name, share in shares.items() if name in SLOWDOWNS and share >= LEAST_PERCENT}
        text = ", ".join(f"{name} {share:.0f} % of the run" for name, share in sorted(slow.items()))
        return _Condition(text or "no", bool(slow))
    active = section.get("throttle_after")
    if active is None:
        return _unknown(section, "throttle_after")
    slow_now = sorted(SLOWDOWNS.intersection(active))
    return _Condition(f"{', '.join(slow_now)} at the end" if slow_now else "not at the end", bool(slow_now))


def _other_work(section: Section) -> _Condition:
    processes, busy = section.get("other_processes"), section.get("busy_before_percent")
    found = [f"{processes} processes on the GPUs"] if processes else []
    found += [f"{busy:.0f} % of the cores busy"] if busy is not None and busy > MAX_BUSY_PERCENT else []
    return _Condition(", ".join(found) or "none", bool(found))


def _unknown(section: Section, key: str) -> _Condition:
    reason = section.get("reasons", {}).get(key, "unknown")
    return _Condition(NO_GPU if reason == NO_GPU else f"unknown ({reason})", None)


def environment(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield an item for each environment variable that differs; one that slows a side down forbids a comparison."""
    environments = [_merged(one["provenance"]["environment"] or {} for one in side) for side in (a, b)]
    for name in sorted({*environments[0], *environments[1]}):
        left, right = (environment.get(name, "not set") for environment in environments)
        if left == right:
            continue
        taken = [{handicap(*_environment(one), name) for one in side} for side in (a, b)]
        if taken[0] == taken[1] and len(taken[0]) == 1:
            note = max(remark(*_environment(one), name) for one in (*a, *b))
            yield Item(f"environment {name}", ALLOWED, left, right, note)
        else:
            note = f"{name} on one side only, where {max(taken[0] | taken[1])}"
            yield Item(f"environment {name}", BLOCKING, left, right, note)


def _environment(result: Result) -> tuple[str, dict[str, str]]:
    return result["platform"], result["provenance"]["environment"] or {}


def _merged(environments: Any) -> dict[str, str]:
    found: dict[str, set[str]] = {}
    for environment in environments:
        for name, value in environment.items():
            found.setdefault(name, set()).add(on_record(name, str(value)))  # earlier versions recorded every value
    return {name: " or ".join(sorted(values)) for name, values in found.items()}


def handicap(platform: str, environment: Mapping[str, str], name: str) -> str:
    """Return how a variable of this environment slows a platform down; empty if no such effect is known."""
    value = environment.get(name, "")
    return "" if _recipe(platform, environment, name) else HANDICAPS.get((name, value), "")


def remark(platform: str, environment: Mapping[str, str], name: str) -> str:
    """Return the note on a variable that may differ: the recipe that sets it, or its effect on speed."""
    return _recipe(platform, environment, name) or SPEED_UPS.get((name, environment.get(name, "")), "")


def _recipe(platform: str, environment: Mapping[str, str], name: str) -> str:
    """Return the vendor recipe that a variable of this environment belongs to; empty if there is none."""
    (beside, needed), source = RECIPES.get((platform, name, environment.get(name, "")), (("", ""), ""))
    return source if source and environment.get(beside) == needed else ""
