"""The frameworks: what code outside of train/<name> must know of each, declared once in `FRAMEWORKS`.

Standard library only. docs/extending.md describes how to add a framework.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from utils.models import MODELS, Model


@dataclass(frozen=True)
class Framework:
    """All facts of one framework."""

    name: str
    """As in FRAMEWORK; a lower-case word without `_`."""
    in_all: tuple[str, ...] = ()
    """Platforms on which FRAMEWORK=all includes it; elsewhere it runs only where it is named."""
    vendor: str | None = None
    """Platform of the vendor whose own framework it is; on the other vendor's the one of that vendor runs instead."""
    has_megatron_layers: bool = False
    """True if it trains the layers of megatron-core, its own or TransformerEngine's."""
    fp8_recipes: tuple[str, ...] = ()
    """Values of FP8_RECIPE that it has. Whether a device has the format is known to its TransformerEngine alone."""
    can_train: Callable[[Model], bool] = lambda model: True
    """Returns whether it has what it needs to build a model."""
    packages: tuple[str, ...] = ()
    """Packages whose versions a result names, beside those of `utils/provenance/origin.py`."""
    has_own_python: bool = False
    """True if its ranks run in an environment of its own, made by shell/inside/setup_framework.sh."""
    starts_its_ranks: bool = False
    """True if it is one process that starts its ranks itself; the others are started by torchrun."""


def _fits_torchtitan(model: Model) -> bool:
    """Return whether train/titan/recipe.py can express the model.

    Of torchtitan's two classes the one that scales rotary frequencies has no norms of queries and keys and cannot get
    a bias, and a shared embedding is not filled.
    """
    spec = model.spec
    is_plain = not spec.qkv_bias and not spec.query_key_norm
    return not spec.tie_word_embeddings and (spec.rope_scaling is None or is_plain)


_TABLE = (
    Framework(
        "mega",
        in_all=("nvd", "amd", "cpu"),
        has_megatron_layers=True,
        # megatron-core 0.16.1, transformer_config.py: fp8_recipe and fp4_recipe
        fp8_recipes=("delayed", "current", "mxfp8", "nvfp4"),
    ),
    Framework(
        "prim",
        in_all=("amd",),  # on a CPU PRIMUS_PATH names its tree
        vendor="amd",
        has_megatron_layers=True,
        # Primus fd1eeab, trainer_base.yaml, and AMD's own llama3.1_8B-MXFP4-pretrain.yaml
        fp8_recipes=("delayed", "current", "mxfp8", "mxfp4"),
        can_train=lambda model: model.primus_preset is not None,
        starts_its_ranks=True,
    ),
    Framework("hf", in_all=("nvd", "amd", "cpu")),
    Framework(
        "nemo",
        in_all=("cpu",),  # on NVIDIA the last image with NeMo 2 is nemo:26.02
        vendor="nvd",
        has_megatron_layers=True,
        fp8_recipes=("delayed", "current", "mxfp8"),  # nemo_toolkit 2.3, MegatronMixedPrecision; it has no fp4
        can_train=lambda model: model.nemo_recipe is not None,
        packages=("nemo-toolkit", "nemo_run", "lightning"),
        has_own_python=True,
    ),
    Framework(
        "bridge",
        in_all=("nvd",),
        vendor="nvd",
        has_megatron_layers=True,
        fp8_recipes=("delayed", "current", "mxfp8", "nvfp4"),  # megatron-bridge 0.6.2, MixedPrecisionConfig
        can_train=lambda model: model.bridge_recipe is not None,
        packages=("megatron-bridge",),
        has_own_python=True,
    ),
    Framework("titan", can_train=_fits_torchtitan, packages=("torchtitan",), has_own_python=True),
)
FRAMEWORKS = {one.name: one for one in _TABLE}
"""All frameworks by name, in the order of FRAMEWORK=all."""
VENDOR_OF = {one.name: one.vendor for one in _TABLE if one.vendor is not None}
"""Platform of each framework that is a vendor's own."""
MEGATRON = tuple(one.name for one in _TABLE if one.has_megatron_layers)


def in_all(platform: str) -> list[str]:
    """Return the frameworks of FRAMEWORK=all on a platform."""
    return [one.name for one in _TABLE if platform in one.in_all]


def counterpart(name: str, platform: str) -> str | None:
    """Return the framework that runs on a vendor's platform in place of the other vendor's own; None for others.

    Where an image has NeMo and no Megatron-Bridge, NeMo runs (train/matrix.py).
    """
    if platform == "cpu" or VENDOR_OF.get(name, platform) == platform:
        return None
    return next(one for one in in_all(platform) if VENDOR_OF.get(one) == platform)


def can_train(framework: str, model: str) -> bool:
    """Return whether a framework has what it needs to build a model, both given by name."""
    return FRAMEWORKS[framework].can_train(MODELS[model])
