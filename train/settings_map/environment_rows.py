"""The settings map, part 2: environment variables that change speed, and how each framework's launcher treats them.

A variable that the user or the image has set takes precedence, except those of `decided`; the provenance of the result
records both. Sources: Primus v25.10 `examples/run_pretrain.sh`; ROCm/MAD `primus_megatron-lm_benchmark_report.sh`,
AMD's own benchmark; NeMo 2.3 `scripts/performance` and its PerfEnvPlugin, NVIDIA's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from train.settings_map.row import Fixed, Override, Wanted, always, override
from utils.frameworks import FRAMEWORKS

_UNSET = "left unset: the library's own default"
_PRIMUS = "examples/run_pretrain.sh of Primus sets it"


def _on(platform: str, value: str) -> Wanted:
    return lambda config, spec: value if config.platform == platform else None


@dataclass(frozen=True)
class Variable:
    """An environment variable that changes speed."""

    name: str
    wanted: Wanted
    fixed: Mapping[str, Fixed] = field(default_factory=dict)
    """Frameworks that get no value of ours, with the value there and the reason."""

    def of(self, framework: str) -> Override | Fixed:
        """Return the entry of a framework; titan is PyTorch with data parallelism only, as hf."""
        return self.fixed.get("hf" if framework == "titan" else framework) or override(self.name)


def _unset(name: str, reason: str = _UNSET, others: Mapping[str, Fixed] = MappingProxyType({})) -> Variable:
    return Variable(name, always(None), {**dict.fromkeys(FRAMEWORKS, Fixed(None, reason)), **others})


OF_ATTENTION = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
OF_PRODUCTS = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
_DECIDED = "removed, whoever set it: megatron-core sets it by its `attention_backend`"


def decided(framework: str) -> tuple[str, ...]:
    """Return the variables that the ranks of a framework never get from outside, because its settings decide them.

    megatron-core refuses values of the first three that disagree with its `attention_backend` (0.16.1 and 0.19.0,
    language_module.py), and AMD's image sets NVTE_FLASH_ATTN=0; Primus has a patch of its own for that. The last, which
    NVIDIA's images set, would round the operands of float32 products.
    """
    one = FRAMEWORKS[framework]
    return (*(OF_ATTENTION if one.has_megatron_layers and not one.starts_its_ranks else ()), OF_PRODUCTS)


ENVIRONMENT: tuple[Variable, ...] = (
    Variable(
        "CUDA_DEVICE_MAX_CONNECTIONS",
        # one hardware queue where Megatron needs its communication queued before its computation: with TP or CP
        lambda config, spec: (
            "1"
            if config.platform != "cpu" and (config.tensor_parallel_size > 1 or config.context_parallel_size > 1)
            else None
        ),
        {"hf": Fixed(None, "data parallel only"), "prim": Fixed("1", f"{_PRIMUS} where it is unset")},
    ),
    Variable("GPU_MAX_HW_QUEUES", _on("amd", "2")),
    Variable("HSA_ENABLE_SDMA", _on("amd", "1"), {"prim": Fixed(_on("amd", "1"), _PRIMUS)}),
    Variable("HSA_NO_SCRATCH_RECLAIM", _on("amd", "1")),
    Variable(
        "NVTE_CK_USES_BWD_V3", _on("amd", "1"), {"hf": Fixed(_on("amd", "1"), "no TransformerEngine that reads it")}
    ),
    Variable("TORCH_NCCL_HIGH_PRIORITY", _on("amd", "1")),
    Variable("TORCH_NCCL_AVOID_RECORD_STREAMS", _on("nvd", "1")),
    # Megatron's recipe; hf and titan move their weights by NCCL in every layer, which the switch may speed up
    Variable("NCCL_NVLS_ENABLE", _on("nvd", "0"), {"hf": Fixed(None, _UNSET)}),
    *(
        _unset(name, _DECIDED, {"hf": Fixed(None, _UNSET), "prim": Fixed(None, "as AMD's image sets it")})
        for name in OF_ATTENTION
    ),
    # TransformerEngine for CUDA multiplies float32 as TF32 whatever torch is set to, and the one for ROCm does not
    # (2.20.2, common/gemm/cublaslt_gemm.cu, CUBLAS_COMPUTE_32F_FAST_TF32)
    Variable(
        "NVIDIA_TF32_OVERRIDE",
        lambda config, spec: "0" if config.platform == "nvd" and config.precision == "fp32" else None,
    ),
    _unset(OF_PRODUCTS, "removed, whoever set it: the trainers set the precision of float32 products"),
    # Segments that grow do not fragment. Every release of torch reads this name; PYTORCH_ALLOC_CONF, which a user may
    # have set, takes precedence in torch itself. Not on AMD: before ROCm 10 such segments leak file descriptors until
    # allocation fails (pytorch/pytorch#192814), and can hang (#192259); torch 2.10 and older ignore the setting there.
    Variable("PYTORCH_CUDA_ALLOC_CONF", _on("nvd", "expandable_segments:True")),
    _unset("PYTORCH_HIP_ALLOC_CONF"),
)
