"""Several ranks: the Trainer's FSDP2 shards weights, gradients and optimizer states (ZeRO stage 3).

A rank keeps its part of the float32 master weights. Layers compute in bf16 with PRECISION=bf16: a gathered weight is
the master, rounded. The gradients of each micro batch are reduced in GRADIENT_DTYPE and added, in float32, to a rank's
part of the sum. The Trainer's default, to reduce once a step, would keep whole gradients on every rank and add to them
in a pass of its own over memory. Weights are gathered once a step, as megatron-core's distributed optimizer does, and
stay whole until the last backward pass has used them: FSDP2's default would gather them twice for every micro batch.
"""

from __future__ import annotations

import itertools
from typing import Any

from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from transformers import PreTrainedModel, TrainingArguments

from train.common.precision import DTYPES
from utils.settings.config import RunConfig


def fsdp_settings(config: RunConfig) -> dict[str, Any]:
    """Return the arguments of TrainingArguments that shard, for a training on several ranks; none on one."""
    if config.num_gpus == 1:
        return {}
    # one rank of all holds the whole model in host memory, not each
    settings = {"version": 2, "reshard_after_forward": False, "cpu_ram_efficient_loading": True}
    return {"fsdp": True, "fsdp_config": settings}


def accumulation_settings(config: RunConfig) -> dict[str, Any]:
    """Return the part of `accelerator_config` by which gradients are reduced after each micro batch."""
    return {} if config.num_gpus == 1 else {"gradient_accumulation_kwargs": {"sync_each_batch": True}}


def set_policy(arguments: TrainingArguments, config: RunConfig) -> None:
    """Set the dtypes of computing and of reduction, for which TrainingArguments has no field.

    accelerate's own policy would reduce in bf16 and also round the loss to bf16.
    """
    if arguments.fsdp_plugin_args is not None:
        arguments.fsdp_plugin_args["mixed_precision_policy"] = MixedPrecisionPolicy(
            param_dtype=DTYPES[config.precision],
            reduce_dtype=DTYPES[config.gradient_dtype],
            cast_forward_inputs=False,  # they follow the weights already, and the count of tokens must stay exact
        )


def place_cpu_ranks(accelerator: Accelerator, arguments: TrainingArguments) -> None:
    """Treat gloo ranks as accelerate treats GPUs: several shard, one is not wrapped.

    accelerate knows FSDP on accelerators only and sets there what is set here; one CPU rank it would wrap in DDP.
    """
    state = accelerator.state
    if state.distributed_type != DistributedType.MULTI_CPU:
        return
    kind = DistributedType.NO if arguments.fsdp_plugin_args is None else DistributedType.FSDP
    state.distributed_type = PartialState._shared_state["distributed_type"] = kind
    if arguments.fsdp_plugin_args is not None:
        state.fsdp_plugin = FullyShardedDataParallelPlugin(**arguments.fsdp_plugin_args)


def prefetch(model: PreTrainedModel) -> None:
    """Gather the weights of each layer while the one before it computes. In the backward pass FSDP2 does so itself."""
    units = [model.model.embed_tokens, *model.model.layers, model.model.norm]
    for unit, following in itertools.pairwise(units):
        unit.set_modules_to_forward_prefetch([following])


def keep_gathered(model: PreTrainedModel, *, until_next_pass: bool) -> None:
    """Let the backward pass that follows keep the gathered weights for the next micro batch, or give them up."""
    model.set_reshard_after_backward(not until_next_pass)


def policy_of(model: PreTrainedModel) -> MixedPrecisionPolicy | None:
    """Return the dtypes with which a layer was sharded, None where the model is not sharded."""
    layer = model.model.layers[0]
    return layer._get_fsdp_state()._mp_policy if isinstance(layer, FSDPModule) else None


def gathers_ahead(model: PreTrainedModel) -> bool:
    """Return whether every layer gathers the weights of the next one before it computes."""
    return all(
        isinstance(layer, FSDPModule) and layer._get_fsdp_state()._states_to_forward_prefetch
        for layer in model.model.layers
    )
