"""Pretraining with transformers: its own model classes under its own Trainer, on several ranks sharded by its FSDP2.

The baseline that everybody knows. No function inside the model is replaced: HF_KERNELS=stock leaves the model as
transformers builds it, HF_KERNELS=liger is the Trainer's own `use_liger_kernel`. Everything that has a documented
argument is set by it. What has none, and why it is set:

- samples, schedule, weights and optimizer, which the Trainer takes as arguments, are those of train_mega;
- `grad_dtype` of the weights (torch): bf16 gradients add up in float32, as in megatron-core's buffer;
- the dtypes of FSDP2 and gloo ranks: train/hf/model.py;
- losses, norms and times for the recorder, and loader workers that die with their rank: `BenchmarkTrainer`.

Reading order: `HuggingFace.run` -> `build` -> `run`.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from train.common import trainer
from train.common.adamw import FusedAdamW, WarmupCosine
from train.common.kernels import DTYPES, Facts, tokens_of_experts
from train.common.loading import LabelledSamples, loader_arguments, tie_workers
from train.common.trainer import Data, Ready
from train.common.weights import WeightSource, announce
from train.hf import resolved as hf_resolved
from train.hf.model import build_model, fsdp_settings, place_cpu_ranks, set_policy, set_recompute
from train.job.job import Job
from train.job.recorder import StepRecorder
from utils.errors import ConfigError
from utils.models import ModelSpec
from utils.settings.config import RunConfig


def named(tokens: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a sample or micro batch under the names that transformers uses.

    GPTDataset's labels are shifted already, so they are also given as `shift_labels`: without these transformers would
    shift `labels` again.
    """
    return {"input_ids": tokens, "labels": labels, "shift_labels": labels}


OF_LIGER = {
    # backends for devices that are not these, or that need a package which is not installed
    "liger_kernel.backends.registry": (
        "Backend impl 'liger_kernel.ops.backends._ascend",
        "Backend impl 'liger_kernel.ops.backends._cutedsl",
    ),
    "transformers.configuration_utils": ("`use_return_dict` is deprecated",),  # by which liger asks
}
"""Messages of liger-kernel 0.8 that mean nothing for a run."""
STACKED = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}
"""Weights of one expert in a parameter of transformers' experts, one below the other."""


class BenchmarkTrainer(Trainer):
    """The Trainer with the suite's optimizer; it keeps values for the recorder and reads the device once a step."""

    timed: Callable[[Iterator[Any]], Iterator[Any]] = iter
    """Measures the wait for micro batches: `StepRecorder.timed`."""
    when_built: Callable[[], None] = staticmethod(lambda: None)
    """Called when the Trainer has prepared model and optimizer, before the first step."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._losses: list[torch.Tensor] = []
        self._grad_norm: Any = None
        self._learning_rate = math.nan

    def create_accelerator_and_postprocess(self) -> None:
        """Create accelerate's Accelerator; CPU ranks are then treated as GPUs are."""
        super().create_accelerator_and_postprocess()
        place_cpu_ranks(self.accelerator, self.args)
        self.is_fsdp_enabled = self.args.fsdp_plugin_args is not None

    def get_train_dataloader(self) -> Any:
        """Return the Trainer's own loader, whose workers die with this rank."""
        loader = super().get_train_dataloader()
        tie_workers(loader.base_dataloader)
        return loader

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        """Take the micro batches of a step from the loader; only this is timed, not the count of tokens over ranks."""
        return super().get_batch_samples(self.timed(epoch_iterator), num_batches, device)

    def training_step(self, *args: Any, **keywords: Any) -> torch.Tensor:
        """Keep the micro batch's share of the loss, which the Trainer has divided by the tokens of the step."""
        loss = super().training_step(*args, **keywords)
        self._losses.append(loss.detach())
        return loss

    def _clip_grad_norm(self, model: Any) -> torch.Tensor:
        """Keep the norm before clipping; FSDP2 gives it in parts, which the ranks add up."""
        # clipping is the last call before the optimizer's step and the schedule's
        self._learning_rate = self.optimizer.param_groups[0]["lr"]
        norm = super()._clip_grad_norm(model)
        self._grad_norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        return norm

    def read_step(self) -> dict[str, Any]:
        """Return loss, gradient norm before clipping and learning rate of the step that has just ended."""
        loss = torch.stack(self._losses).sum()
        self._losses.clear()
        return {"loss": loss, "grad_norm": self._grad_norm, "learning_rate": self._learning_rate}


class Recording(TrainerCallback):
    """Tells when the Trainer has prepared model and optimizer, and records each step."""

    def __init__(self, training: BenchmarkTrainer, recorder: StepRecorder) -> None:
        self._training, self._recorder = training, recorder

    def on_train_begin(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        """Call `when_built` and start the recorder."""
        self._training.when_built()
        self._recorder.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
        """Record the step that has just ended."""
        self._recorder.end_step(**self._training.read_step())


def build(config: RunConfig, spec: ModelSpec, source: WeightSource | None, dataset: Any) -> BenchmarkTrainer:
    """Build model, optimizer, schedule and Trainer; weights from `source`, or transformers' own if None."""
    torch.manual_seed(config.seed)
    arguments = training_arguments(config)
    set_policy(arguments, config)
    # the Trainer gives it the groups with and without weight decay
    options = {
        "lr": config.learning_rate,
        "betas": (config.beta1, config.beta2),
        "eps": config.adam_epsilon,
        "state_dtype": DTYPES[config.optimizer_state],
    }
    training = BenchmarkTrainer(
        model=initial_model(config, spec, source),
        args=arguments,
        train_dataset=LabelledSamples(dataset, config.training_samples, named),
        optimizer_cls_and_kwargs=(FusedAdamW, options),
    )
    training.remove_callback(PrinterCallback)  # its closing summary would come between our own lines
    if config.num_gpus == 1:
        add_gradients_in(DTYPES[config.gradient_dtype], training.model)
    optimizer = training.create_optimizer()
    rule = WarmupCosine(
        config.warmup_iterations, config.train_iterations, config.min_learning_rate / config.learning_rate
    )
    training.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rule)
    return training


def initial_model(config: RunConfig, spec: ModelSpec, source: WeightSource | None) -> PreTrainedModel:
    """Return the model before the Trainer places or shards it; its weights are numbers of the precision asked for.

    On one rank they also have its dtype. Several ranks shard float32 masters, which start at the same numbers: rank 0
    has them all, and accelerate sends every rank its part (`cpu_ram_efficient_loading` of train/hf/model.py).
    """
    dtype = DTYPES[config.precision]
    held = dtype if config.num_gpus == 1 else torch.float32
    has_weights = config.num_gpus == 1 or torch.distributed.get_rank() == 0
    draw = has_weights and source is None
    model = build_model(spec, config.init_std, held, draw_weights=draw)
    set_recompute(model, config.recompute)
    if has_weights and source is not None:
        fill(model, source)
    # the masters start at the numbers of the precision, as those of every framework here
    if has_weights and held is not dtype:
        round_weights(model, dtype)
    return model


def add_gradients_in(dtype: torch.dtype, model: PreTrainedModel) -> None:
    """Let autograd add up the gradients of micro batches in `dtype`; of several ranks FSDP2 does it.

    Raises ConfigError where torch, before 2.10, can add them up in the dtype of the weights only.
    """
    for parameter in model.parameters():
        if parameter.dtype is dtype:
            continue
        if not hasattr(parameter, "grad_dtype"):
            raise ConfigError(
                f"GRADIENT_DTYPE: torch {torch.__version__} adds gradients of bf16 weights up in bf16; "
                "use torch 2.10 or newer, or GRADIENT_DTYPE=bf16"
            )
        parameter.grad_dtype = dtype


@torch.no_grad()
def fill(model: PreTrainedModel, source: WeightSource) -> None:
    """Fill every parameter from `source`, by name; transformers stacks the weights of a layer's experts."""
    # each parameter, of experts the part of each one, and the names of the weights in it, one below the other
    places: list[tuple[torch.Tensor, list[str]]] = []
    for name, parameter in model.named_parameters():
        layer, is_stacked, kind = name.partition(".experts.")
        if not is_stacked:
            places.append((parameter, [name]))
            continue
        for number, weight in enumerate(parameter):
            places.append((weight, [f"{layer}.experts.{number}.{part}_proj.weight" for part in STACKED[kind]]))
    announce(source, (name for _, names in places for name in names))
    for place, names in places:
        weights = [source(name) for name in names]
        place.copy_(weights[0] if len(weights) == 1 else torch.cat(weights))


@torch.no_grad()
def round_weights(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Round every weight to a number of `dtype`; the dtype of the weights stays."""
    for parameter in model.parameters():
        parameter.copy_(parameter.to(dtype))


def training_arguments(config: RunConfig) -> TrainingArguments:
    """Return the Trainer's settings: the same work as train_mega, nothing saved, evaluated, shuffled or logged.

    Logging is off because each log gathers the loss over ranks, and the NaN filter because it waits for the device
    after every micro batch. The recorder reads both at the end of a step.
    """
    loading = loader_arguments(config)
    accelerator: dict[str, Any] = {"non_blocking": loading["pin_memory"]}
    if config.num_gpus > 1:
        accelerator["gradient_accumulation_kwargs"] = {"sync_each_batch": True}  # see train/hf/model.py
    return TrainingArguments(
        output_dir=str(config.output_dir / "logs" / "hf_trainer"),
        use_cpu=config.platform == "cpu",
        ddp_backend="gloo" if config.platform == "cpu" else "nccl",
        max_steps=config.train_iterations,
        per_device_train_batch_size=config.micro_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        adam_beta1=config.beta1,
        adam_beta2=config.beta2,
        adam_epsilon=config.adam_epsilon,
        max_grad_norm=config.clip_grad,
        bf16=False,  # no autocast: the weights that layers multiply with are bf16 themselves, as in mega
        use_liger_kernel=config.hf_kernels == "liger",
        **fsdp_settings(config),
        seed=config.seed,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        accelerator_config=accelerator,
        **{f"dataloader_{name}": value for name, value in loading.items()},
        logging_strategy="no",
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


def run(training: BenchmarkTrainer, recorder: StepRecorder) -> None:
    """Train all steps on this rank and record each; ends with the losses averaged over ranks."""
    training.add_callback(Recording(training, recorder))
    training.timed = recorder.timed
    training.train()
    recorder.merge_ranks()


class HuggingFace(trainer.Framework):
    """transformers' models under its Trainer."""

    name = "hf"

    def start(self, config: RunConfig) -> None:
        """Start torch.distributed; the Trainer takes what it finds."""
        trainer.silence(OF_LIGER)
        super().start(config)

    def run(self, job: Job, data: Data, source: WeightSource | None, recorder: StepRecorder, ready: Ready) -> None:
        """Build and train; several ranks shard the model when the training starts, and only then is all built."""
        training = build(job.config, job.spec, source, data.dataset)
        training.when_built = lambda: ready(training, data.dataset)
        run(training, recorder)

    def routers(self, built: BenchmarkTrainer) -> Any:
        """Return the routers of all layers, whose last result has the numbers of the experts of each token."""
        gates = [layer.mlp.gate for layer in built.model.model.layers]
        return [(gate, functools.partial(tokens_of_experts, len(gate.weight), 2)) for gate in gates]

    def facts(self, job: Job, built: BenchmarkTrainer) -> Facts:
        """Return what was built."""
        return hf_resolved.read(built)


if __name__ == "__main__":
    sys.exit(trainer.main(HuggingFace()))
