"""Rows of the settings map, the entries of a framework for them, and rules that several frameworks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from utils.models import ModelSpec
from utils.settings.config import RunConfig
from utils.settings.keys import NO_RECIPE, in_results
from utils.settings.profiling import Profile

RECORDER_PROFILES = "torch.profiler, started by the recorder (train/profiling)"
Wanted = Callable[[RunConfig, ModelSpec], Any]
Form = Callable[[Any], Any]
OFF_THE_END = 1_000_000_000
"""A step that no training reaches, for features that can only be postponed."""
FP8_FORMATS = {"delayed": "hybrid", "current": "hybrid", "mxfp8": "e4m3"}
"""Format of the 8-bit numbers by recipe. With one scale for a tensor, gradients need the range of E5M2 (hybrid); with
one for 32 numbers E4M3 serves everywhere, as in AMD's own llama3.1_8B-MXFP8-pretrain.yaml (Primus fd1eeab)."""
FP4_FORMAT = "e2m1"
_SCALING = {"current": "tensorwise"}


@dataclass(frozen=True)
class Override:
    """Keys of a framework to set, each with the row's value in the form that the key takes."""

    forms: tuple[tuple[str, Form], ...]
    when: Wanted | None = None
    """Where it is false nothing is set: the keys belong to another model or precision."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the keys in the framework."""
        return tuple(key for key, _ in self.forms)

    @property
    def unchanged_key(self) -> str | None:
        """Name of the first key that takes the value as it is, None where each takes another form."""
        return next((key for key, form in self.forms if form is _as_it_is), None)


@dataclass(frozen=True)
class Fixed:
    """Behaviour of a framework that no key of its own sets."""

    value: Any
    """The value, or a function of settings and model that returns it."""
    reason: str

    def of(self, config: RunConfig, spec: ModelSpec) -> Any:
        """Return the value in a configuration."""
        return self.value(config, spec) if callable(self.value) else self.value


@dataclass(frozen=True)
class MapRow:
    """One thing that has to be equal."""

    name: str
    wanted: Wanted
    resolved: str | None = None
    """Key of `resolved_config` that holds the value read back (a dot leads into a map); None where there is none."""


def override(
    *keys: str | tuple[str, Form], to: Mapping[str, Any] = MappingProxyType({}), when: Wanted | None = None
) -> Override:
    """Return an Override; a key alone takes the value unchanged, a pair through its function.

    Keys of `to` get the value there, whatever that of the row is.
    """
    forms = []
    for key in keys:
        forms.append((key, _as_it_is) if isinstance(key, str) else key)
    for name, constant_value in to.items():
        forms.append((name, _always_form(constant_value)))
    return Override(tuple(forms), when)


def asked(name: str) -> Wanted:
    """Return the rule that gives a field of RunConfig."""
    return lambda config, spec: getattr(config, name)


def shape(name: str) -> Wanted:
    """Return the rule that gives a field of ModelSpec."""
    return lambda config, spec: getattr(spec, name)


def always(value: Any) -> Wanted:
    """Return the rule that gives `value` for every training."""
    return lambda config, spec: value


def setting(name: str, field: str) -> MapRow:
    """Return the row of a setting that is read back, under the key of results that utils/settings/keys.py gives it."""
    return MapRow(name, asked(field), in_results()[field].key)


def dimension(name: str, field: str, resolved: str | None = None) -> MapRow:
    """Return the row of a field of ModelSpec, which is read back under the same name unless another one is given."""
    return MapRow(name, shape(field), resolved or field)


def rope_number(name: str, field: str) -> MapRow:
    """Return the row of a number of the rope scaling."""
    return MapRow(name, rope_scaling(field), f"rope_scaling.{field}")


def constant(name: str, value: Any, resolved: str | None = None) -> MapRow:
    """Return the row of something that is the same in every training."""
    return MapRow(name, always(value), resolved)


def _as_it_is(value: Any) -> Any:
    return value


def _always_form(value: Any) -> Form:
    return lambda _: value


# Rules and forms that several frameworks share


def on_gpu(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether the training runs on a GPU of either vendor; operations fused there are plain on a CPU."""
    return config.platform != "cpu"


def overlaps(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether communication overlaps with computation, which helps only between GPUs."""
    return config.platform != "cpu" and config.data_parallel_size > 1


def first_rate(config: RunConfig, spec: ModelSpec) -> float:
    """Return LR / (W + 1), the start of Megatron's warm-up that gives NeMo's rate at every step."""
    return config.learning_rate / (config.warmup_iterations + 1)


def has_experts(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether the model is a mixture of experts."""
    return spec.num_experts > 0


def of_mixture(wanted: Wanted) -> Wanted:
    """Return the rule of a row that a mixture of experts alone has; it gives None for other models."""
    return lambda config, spec: wanted(config, spec) if spec.num_experts else None


def is_balanced(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether the framework sends each expert as many tokens, whatever the router says."""
    return config.routing == "balanced"


def has_rope_scaling(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether the model scales rotary frequencies."""
    return spec.rope_scaling is not None


def rope_scaling(name: str) -> Wanted:
    """Return the rule that gives a number of the rope scaling, None of a model without it."""
    return lambda config, spec: getattr(spec.rope_scaling, name, None)


def is_native(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether each framework draws its own weights."""
    return config.init != "equal"


def is_profiled(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether some steps are profiled."""
    return config.profiled is not None


def profiled(config: RunConfig, spec: ModelSpec) -> Profile | None:
    """Return the profile with the numbers of its ranks; None without one."""
    # a framework that takes ranks by number has no word for all of them
    profile = config.profiled
    return None if profile is None else replace(profile, ranks=profile.ranks_of(config.num_gpus))


def has_8_bits(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether FP8_RECIPE is one of 8-bit numbers."""
    return config.fp8_recipe in FP8_FORMATS


def has_4_bits(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether FP8_RECIPE is one of 4-bit numbers."""
    return config.precision == "fp8" and config.fp8_recipe not in FP8_FORMATS


def is_delayed(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether the scales of 8-bit numbers come from earlier steps."""
    return config.fp8_recipe == "delayed"


def unexceeded_window(config: RunConfig, spec: ModelSpec) -> int | None:
    """Return the window if no sequence is longer, else None: its value in a framework that has no key for it."""
    is_exceeded = spec.sliding_window is not None and config.sequence_length > spec.sliding_window
    return None if is_exceeded else spec.sliding_window


def left(window: int | None) -> list[int] | None:
    """Return [W - 1, 0]: the window without the token itself, the form of megatron-core, flash attention and TE."""
    return None if window is None else [window - 1, 0]


def of_experts(place: str, *keys: str | tuple[str, Form], to: Mapping[str, Any] = MappingProxyType({})) -> Override:
    """Return an Override of keys at a place that only a mixture of experts has."""
    forms = tuple((place + key, form) for key, form in override(*keys, to=to).forms)
    return Override(forms, has_experts)


def megatron_experts(place: str) -> dict[str, Override]:
    """Return the entries of megatron-core's keys of a mixture of experts at a place, except the number of experts."""
    return {
        "experts of a token": of_experts(place, "moe_router_topk"),
        "weights of a token's experts": of_experts(
            place,
            to={
                "moe_router_score_function": "softmax",
                "moe_router_pre_softmax": False,
                "moe_router_topk_scaling_factor": None,
                "moe_router_num_groups": None,
            },
        ),
        "feed-forward size of an expert": of_experts(place, "moe_ffn_hidden_size"),
        "shared expert": of_experts(place, ("moe_shared_expert_intermediate_size", lambda size: size or None)),
        "auxiliary loss of the router": of_experts(
            place,
            "moe_aux_loss_coeff",
            to={"moe_router_load_balancing_type": "none", "moe_z_loss_coeff": None},
        ),
        "bias that balances the experts": of_experts(place, "moe_router_enable_expert_bias"),
        "tokens dropped": of_experts(place, to={"moe_expert_capacity_factor": None}),
        "forced balancing": of_experts(place, "moe_router_force_load_balancing"),
        "precision of the router": of_experts(place, "moe_router_dtype"),
        "EP": of_experts(place, "expert_model_parallel_size"),
        "exchange of tokens": of_experts(place, "moe_token_dispatcher_type"),
        "products of experts grouped": of_experts(place, "moe_grouped_gemm"),
        "permutation fused": of_experts(place, "moe_permute_fusion"),
    }


_MODEL_FIELDS = {
    "layers": "num_layers",
    "hidden size": "hidden_size",
    "feed-forward size": "ffn_hidden_size",
    "attention heads": "num_attention_heads",
    "channels of a head": "kv_channels",
    "vocabulary padded to a multiple of": "make_vocab_size_divisible_by",
    "norm": "normalization",
    "bias of linear layers": "add_bias_linear",
    "QKV bias": "add_qkv_bias",
    "norm of queries and keys": "qk_layernorm",
    "attention dropout": "attention_dropout",
    "hidden dropout": "hidden_dropout",
    "position embedding": "position_embedding_type",
    "rope over a part of a head's channels": "rotary_percent",
    "std of initial weights": "init_method_std",
    "residual stream in fp32": "fp32_residual_connection",
    "attention softmax in fp32": "attention_softmax_in_fp32",
    "bias dropout fusion": "bias_dropout_fusion",
    "masked softmax fusion": "masked_softmax_fusion",
    "apply rope fusion": "apply_rope_fusion",
    "cross entropy loss fusion": "cross_entropy_loss_fusion",
    "cross entropy fusion by": "cross_entropy_fusion_impl",
    "attention backend": "attention_backend",
}
"""Fields of megatron-core's TransformerConfig that take the value of a row unchanged, also as arguments of Primus."""
_PROVIDER_FIELDS = {
    "norm epsilon": "layernorm_epsilon",
    "SwiGLU": "gated_linear_unit",
    "embedding shared with the output layer": "share_embeddings_and_output_weights",
    "rope base": "rotary_base",
    "bias activation fusion": "bias_activation_fusion",
    "persist layer norm": "persist_layer_norm",
    "gradient accumulation fusion": "gradient_accumulation_fusion",
    "key/value groups": "num_query_groups",
}
"""Fields beside those that NeMo's and Bridge's model configurations share; Primus's arguments have other names."""


def megatron_model(place: str) -> dict[str, Override]:
    """Return the entries of the fields of a model of megatron-core at a place."""
    return {row: override(place + key) for row, key in _MODEL_FIELDS.items()}


def megatron_provider(place: str) -> dict[str, Override]:
    """Return the entries of the fields of a model configuration of NeMo or Bridge at a place."""
    return {row: override(place + key) for row, key in (_MODEL_FIELDS | _PROVIDER_FIELDS).items()}


def recomputation(place: str) -> tuple[tuple[str, Form], ...]:
    """Return megatron-core's three keys of RECOMPUTE at a place, each with the form of the value."""
    return (
        (f"{place}recompute_granularity", lambda kind: None if kind == "none" else kind),
        (f"{place}recompute_method", lambda kind: "uniform" if kind == "full" else None),
        (f"{place}recompute_num_layers", lambda kind: 1 if kind == "full" else None),
    )


def scaling(recipe: str) -> str:
    """Return Megatron's name of a recipe (megatron-core 0.16.1, `Fp8Recipe`)."""
    return _SCALING.get(recipe, recipe)


def transformer_settings(recipe: str) -> dict[str, Any]:
    """Return the fields of TransformerConfig for a recipe; `none` is a training without fp8."""
    if recipe in FP8_FORMATS:
        return {"fp8": FP8_FORMATS[recipe], "fp8_recipe": scaling(recipe)}
    return {} if recipe == NO_RECIPE else {"fp4": FP4_FORMAT, "fp4_recipe": recipe}


def resolved_recipe(settings: Any) -> str:
    """Return the recipe of a TransformerConfig by the name of the suite; `none` where neither fp8 nor fp4 is on."""
    if getattr(settings, "fp4", None):  # megatron-core 0.12 has no such field
        recipe = settings.fp4_recipe
    elif settings.fp8:
        recipe = settings.fp8_recipe
    else:
        return NO_RECIPE
    name = str(getattr(recipe, "value", recipe))  # an enum or a text
    for ours, theirs in _SCALING.items():
        if theirs == name:
            return ours
    return name
