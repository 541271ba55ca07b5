"""The rule by which an installed TransformerEngine (TE) can be used: it has what megatron-core calls.

Evidence: `NEEDED` lists the names that megatron-core imports or subclasses without a way around
(megatron/core/extensions/transformer_engine.py, fp8_utils.py) with the parameters that it passes for the models here,
each from the version on at which a guard `is_te_min_version` of megatron-core asks for it. They were compared with the
sources of NVIDIA's TransformerEngine 2.4.0, 2.9.0, 2.12.0, 2.18.0 and 2.20.0.dev0, and by syntax tree with the wheel of
2.20.2, which have every name and parameter. megatron-core 0.16.1 and 0.19.2 import with the Python of 2.12.0 and 2.16.0
and build llama, qwen and mistral from it. Outside `try`, the two releases take no other name at import. The names of
`router` are of mixtures of experts, but they are imported by version alone, so a TE without them would end the import.
ROCm's fork (2.15) is on no package index and could not be read: that it has NVIDIA's names is not verified. What is
installed is looked at before megatron-core is imported, so that no version number decides.

A TE that cannot be used is hidden from megatron-core, which would otherwise fail at import or mix both kinds of layers.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from utils.errors import ConfigError
from utils.readings import reason_of

PACKAGE = "transformer_engine"


@dataclass(frozen=True)
class Needed:
    """A name that megatron-core needs, with the parameters that it passes."""

    module: str
    name: str
    method: str | None = None
    """Method of a class whose parameters are compared; None for a function or where no parameter is passed."""
    parameters: str = ""
    since: str = "0"
    """First version for which megatron-core asks for it."""

    def missing(self) -> str | None:
        """Return the place of what is missing, None where everything is there; raises what an import raises."""
        found: Any = getattr(importlib.import_module(f"{PACKAGE}.{self.module}"), self.name, None)
        place = f"{self.module}.{self.name}"
        if found is None:
            return place
        if self.method is not None:
            found = getattr(found, self.method)
        if not self.parameters:
            return None
        parameters = inspect.signature(found).parameters
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            return None
        absent = [name for name in self.parameters.split() if name not in parameters]
        return f"{place}({', '.join(absent)})" if absent else None


_LINEAR = (
    "in_features out_features sequence_parallel fuse_wgrad_accumulation tp_group tp_size get_rng_state_tracker "
    "init_method bias return_bias parallel_mode params_dtype device"
)
_ATTENTION = (
    "num_attention_heads kv_channels attention_dropout attn_mask_type sequence_parallel tp_size get_rng_state_tracker "
    "tp_group layer_number num_gqa_groups attention_type window_size softmax_scale cp_group cp_global_ranks cp_stream "
    "cp_comm_type"
)
NEEDED = (
    Needed("pytorch", "Linear", "__init__", f"{_LINEAR} rng_tracker_name"),
    Needed("pytorch", "Linear", "forward", "is_first_microbatch"),
    Needed(
        "pytorch",
        "LayerNormLinear",
        "__init__",
        f"{_LINEAR} eps normalization return_layernorm_output zero_centered_gamma",
    ),
    Needed("pytorch", "LayerNormLinear", "forward", "is_first_microbatch"),
    Needed("pytorch", "DotProductAttention", "__init__", _ATTENTION),
    Needed("pytorch", "DotProductAttention", "forward", "attn_mask_type"),
    Needed("pytorch", "RMSNorm", "__init__", "eps sequence_parallel params_dtype zero_centered_gamma hidden_size"),
    Needed("pytorch", "LayerNorm"),
    Needed("pytorch", "GroupedLinear", since="1.9.0.dev0"),
    Needed("pytorch.fp8", "FP8GlobalStateManager"),
    Needed("pytorch.fp8", "fp8_autocast", None, "enabled fp8_recipe fp8_group"),
    Needed("pytorch.tensor", "QuantizedTensor", since="2.0"),
    Needed("pytorch.distributed", "CudaRNGStatesTracker"),
    Needed("pytorch.distributed", "activation_recompute_forward"),
    Needed("pytorch.distributed", "checkpoint"),
    Needed("pytorch.module.base", "get_dummy_wgrad", None, "shape dtype zero"),
    Needed("pytorch.attention.rope", "apply_rotary_pos_emb", None, "tensor_format interleaved fused", since="2.3.0"),
    Needed("pytorch.router", "fused_topk_with_score_function", since="2.7.0.dev0"),
    Needed("pytorch.router", "fused_compute_score_for_moe_aux_loss", since="2.7.0.dev0"),
    Needed("pytorch.router", "fused_moe_aux_loss", since="2.7.0.dev0"),
    Needed("common.recipe", "DelayedScaling"),
    Needed("common.recipe", "Format"),
)


@functools.cache
def reason_against() -> str | None:
    """Return, in one line, the reason why the installed TransformerEngine cannot be used; None where it can be."""
    try:
        package = importlib.import_module(PACKAGE)
    except ModuleNotFoundError:
        return "TransformerEngine is not installed"
    except Exception as error:  # noqa: BLE001 - its import loads libraries of CUDA, which fail in many ways
        return f"TransformerEngine cannot be imported: {reason_of(error)}"
    text = str(getattr(package, "__version__", "of unknown version"))
    try:
        version = Version(text)
        missing = []
        for need in NEEDED:
            place = need.missing() if version >= Version(need.since) else None
            if place is not None:
                missing.append(place)
    except InvalidVersion:
        return f"TransformerEngine {text}: megatron-core cannot read this version"
    except Exception as error:  # noqa: BLE001 - as above
        return f"TransformerEngine {text} cannot be imported: {reason_of(error)}"
    return f"TransformerEngine {text} lacks {', '.join(missing)}" if missing else None


def hide_if_unusable() -> None:
    """Make megatron-core see no TransformerEngine where it cannot be used; call it before megatron-core's import."""
    if reason_against() is not None:
        modules = [name for name in sys.modules if name.startswith(f"{PACKAGE}.")]
        for name in [PACKAGE, *modules]:
            sys.modules[name] = None  # type: ignore[assignment]  # Python's own way to make an import fail


def is_chosen(layers: str, *, has_gpu: bool) -> bool:
    """Return whether the layers are TransformerEngine's, for `auto`, `te` or `local`.

    Raises ConfigError with the reason where `te` is asked for and cannot be used.
    """
    reason = reason_against() if has_gpu else "TransformerEngine needs a GPU"
    if layers == "te" and reason is not None:
        raise ConfigError(f"LAYERS=te: {reason}; use LAYERS=local or auto")
    return layers != "local" and reason is None
