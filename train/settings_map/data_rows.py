"""The settings map, part 2: the data and their order, and features that are switched off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from train.settings_map.row import DATA, Fixed, MapRow, always, asked, field, override
from utils.dataset.place import data_prefix
from utils.models import ModelSpec
from utils.settings.config import RunConfig
from utils.settings.profiling import Profile

_OURS_HAS_NONE = "train_mega's loop has none of it"
RECORDER_PROFILES = "torch.profiler, started by the recorder (train/profiling)"
_OFF_THE_END = 1_000_000_000
"""A step that no training reaches, for features that can only be postponed."""


def _prefix(config: RunConfig, spec: ModelSpec) -> str:
    return str(data_prefix(config, spec.name))


def _samples(config: RunConfig, spec: ModelSpec) -> int:
    return config.training_samples


def is_profiled(config: RunConfig, spec: ModelSpec) -> bool:
    """Return whether some steps are profiled."""
    return config.profiled is not None


def profiled(config: RunConfig, spec: ModelSpec) -> Profile | None:
    """Return the profile with the numbers of its ranks; None without one."""
    profile = config.profiled
    return None if profile is None else replace(profile, ranks=profile.ranks_of(config.num_gpus))


def _off(name: str, nemo: Any, prim: Any, hf: Any = None) -> MapRow:
    return MapRow(name, always(False), Fixed(False, _OURS_HAS_NONE), hf or Fixed(False, "not asked for"), nemo, prim)


def _not(value: bool) -> bool:
    return not value


_DATA = (
    MapRow(
        "seed of weights",
        asked("seed"),
        Fixed(asked("seed"), "EqualWeights, or megatron-core's generators, get it from train_mega"),
        override("TrainingArguments.seed"),
        Fixed(asked("seed"), "NeMo 2.3 has 1234 in its code; train_nemo puts SEED in its place"),
        override("seed"),
        "seed",
    ),
    field("seed of the order of samples", asked("seed"), DATA, "random_seed", "seed", nemo="seed", prim="seed"),
    MapRow(
        "data set",
        _prefix,
        override(("GPTDatasetConfig.blend", lambda prefix: ([prefix], None))),
        override(("GPTDatasetConfig.blend", lambda prefix: ([prefix], None))),
        override(("data.paths", lambda prefix: [prefix])),
        override(
            "train_data_path",
            ("data_path", lambda prefix: None),
            ("valid_data_path", lambda prefix: None),
            ("test_data_path", lambda prefix: None),
            ("mock_data", lambda prefix: False),
        ),
    ),
    # no split applies where each part has a path of its own; all of train_data_path is for training
    field("split", always("100,0,0"), DATA, "split", prim=override(("split", lambda split: None))),
    MapRow(
        "samples",
        _samples,
        override("GPTDataset.num_samples"),
        override("GPTDataset.num_samples"),
        override("data.num_train_samples"),
        Fixed(_samples, "steps x global batch"),
    ),
    MapRow(
        "order of samples",
        always("as GPTDataset has them"),
        Fixed("as GPTDataset has them", "utils.dataset.gpt_dataset.micro_batches"),
        override(("TrainingArguments.train_sampling_strategy", lambda order: "sequential")),
        Fixed("as GPTDataset has them", "its sampler of type single"),
        # the preset has cyclic, which shuffles them once more
        override(("dataloader_type", lambda order: "single")),
    ),
    MapRow(
        "tokenizer",
        always("the data's own ids"),
        Fixed("the data's own ids", "the data are encoded before a training starts"),
        Fixed("the data's own ids", "as mega"),
        Fixed("the data's own ids", "train_nemo gives it a null tokenizer of the model's vocabulary"),
        override(("tokenizer_model", lambda ids: None)),
    ),
    field("end of document masked in the loss", always(False), DATA, "eod_mask_loss"),
    field("positions start again at a document", always(False), DATA, "reset_position_ids"),
    field("attention ends at a document", always(False), DATA, "reset_attention_mask"),
    # where TransformerEngine is missing NeMo makes one all the same
    field(
        "mask made with the data",
        always(False),
        DATA,
        "create_attention_mask",
        prim="create_attention_mask_in_dataloader",
    ),
    MapRow(
        "loader workers of a rank",
        lambda config, spec: 0 if config.platform == "cpu" else 2,
        override("DataLoader.num_workers"),
        override("TrainingArguments.dataloader_num_workers"),
        override("data.num_workers", ("data.persistent_workers", lambda workers: workers > 0)),
        override("num_workers"),
        "dataloader_workers",
    ),
)

_OFF = (
    _off(
        "checkpoints",
        override("trainer.enable_checkpointing", "trainer.strategy.ckpt_async_save", ("log.ckpt", lambda on: None)),
        override(
            ("save", lambda on: None),
            # `save: null` does not turn it off: Primus substitutes a folder of its own
            ("disable_last_saving", _not),
            ("save_interval", lambda on: _OFF_THE_END),
        ),
        override(("TrainingArguments.save_strategy.value", lambda on: "no")),
    ),
    _off(
        "going on from a checkpoint",
        override(("resume", lambda on: None)),
        override(("load", lambda on: None), "finetune", "auto_continue_train"),
    ),
    _off(
        "validation",
        override(
            ("trainer.limit_val_batches", int),
            ("trainer.limit_test_batches", int),
            ("trainer.num_sanity_val_steps", int),
        ),
        override(("eval_iters", int), ("eval_interval", lambda on: _OFF_THE_END)),
        override(("TrainingArguments.eval_strategy.value", lambda on: "no")),
    ),
    _off(
        "loggers beside the log",
        override("trainer.logger", ("log.tensorboard", lambda on: None), ("log.wandb", lambda on: None)),
        override(("disable_tensorboard", _not), ("disable_wandb", _not), ("disable_mlflow", _not)),
        override(("TrainingArguments.report_to", lambda on: [])),
    ),
    MapRow(
        "steps between lines of the log",
        always(1),
        Fixed(1, "the recorder prints each step"),
        override(("TrainingArguments.logging_strategy.value", lambda steps: "no")),
        override("trainer.log_every_n_steps"),
        # at INFO newer releases do not print the iteration line
        override("log_interval", ("log_throughput", bool), ("stderr_sink_level", lambda steps: "DEBUG")),
    ),
    MapRow(
        "profile",
        is_profiled,
        Fixed(is_profiled, RECORDER_PROFILES),
        Fixed(is_profiled, RECORDER_PROFILES),
        Fixed(is_profiled, RECORDER_PROFILES),
        override("profile"),
    ),
    MapRow(
        "profiled steps",
        profiled,
        Fixed(profiled, "as above"),
        Fixed(profiled, "as above"),
        Fixed(profiled, "as above"),
        override(
            ("use_pytorch_profiler", lambda profile: True),
            ("profile_step_start", lambda profile: profile.first),
            ("profile_step_end", lambda profile: profile.last + 1),  # the first that is not profiled
            ("profile_ranks", lambda profile: list(profile.ranks)),
            ("torch_profiler_record_shapes", lambda profile: True),
            ("torch_profiler_with_stack", lambda profile: False),  # as the recorder; stacks slow a step down
            ("torch_profiler_use_gzip", lambda profile: True),
            when=is_profiled,
        ),
    ),
)

ROWS: tuple[MapRow, ...] = (*_DATA, *_OFF)
"""In the order of the table; a key comes before the keys below it."""
