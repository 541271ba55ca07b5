"""Megatron-Bridge on a machine without a GPU: its CUDA calls are redirected to the CPU, in this module only.

Only the device is replaced: recipe, configuration, set-up, training loop, optimizer and schedule are Bridge's own.
Beside the calls that train/mega/cpu.py redirects, megatron-bridge 0.6.2 wants a CUDA device before it starts, warms up
kernels, compiles a helper that the wheel of megatron-core has already, and imports at its start four packages that have
no build for this machine, of which a training here calls nothing.
"""

from __future__ import annotations

import abc
import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from train.mega import cpu as mega_cpu

ABSENT = (
    "transformer_engine",  # needs CUDA
    "nvidia_resiliency_ext",  # asynchronous checkpoints and restarts
    "megatron.energon",  # data of images and video
    "megatron.bridge.diffusion",  # models of images and video, with the package diffusers
)
"""Packages that are empty while Bridge is imported."""


def redirect() -> None:
    """Import Bridge with its CUDA calls sent to the CPU for the rest of this process; once, and only without a GPU."""
    mega_cpu.redirect_framework()
    # megatron-core and modelopt look for TransformerEngine at their import, and must not find the empty one
    import megatron.core.distributed
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.optimizer  # noqa: F401
    import modelopt.torch.distill.plugins.megatron  # noqa: F401

    with _empty_packages(ABSENT):
        import megatron.bridge.recipes  # all of its recipes, also those of images  # noqa: F401
        from megatron.bridge.training import initialize, pretrain, setup  # noqa: F401
    setattr(initialize, "compile_helpers", lambda: None)  # noqa: B010 - mypy refuses the plain assignment
    setattr(setup, "set_jit_fusion_options", lambda *_: None)  # noqa: B010
    setattr(setup, "initialize_megatron", functools.partial(_initialize, initialize.initialize_megatron))  # noqa: B010


def _initialize(original: Any, *, cfg: Any, **named: Any) -> Any:
    """Initialize megatron-core with Bridge's own function; it gives tensor-parallel ranks their seed on CUDA alone."""
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    groups = original(cfg=cfg, allow_no_cuda=True, **named)
    model_parallel_cuda_manual_seed(cfg.rng.seed)
    return groups


def adapt(recipe: Any) -> None:
    """Replace in a recipe what a CPU lacks: the layers and the communication between ranks."""
    from train.mega.attention import local_layer

    recipe.dist.distributed_backend = "gloo"
    recipe.model.transformer_layer_spec = local_layer
    recipe.model.transformer_impl = "local"


class _AnyName(abc.ABCMeta):
    """Class whose attributes are classes like it, so that annotations and base classes can be written with them."""

    def __getattr__(cls, name: str) -> Any:
        return _class_named(name)


def _class_named(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _AnyName(name, (torch.nn.Module,), {"__init__": lambda self, *_, **__: None})


class _EmptyPackages(MetaPathFinder, Loader):
    """Finds the packages of `names`, with any module and any name inside them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def has(self, name: str) -> bool:
        return any(f"{name}.".startswith(f"{one}.") for one in self.names)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if self.has(fullname) else None

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, "__getattr__", _class_named)  # noqa: B010
        setattr(module, "__version__", "0")  # noqa: B010


@contextmanager
def _empty_packages(names: Sequence[str]) -> Iterator[None]:
    """Make `names` importable; at the end they are gone again, so that nothing later takes them for real."""
    finder = _EmptyPackages(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if finder.has(name)]:
            del sys.modules[name]
