"""The settings map, part 5: environment variables that change speed, and how each framework's launcher treats them.

A variable that the user has set takes precedence, and the provenance of the result records it. Sources: Primus v25.10
`examples/run_pretrain.sh`; ROCm/MAD `primus_megatron-lm_benchmark_report.sh`, AMD's own benchmark; NeMo 2.3
`scripts/performance` and its PerfEnvPlugin, NVIDIA's.
"""

from __future__ import annotations

from typing import Any

from train.settings_map.row import FRAMEWORKS, Fixed, MapRow, Wanted, always, field
from utils.models import ModelSpec
from utils.settings.config import RunConfig

_UNSET = "left unset: the library's own default"
_PRIMUS = "examples/run_pretrain.sh of Primus sets it"


def _on(platform: str, value: str) -> Wanted:
    return lambda config, spec: value if config.platform == platform else None


def _connections(config: RunConfig, spec: ModelSpec) -> str | None:
    """One hardware queue where Megatron needs its communication queued before its computation: with TP or CP."""
    is_split = config.tensor_parallel_size > 1 or config.context_parallel_size > 1
    return "1" if is_split and config.platform != "cpu" else None


def _every(name: str, wanted: Wanted, **others: Any) -> MapRow:
    """Return the row of a variable with one value for all frameworks except those in `others`."""
    return field(name, wanted, dict.fromkeys(FRAMEWORKS, ""), name, **others)


def _unset(name: str) -> MapRow:
    return _every(name, always(None), **dict.fromkeys(FRAMEWORKS, Fixed(None, _UNSET)))


ENVIRONMENT: tuple[MapRow, ...] = (
    _every(
        "CUDA_DEVICE_MAX_CONNECTIONS",
        _connections,
        hf=Fixed(None, "data parallel only"),
        prim=Fixed("1", f"{_PRIMUS} where it is unset"),
    ),
    _every("GPU_MAX_HW_QUEUES", _on("amd", "2")),
    _every("HSA_ENABLE_SDMA", _on("amd", "1"), prim=Fixed(_on("amd", "1"), _PRIMUS)),
    _every("HSA_NO_SCRATCH_RECLAIM", _on("amd", "1")),
    _every("NVTE_CK_USES_BWD_V3", _on("amd", "1"), hf=Fixed(_on("amd", "1"), "no TransformerEngine that reads it")),
    _every("TORCH_NCCL_HIGH_PRIORITY", _on("amd", "1")),
    _every("TORCH_NCCL_AVOID_RECORD_STREAMS", _on("nvd", "1")),
    _every("NCCL_NVLS_ENABLE", _on("nvd", "0")),
    # with attention_backend auto megatron-core refuses values of its own here
    _unset("NVTE_FLASH_ATTN"),
    _unset("NVTE_FUSED_ATTN"),
    # Segments that grow do not fragment. Every release of torch reads this name; PYTORCH_ALLOC_CONF, which a user may
    # have set, takes precedence in torch itself. Not on AMD: before ROCm 10 such segments leak file descriptors until
    # allocation fails (pytorch/pytorch#192814), and can hang (#192259); torch 2.10 and older ignore the setting there.
    _every("PYTORCH_CUDA_ALLOC_CONF", _on("nvd", "expandable_segments:True")),
    _unset("PYTORCH_HIP_ALLOC_CONF"),
)
