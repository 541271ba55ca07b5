"""Several ranks: the Trainer's FSDP2 shards weights, gradients and optimizer states (ZeRO stage 3).

A rank keeps its part of the float32 master weights. Layers compute in bf16 with PRECISION=bf16: a gathered weight is
the master, rounded. The gradients of each micro batch are reduced in GRADIENT_DTYPE and added, in float32, to a rank's
part of the sum (`sync_each_batch`). The Trainer's default, to reduce once a step, would keep whole float32 gradients on
every rank. Gathered weights stay from the forward to the backward pass of a micro batch (`reshard_after_forward`), as
megatron-core's distributed optimizer keeps them. Two things have no argument: the dtypes (`set_policy`) and gloo ranks
(`place_cpu_ranks`).
"""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import TrainingArguments

from train.common.kernels import DTYPES
from utils.settings.config import RunConfig


def fsdp_settings(config: RunConfig) -> dict[str, Any]:
    """Return the arguments of TrainingArguments that shard, for a training on several ranks; none on one."""
    if config.num_gpus == 1:
        return {}
    # one rank of all holds the whole model in host memory, not each
    settings = {"version": 2, "reshard_after_forward": False, "cpu_ram_efficient_loading": True}
    return {"fsdp": True, "fsdp_config": settings}


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
