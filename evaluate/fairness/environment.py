"""Certificate items on the environment of both sides: a variable that slows a side down must not differ between them.

A run without a recorded environment proves nothing about a variable: its state is unknown, never "not set". A handicap
that is known in one run of a side counts for the side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evaluate.fairness.items import ALLOWED, BLOCKING, NOT_KNOWN, UNKNOWN, Item
from utils.provenance.origin import on_record
from utils.results.schema import Result

NOT_SET = "not set"
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


def environment(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Item]:
    """Yield an item for each environment variable that differs, and one if the environment of a run is unknown."""
    sides = [[one["provenance"]["environment"] for one in side] for side in (a, b)]
    if any(one is None for side in sides for one in side):
        words = ["not recorded" if None in side else "recorded" for side in sides]
        yield Item("environment", UNKNOWN, words[0], words[1])
    for name in sorted({name for side in sides for one in side for name in one or {}}):
        values = [_values(side, name) for side in (a, b)]
        if values[0] == values[1] and len(values[0]) == 1:
            continue
        taken = [_handicaps(side, name) for side in (a, b)]
        left, right = (" or ".join(sorted(side)) for side in values)
        if len(taken[0] | taken[1]) < 2 and not _is_half_known(taken):
            note = max(remark(*_environment(one), name) for one in (*a, *b))
            yield Item(f"environment {name}", ALLOWED, left, right, note)
        else:
            where = "on one side only" if not all(max(side, default="") for side in taken) else "in some runs only"
            yield Item(
                f"environment {name}", BLOCKING, left, right, f"{name} {where}, where {max(taken[0] | taken[1])}"
            )


def _values(side: Sequence[Result], name: str) -> set[str]:
    """Return the values of a variable in the runs of a side."""
    found = set()
    for one in side:
        known = one["provenance"]["environment"]
        if known is None:
            found.add(NOT_KNOWN)
        elif name in known:
            found.add(on_record(name, str(known[name])))  # earlier versions recorded every value
        else:
            found.add(NOT_SET)
    return found


def _handicaps(side: Sequence[Result], name: str) -> set[str]:
    """Return the effects of a variable on the runs of a side whose environment is known; "" is none."""
    known = [one for one in side if one["provenance"]["environment"] is not None]
    return {handicap(*_environment(one), name) for one in known}


def _is_half_known(taken: Sequence[set[str]]) -> bool:
    """Return whether one side has a handicap and nothing is known of the other."""
    return any(max(side, default="") for side in taken) and not all(taken)


def _environment(result: Result) -> tuple[str, dict[str, str]]:
    return result["platform"], result["provenance"]["environment"] or {}


def handicap(platform: str, environment: Mapping[str, str], name: str) -> str:
    """Return how a variable of this environment slows a platform down; empty if no such effect is known."""
    value = str(environment.get(name, ""))
    return "" if _recipe(platform, environment, name) else HANDICAPS.get((name, value), "")


def remark(platform: str, environment: Mapping[str, str], name: str) -> str:
    """Return the note on a variable that may differ: the recipe that sets it, or its effect on speed."""
    return _recipe(platform, environment, name) or SPEED_UPS.get((name, str(environment.get(name, ""))), "")


def _recipe(platform: str, environment: Mapping[str, str], name: str) -> str:
    """Return the vendor recipe that a variable of this environment belongs to; empty if there is none."""
    (beside, needed), source = RECIPES.get((platform, name, str(environment.get(name, ""))), (("", ""), ""))
    return source if source and environment.get(beside) == needed else ""
