"""The frameworks: what code outside of train/<name> must know of each, declared once in `FRAMEWORKS`.

Standard library only. docs/extending.md describes how to add a framework.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from utils.models import MODELS, Model

TENSOR, PIPELINE, CONTEXT, EXPERT = "TP", "PP", "CP", "EP"
"""Settings of the parallel sizes of a model, beside data parallelism, which every framework has."""
_MODEL_PARTS = ("tp", "pp", "ep")


@dataclass(frozen=True)
class Framework:
    """All facts of one framework. A default is what most frameworks are; a record names only what differs."""

    name: str
    """As in FRAMEWORK; a lower-case word without `_`."""
    other_names: tuple[str, ...] = ()
    """Names in results that are not of this suite."""
    in_all: tuple[str, ...] = ()
    """Platforms on which FRAMEWORK=all includes it; elsewhere it runs only where it is named."""
    vendor: str | None = None
    """Platform of the vendor whose own framework it is; on the other vendor's the one of that vendor runs instead."""
    older: str | None = None
    """Framework of the same vendor that runs in its place where the image has no environment for it."""

    # what it can train
    can_train: Callable[[Model], bool] = lambda model: True
    """Returns whether it has what it needs to build a model."""
    has_windows: bool = True
    """False if its models attend to every earlier token."""
    parallelism: tuple[str, ...] = (TENSOR, PIPELINE, CONTEXT, EXPERT)
    fp8_recipes: tuple[str, ...] = ()
    """Values of FP8_RECIPE that it has. Whether a device has the format is known to its TransformerEngine alone."""
    optimizer_states: tuple[str, ...] = ("fp32",)
    gradient_dtypes: tuple[str, ...] = ("fp32", "bf16")
    has_forced_balancing: bool = True
    """True if it can send every expert as many tokens (ROUTING=balanced)."""
    own_settings: tuple[str, ...] = ()
    """Fields of settings that it reads and no other framework does."""
    has_fixed_layers: bool = False
    """True if LAYERS can only confirm its layers: TransformerEngine's on a GPU, megatron-core's own on a CPU."""

    # how it is built and run
    built_from: tuple[str, ...] = ()
    """Packages of the suite's environment of which our own code builds its training; none of a vendor's framework."""
    has_megatron_layers: bool = False
    """True if it trains the layers of megatron-core, its own or TransformerEngine's."""
    packages: tuple[str, ...] = ()
    """Packages whose versions a result names, beside those of `utils/provenance/origin.py`."""
    has_own_python: bool = False
    """True if its ranks run in an environment of its own, made by shell/inside/setup_framework.sh."""
    starts_its_ranks: bool = False
    """True if it is one process that starts its ranks itself; the others are started by torchrun. Its steps are then
    read from its log, because no recorder of ours is in its ranks."""
    ignores_init: bool = False
    """True if it may draw its own initial weights whatever INIT says."""
    log_lacks: tuple[str, ...] = ()
    """Samples of a result that a framework without our recorder does not print."""
    weights_split_over: tuple[str, ...] = ()
    """Parallel sizes by which a rank's share of the weights is smaller, as keys of a result. Empty where unknown, and
    where no rule asks: for results that are read from a log."""
    foreign_layers: tuple[str, ...] = ()
    """Words in the names of layers that it cannot have."""
    process_gb: float | None = None
    """Resident set of a rank beside its tensors, GB (1e9 bytes): Python, torch, the framework, gloo. None if the suite
    has no memory estimate of it. Measured: jobs of the tiny Llama with MBS=1 SL=16, less their tensors (mega 0.42 to
    0.44, hf 0.53 to 0.54); AMD EPYC virtual machine, 2 cores, Python 3.11.7, torch 2.13.0+cpu, megatron-core 0.16.1,
    transformers 5.23.0, 21 November 2026."""


def _fits_torchtitan(model: Model) -> bool:
    """Return whether train/titan/recipe.py can express the model.

    Of torchtitan's two classes the one that scales rotary frequencies has no norms of queries and keys and cannot get
    a bias, and a shared embedding is not filled.
    """
    spec = model.spec
    is_plain = not spec.qkv_bias and not spec.query_key_norm
    return not spec.tie_word_embeddings and (spec.rope_scaling is None or is_plain)


_TRANSFORMERS_LAYERS = ("forcausallm", "transformers", "huggingface", "hf_")
_TABLE = (
    Framework(
        "mega",
        other_names=("megatron", "megatron-core"),
        in_all=("nvd", "amd", "cpu"),
        parallelism=(TENSOR, PIPELINE, EXPERT),  # its loop gives every rank whole sequences
        # megatron-core 0.16.1, transformer_config.py: fp8_recipe and fp4_recipe
        fp8_recipes=("delayed", "current", "mxfp8", "nvfp4"),
        optimizer_states=("fp32", "bf16"),
        own_settings=("layers",),
        built_from=("torch",),
        has_megatron_layers=True,
        weights_split_over=_MODEL_PARTS,
        foreign_layers=_TRANSFORMERS_LAYERS,
        process_gb=0.43,
    ),
    Framework(
        "prim",
        other_names=("primus",),
        in_all=("amd",),  # on a CPU PRIMUS_PATH names its tree
        vendor="amd",
        can_train=lambda model: model.primus_preset is not None,
        # Primus fd1eeab, trainer_base.yaml, and AMD's own llama3.1_8B-MXFP4-pretrain.yaml
        fp8_recipes=("delayed", "current", "mxfp8", "mxfp4"),
        has_megatron_layers=True,
        starts_its_ranks=True,
        ignores_init=True,  # on a GPU (settings map, row `initial weights`)
        log_lacks=("data_wait_seconds", "learning_rates"),
        foreign_layers=_TRANSFORMERS_LAYERS,
    ),
    Framework(
        "hf",
        other_names=("transformers", "huggingface"),
        in_all=("nvd", "amd", "cpu"),
        parallelism=(),  # FSDP2 alone, which shards experts like all other weights
        optimizer_states=("fp32", "bf16"),
        has_forced_balancing=False,
        own_settings=("hf_kernels",),
        built_from=("torch", "transformers"),
        weights_split_over=("dp",),
        foreign_layers=("megatron", "mcore", "transformer_engine"),
        process_gb=0.53,
    ),
    Framework(
        "nemo",
        in_all=("cpu",),  # on NVIDIA the last image with NeMo 2 is nemo:26.02
        vendor="nvd",
        can_train=lambda model: model.nemo_recipe is not None,
        fp8_recipes=("delayed", "current", "mxfp8"),  # nemo_toolkit 2.3, MegatronMixedPrecision; it has no fp4
        has_megatron_layers=True,
        packages=("nemo-toolkit", "nemo_run", "lightning"),
        has_own_python=True,
        weights_split_over=_MODEL_PARTS,
        foreign_layers=_TRANSFORMERS_LAYERS,
    ),
    Framework(
        "bridge",
        other_names=("megatron-bridge",),
        in_all=("nvd",),
        vendor="nvd",
        older="nemo",
        can_train=lambda model: model.bridge_recipe is not None,
        fp8_recipes=("delayed", "current", "mxfp8", "nvfp4"),  # megatron-bridge 0.6.2, MixedPrecisionConfig
        has_fixed_layers=True,
        has_megatron_layers=True,
        packages=("megatron-bridge",),
        has_own_python=True,
        weights_split_over=_MODEL_PARTS,
        foreign_layers=_TRANSFORMERS_LAYERS,
    ),
    Framework(
        "titan",
        other_names=("torchtitan",),
        can_train=_fits_torchtitan,
        has_windows=False,
        parallelism=(EXPERT,),  # this version runs its FSDP2 only
        gradient_dtypes=("fp32",),
        packages=("torchtitan",),
        has_own_python=True,
    ),
)
FRAMEWORKS = {framework.name: framework for framework in _TABLE}
"""All frameworks by name, in the order of FRAMEWORK=all."""
VENDOR_OF = {framework.name: framework.vendor for framework in _TABLE if framework.vendor is not None}
"""Platform of each framework that is a vendor's own."""


def of(name: str) -> Framework:
    """Return the record of a framework; of a name that the suite does not know, one without any special fact."""
    return FRAMEWORKS.get(name, Framework(name))


def reads(name: str, setting: str) -> bool:
    """Return whether a framework reads a setting, given by its field; one of `own_settings` is read by its owner."""
    # a setting without an owner is one of all frameworks
    owners = [framework.name for framework in _TABLE if setting in framework.own_settings]
    return not owners or name in owners


def in_all(platform: str) -> list[str]:
    """Return the frameworks of FRAMEWORK=all on a platform."""
    return [framework.name for framework in _TABLE if platform in framework.in_all]


def counterpart(name: str, platform: str) -> str | None:
    """Return the framework that runs on a vendor's platform in place of the other vendor's own; None for others.

    Where an image has NeMo and no Megatron-Bridge, NeMo runs (`older`, train/matrix.py).
    """
    if platform == "cpu" or of(name).vendor in (None, platform):
        return None
    return next(other for other in in_all(platform) if FRAMEWORKS[other].vendor == platform)


def can_train(framework: str, model: str) -> bool:
    """Return whether a framework has what it needs to build a model, both given by name."""
    return FRAMEWORKS[framework].can_train(MODELS[model])
