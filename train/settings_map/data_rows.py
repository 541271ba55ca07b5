"""The settings map, part 2: the data and their order, and what is off."""

from __future__ import annotations

from typing import Any

from train.settings_map.row import Fixed, Row, always, asked, say
from utils.dataset.place import data_prefix
from utils.models import ModelSpec
from utils.settings.config import RunConfig

_OURS_HAS_NONE = "train_mega's loop has none of it"
_OFF_THE_END = 1_000_000_000
"""A step that no training reaches, for what can only be put off."""


def _prefix(config: RunConfig, spec: ModelSpec) -> str:
    return str(data_prefix(config, spec.name))


def _samples(config: RunConfig, spec: ModelSpec) -> int:
    return config.training_samples


def _off(name: str, nemo: Any, prim: Any, hf: Any = None) -> Row:
    return Row(name, always(False), Fixed(False, _OURS_HAS_NONE), hf or Fixed(False, "not asked for"), nemo, prim)


def _not(value: bool) -> bool:
    return not value


_DATA = (
    Row(
        "seed of weights",
        asked("seed"),
        Fixed(asked("seed"), "EqualWeights, or megatron-core's generators, get it from train_mega"),
        say("TrainingArguments.seed"),
        Fixed(asked("seed"), "NeMo 2.3 has 1234 in its code; train_nemo puts SEED in its place"),
        say("seed"),
        "seed",
    ),
    Row(
        "seed of the order of samples",
        asked("seed"),
        say("GPTDatasetConfig.random_seed"),
        say("GPTDatasetConfig.random_seed"),
        say("data.seed"),
        say("seed"),
        "seed",
    ),
    Row(
        "data set",
        _prefix,
        say(("GPTDatasetConfig.blend", lambda prefix: ([prefix], None))),
        say(("GPTDatasetConfig.blend", lambda prefix: ([prefix], None))),
        say(("data.paths", lambda prefix: [prefix])),
        say(
            "train_data_path",
            ("data_path", lambda prefix: None),
            ("valid_data_path", lambda prefix: None),
            ("test_data_path", lambda prefix: None),
            ("mock_data", lambda prefix: False),
        ),
    ),
    Row(
        "split",
        always("100,0,0"),
        say("GPTDatasetConfig.split"),
        say("GPTDatasetConfig.split"),
        say("data.split"),
        # no split is taken where each part has a path of its own, and all of train_data_path is for training
        say(("split", lambda split: None)),
    ),
    Row(
        "samples",
        _samples,
        say("GPTDataset.num_samples"),
        say("GPTDataset.num_samples"),
        say("data.num_train_samples"),
        Fixed(_samples, "steps x global batch"),
    ),
    Row(
        "order of samples",
        always("as GPTDataset has them"),
        Fixed("as GPTDataset has them", "utils.dataset.gpt_dataset.micro_batches"),
        say(("TrainingArguments.train_sampling_strategy", lambda order: "sequential")),
        Fixed("as GPTDataset has them", "its sampler of type single"),
        # the preset says cyclic, which shuffles them once more
        say(("dataloader_type", lambda order: "single")),
    ),
    Row(
        "tokenizer",
        always("the data's own ids"),
        Fixed("the data's own ids", "the data are encoded before a training starts"),
        Fixed("the data's own ids", "as mega"),
        Fixed("the data's own ids", "train_nemo gives it a null tokenizer of the model's vocabulary"),
        say(("tokenizer_model", lambda ids: None)),
    ),
    Row(
        "end of document masked in the loss",
        always(False),
        say("GPTDatasetConfig.eod_mask_loss"),
        say("GPTDatasetConfig.eod_mask_loss"),
        say("data.eod_mask_loss"),
        say("eod_mask_loss"),
    ),
    Row(
        "positions start again at a document",
        always(False),
        say("GPTDatasetConfig.reset_position_ids"),
        say("GPTDatasetConfig.reset_position_ids"),
        say("data.reset_position_ids"),
        say("reset_position_ids"),
    ),
    Row(
        "attention ends at a document",
        always(False),
        say("GPTDatasetConfig.reset_attention_mask"),
        say("GPTDatasetConfig.reset_attention_mask"),
        say("data.reset_attention_mask"),
        say("reset_attention_mask"),
    ),
    Row(
        "mask made with the data",
        always(False),
        say("GPTDatasetConfig.create_attention_mask"),
        say("GPTDatasetConfig.create_attention_mask"),
        # where TransformerEngine is missing NeMo makes one all the same
        say("data.create_attention_mask"),
        say("create_attention_mask_in_dataloader"),
    ),
    Row(
        "loader workers of a rank",
        lambda config, spec: 0 if config.platform == "cpu" else 2,
        say("DataLoader.num_workers"),
        say("TrainingArguments.dataloader_num_workers"),
        say("data.num_workers", ("data.persistent_workers", lambda workers: workers > 0)),
        say("num_workers"),
        "dataloader_workers",
    ),
)

_OFF = (
    _off(
        "checkpoints",
        say("trainer.enable_checkpointing", "trainer.strategy.ckpt_async_save", ("log.ckpt", lambda on: None)),
        say(
            ("save", lambda on: None),
            # `save: null` does not turn it off: Primus puts a folder of its own in its place
            ("disable_last_saving", _not),
            ("save_interval", lambda on: _OFF_THE_END),
        ),
        say(("TrainingArguments.save_strategy.value", lambda on: "no")),
    ),
    _off(
        "going on from a checkpoint",
        say(("resume", lambda on: None)),
        say(("load", lambda on: None), "finetune", "auto_continue_train"),
    ),
    _off(
        "validation",
        say(
            ("trainer.limit_val_batches", int),
            ("trainer.limit_test_batches", int),
            ("trainer.num_sanity_val_steps", int),
        ),
        say(("eval_iters", int), ("eval_interval", lambda on: _OFF_THE_END)),
        say(("TrainingArguments.eval_strategy.value", lambda on: "no")),
    ),
    _off(
        "loggers beside the log",
        say("trainer.logger", ("log.tensorboard", lambda on: None), ("log.wandb", lambda on: None)),
        say(("disable_tensorboard", _not), ("disable_wandb", _not), ("disable_mlflow", _not)),
        say(("TrainingArguments.report_to", lambda on: [])),
    ),
    Row(
        "steps between lines of the log",
        always(1),
        Fixed(1, "the recorder prints each step"),
        say(("TrainingArguments.logging_strategy.value", lambda steps: "no")),
        say("trainer.log_every_n_steps"),
        # at INFO the iteration line of newer releases does not come out
        say("log_interval", ("log_throughput", bool), ("stderr_sink_level", lambda steps: "DEBUG")),
    ),
    _off("profile", Fixed(False, "no callback for it is given"), say("profile")),
)

ROWS: tuple[Row, ...] = (*_DATA, *_OFF)
"""In the order of the table; a key stands before the keys below it."""
