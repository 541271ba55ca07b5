"""Arguments of the running Megatron of Primus, from the table that it prints before it builds anything.

Rank 0 prints every argument after all defaults, presets and its own corrections, one per line, as
`  name ....... value` with name and dots 48 wide (megatron/training/arguments.py, `_print_args`, Megatron-core 0.15 and
0.16). Megatron builds from these values; Primus offers nothing else to read back.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from train.common.weights import EMBEDDING, flat_parameters, output_weight
from train.prim.yaml_config import was_loaded
from train.settings_map.map import ROWS, entry_of
from train.settings_map.row import resolved_recipe
from utils.models import TRAITS, ModelSpec, RopeScaling, without_absent_traits
from utils.results.schema import SECTIONS

WIDTH = 48
OF_EXPERTS = {"routing"} | {trait.key for trait in TRAITS if not trait.is_always_recorded and not trait.is_left_out}
"""Keys of `resolved_config` of a mixture of experts alone."""
Printed = Mapping[str, Any]
"""Arguments of the running Megatron by name, as far as Primus printed them."""
FUSED_OPS = {"gradient_accumulation_fusion": "gradient_accumulation_fusion"}  # the map does not set it
"""`fused_ops` of a result, by the name that Megatron-core's configuration has, and the argument."""
SAME = {"num_gpus": "world_size", "dp": "data_parallel_size", "rope_base": "rotary_base"}
"""Keys of `resolved_config` whose value is an argument, unchanged; `_derived` replaces those that need more."""
for _row in ROWS:
    _key = getattr(entry_of(_row, "prim"), "unchanged_key", None)
    if _key is None or _row.resolved is None or _row.resolved in OF_EXPERTS:
        continue
    _section, _, _name = _row.resolved.rpartition(".")
    if _section == "fused_ops":
        FUSED_OPS[_name] = _key
    elif not _section:
        SAME[_name] = _key
NOT_SAID = "Primus does not say"
NO_TABLE = "Primus printed no table of its arguments"
NATIVE, EQUAL = "native", "equal"
"""Values of `init`: Primus draws its own initial weights, or loads those of train/prim/yaml_config.py."""
PRECISIONS = {"float32": "fp32", "bfloat16": "bf16"}
"""Names of the suite for names of torch."""
LOCAL_ATTENTION = "megatron_core:dot_product"
"""Core attention of local layers: `DotProductAttention` of megatron-core, whatever `attention_backend` is."""
_NO_RECIPE = {"fp8_recipe": None, "fp4_recipe": None}
_ANSI = re.compile(r"\x1b?\[[0-9;]*m")
_ARGUMENT = re.compile(r"(?:^|\s)(?P<name>[A-Za-z]\w*) (?P<dots>\.+) (?P<value>.*)$")
_PARAMETERS = re.compile(
    r"number of parameters on \(tensor, pipeline\) model parallel rank \((?P<tp>\d+), (?P<pp>\d+)\): (?P<count>\d+)"
)
_VOCABULARY = re.compile(r"> ?padded vocab \(size: \d+\) with \d+ dummy tokens \(new size: (?P<size>\d+)\)")
_END = "end of arguments"
_ATTENTION_RAN = re.compile(r"Running with (?P<kernel>Flash|Fused|Unfused)\w* backend(?: \(\D*(?P<which>[^)]*)\))?")
"""TransformerEngine's line about the attention that it takes, with NVTE_DEBUG=1 and NVTE_DEBUG_LEVEL=1 or more."""
FUSED_LIBRARIES = {"0": "aotriton", "1": "ck"}
"""NVTE_Fused_Attn_Backend of ROCm's TransformerEngine (transformer_engine/common/include, fused_attn.h)."""


class Arguments:
    """The table, the vocabulary and the numbers of parameters, collected line by line."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.is_complete = False
        """Whether the end of the table has been printed."""
        self.parameters: dict[tuple[int, int], int] = {}
        """Number by tensor and pipeline rank."""
        self.padded_vocabulary: int | None = None
        self.attention: dict[str, str] = {}
        """Attention that ran, by key of `resolved_config`; empty where it is not printed."""

    def take(self, line: str) -> None:
        """Read one line of Primus's output, with its prefix and colours."""
        text = plain(line)
        parameters, vocabulary, attention = (
            pattern.search(text) for pattern in (_PARAMETERS, _VOCABULARY, _ATTENTION_RAN)
        )
        if parameters is not None:
            self.parameters[int(parameters["tp"]), int(parameters["pp"])] = int(parameters["count"])
        elif vocabulary is not None:
            self.padded_vocabulary = int(vocabulary["size"])
        elif attention is not None:
            self._take_attention(attention["kernel"].lower(), attention["which"])
        elif _END in text:
            self.is_complete = bool(self.values)
        else:
            argument = _ARGUMENT.search(text)
            # another line may have dots between two words; in the table name and dots have one width
            if argument is not None and len(argument["name"]) + len(argument["dots"]) == WIDTH:
                self.values[argument["name"]] = _value(argument["value"])

    def _take_attention(self, kernel: str, which: str | None) -> None:
        """Take the attention that TransformerEngine chose; `which` is flash's version or the number of a backend."""
        libraries = {"flash": f"flash_attn {which}", "fused": FUSED_LIBRARIES.get(str(which)), "unfused": "torch"}
        self.attention = {"attention_backend": f"transformer_engine:{kernel}"}
        library = libraries[kernel]
        if library is not None:
            self.attention["attention_library"] = library

    def resolved(self, spec: ModelSpec) -> dict[str, Any]:
        """Return `resolved_config` as far as these lines show it, with a reason for every null."""
        resolved: dict[str, Any] = dict.fromkeys(SECTIONS["resolved_config"])
        resolved["parameter_count"] = self._parameter_count(spec)
        resolved["vocab_size"] = self.padded_vocabulary
        if not self.is_complete:
            return _with_reasons(resolved, dict.fromkeys(resolved, NO_TABLE))
        printed = self.values
        for key, name in SAME.items():
            resolved[key] = printed.get(name)
        resolved |= self._derived() | self.attention
        # megatron/core/optimizer/__init__.py (core 0.15 to 0.19): weights of one dimension are not decayed, unless
        # one of two arguments says otherwise, which older releases lack
        if not printed.get("no_weight_decay_cond_type") and not printed.get("apply_wd_to_qk_layernorm"):
            resolved["parameters_without_weight_decay"] = sum(flat_parameters(spec).values())
        if printed.get("num_experts"):
            resolved |= self._routing()
        resolved["tie_word_embeddings"] = printed.get("untie_embeddings_and_output_weights") is False
        resolved = without_absent_traits(resolved)
        reasons = dict.fromkeys(resolved, NOT_SAID)
        reasons["sliding_window"] = "Primus has no sliding window: every token attends to every earlier one"
        reasons["parameter_count"] = "not every tensor and pipeline rank has printed its number"
        if printed.get("use_rope_scaling") is False:
            reasons["rope_scaling"] = "Primus was told not to scale rotary frequencies"
        return _with_reasons(resolved, reasons)

    def _derived(self) -> dict[str, Any]:
        """Return the keys whose value follows from arguments, None where these are not printed."""
        printed = self.values
        facts: dict[str, Any] = {
            "init": EQUAL if was_loaded(printed) else NATIVE,
            "precision": _precision(printed),
            # where Megatron-LM has the first name, it never reads the second, which Primus prints all the same
            "norm_eps": printed.get("layernorm_epsilon", printed.get("norm_epsilon")),
            "attention_backend": _attention(printed),
            "layer_implementation": str(printed.get("transformer_impl")),
            "parameter_dtype": _parameter_dtype(printed),
            "optimizer_state": _state_precision(printed),
            "gradient_dtype": PRECISIONS.get(_reduction(printed) or ""),
            "gradient_reduce_dtype": _reduction(printed),
            "fused_ops": {key: printed[name] for key, name in FUSED_OPS.items() if name in printed},
        }
        if _is_turbo(printed):
            facts["layer_implementation"] += "+primus_turbo"
        if "no_persist_layer_norm" in printed:
            facts["fused_ops"]["persist_layer_norm"] = not printed["no_persist_layer_norm"]
        samples = printed.get("global_batch_size")
        at_once = (printed.get("micro_batch_size") or 0) * (printed.get("data_parallel_size") or 0)
        if samples and at_once:
            facts["gradient_accumulation"] = int(samples // at_once)
        if "fp8" in printed:
            facts["fp8_recipe"] = resolved_recipe(SimpleNamespace(**_NO_RECIPE | printed))
        if printed.get("use_rope_scaling"):
            # the other three are constants of Megatron-core (rotary_pos_embedding.py), those of Llama 3.1
            facts["rope_scaling"] = dataclasses.asdict(RopeScaling(factor=printed["rope_scaling_factor"]))
        if printed.get("window_size"):
            facts["sliding_window"] = printed["window_size"][0] + 1
        if "recompute_granularity" in printed:  # Megatron prints None where nothing is computed again
            facts["recompute"] = printed["recompute_granularity"] or "none"
        return facts

    def _routing(self) -> dict[str, Any]:
        """Return what decides the experts of a token."""
        printed = self.values
        dtypes = {"fp32": "float32", "fp64": "float64"}
        has_loss = printed["moe_router_load_balancing_type"] not in ("none", ["none"])
        routing = "learned"
        if printed.get("moe_router_force_load_balancing"):
            routing = "balanced"
            # to the experts in turn, where Megatron's forced balancing, `uniform`, draws random logits
            if printed.get("moe_router_force_load_balancing_type") == "even":
                routing = "balanced, in turn"
        return {
            "ffn_hidden_size": printed["moe_ffn_hidden_size"],
            "num_experts": printed["num_experts"],
            "experts_per_token": printed["moe_router_topk"],
            "routing": routing,
            "router_dtype": dtypes.get(printed["moe_router_dtype"], _parameter_dtype(printed)),
            "router_auxiliary_loss": float(printed["moe_aux_loss_coeff"]) if has_loss else 0.0,
            "shared_expert_size": printed["moe_shared_expert_intermediate_size"] or 0,
            "token_dropping": printed["moe_expert_capacity_factor"] is not None,
        }

    def _parameter_count(self, spec: ModelSpec) -> int | None:
        """Return the sum over tensor and pipeline ranks, with each weight that several ranks hold counted once.

        Each tensor rank counts all norms; the last pipeline stage of a tied model counts the embedding again. Of the
        expert-parallel ranks only the first prints, and counts its own experts. None until every rank has printed its
        number.
        """
        tensor, pipeline = (self.values.get(f"{kind}_model_parallel_size") for kind in ("tensor", "pipeline"))
        if not isinstance(tensor, int) or not isinstance(pipeline, int) or len(self.parameters) != tensor * pipeline:
            return None
        copies = 0
        if pipeline > 1 and output_weight(spec) == EMBEDDING:
            copies = spec.vocab_size * spec.hidden_size
        norms = sum(size for name, size in flat_parameters(spec).items() if not name.endswith(".bias"))
        shares = self.values.get("expert_model_parallel_size") or 1
        elsewhere = spec.num_layers * (spec.num_experts - spec.num_experts // shares)
        experts = elsewhere * 3 * spec.hidden_size * spec.ffn_hidden_size
        return sum(self.parameters.values()) - (tensor - 1) * norms - copies + experts


def _with_reasons(resolved: dict[str, Any], reasons: Mapping[str, str]) -> dict[str, Any]:
    missing = {key: reason for key, reason in reasons.items() if resolved[key] is None}
    return resolved | {"reasons": missing}


def plain(line: str) -> str:
    """Return a line of Primus without its colours and newline."""
    return _ANSI.sub("", line).rstrip()


def first_learning_rate(values: Printed) -> float | None:
    """Return the learning rate of step 1 by Megatron's scheduler (core/optimizer_param_scheduler.py, `get_lr`)."""
    value = values.get("lr_warmup_init" if values.get("lr_warmup_iters") else "lr")
    return float(value) if isinstance(value, int | float) else None


def _value(text: str) -> Any:
    """Return a number, list, True, False or None, which are printed as Python literals, else the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _precision(printed: Printed) -> str | None:
    if printed.get("fp8") or printed.get("fp4"):
        return "fp8"
    if printed.get("fp16"):
        return "fp16"
    if "bf16" not in printed:
        return None
    return "bf16" if printed["bf16"] else "fp32"


def _parameter_dtype(printed: Printed) -> str | None:
    return str(printed["params_dtype"]).removeprefix("torch.") if "params_dtype" in printed else None


def _is_turbo(printed: Printed) -> bool:
    return bool(printed.get("enable_primus_turbo")) and printed.get("tensor_model_parallel_size") == 1


def _attention(printed: Printed) -> str:
    if _is_turbo(printed) and printed.get("use_turbo_attention"):
        return "primus_turbo"
    if printed.get("transformer_impl") == "local":
        return LOCAL_ATTENTION
    return f"transformer_engine:{printed.get('attention_backend')}"


def _reduction(printed: Printed) -> str | None:
    """Return the type in which Megatron reduces gradients: fp32 if it accumulates in fp32, else that of parameters."""
    if printed.get("accumulate_allreduce_grads_in_fp32"):
        return "float32"
    return _parameter_dtype(printed)


def _state_precision(printed: Printed) -> str | None:
    """Return the precision of Adam's moments, which only the precision-aware optimizer keeps in anything but fp32."""
    if "use_distributed_optimizer" not in printed:
        return None
    if not printed.get("use_precision_aware_optimizer"):
        return "fp32"
    name = str(printed.get("exp_avg_dtype")).removeprefix("torch.")
    return PRECISIONS.get(name, name)
