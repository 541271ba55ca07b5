"""Builds a tiny job with the trainers' own functions and holds each key that the settings map names against it.

Run by test_map.py: `python -m tests.workers.map_worker FRAMEWORK PREFIX SCRATCH`. Prints, by model, how many keys were
looked up and which differ, before and after one default of the built objects is changed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from functools import reduce
from pathlib import Path
from typing import Any

from tests.workers import built_worker
from tests.workers.parity_worker import SETTINGS
from train.settings_map.map import overrides
from utils import models
from utils.dataset.gpt_dataset import build_train_dataset, describe
from utils.settings.config import load


def mega_objects(built: Any, dataset: Any) -> dict[str, Any]:
    """Return what the classes named in the map are in a built training."""
    gpt = built.model.module
    return {
        "TransformerConfig": gpt.config,
        "GPTModel": gpt,
        "OptimizerConfig": built.optimizer.config,
        "OptimizerParamScheduler": built.scheduler,
        "DistributedDataParallelConfig": built.model.ddp_config,
        "GPTDataset": dataset,
        "GPTDatasetConfig": dataset.config,
        "DataLoader": built.loader,
    }


def hf_objects(built: Any, dataset: Any) -> dict[str, Any]:
    """Return the same for transformers."""
    return {
        "PretrainedConfig": built.model.config,
        "TrainingArguments": built.args,
        "WarmupCosine": built.lr_scheduler.lr_lambdas[0],
        "GPTDataset": dataset,
        "GPTDatasetConfig": dataset.config,
    }


def step(holder: Any, name: str) -> Any:
    """Go one name down, into an object or a map."""
    return holder[name] if isinstance(holder, dict) else getattr(holder, name)


def differing(said: dict[str, Any], objects: dict[str, Any]) -> dict[str, list[str]]:
    """Return what was said and what is there, by key, where the two are not equal."""
    found = {}
    for key, wanted in said.items():
        there = reduce(step, key.split("."), objects)
        if there != wanted:
            found[key] = [repr(wanted), repr(there)]
    return found


def main() -> None:
    """Print the differences as JSON."""
    framework, prefix, scratch = sys.argv[1:]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    settings = [*SETTINGS, f"DATASET={prefix}", f"DATA_DIR={scratch}", f"OUTPUT_DIR={scratch}"]
    config = load("cpu", arguments=settings, environ={})
    importlib.import_module(f"train.train_{framework}")
    dataset = build_train_dataset(config, Path(prefix), describe(Path(prefix)))
    build = {"mega": built_worker.mega, "hf": built_worker.hf}[framework]()[0]
    objects_of = {"mega": mega_objects, "hf": hf_objects}[framework]
    facts = {}
    for model in models.NAMES:
        objects = objects_of(build(model, config, dataset), dataset)
        said = overrides(framework, config, config.spec(model))
        before = differing(said, objects)
        owner, name = {"mega": ("OptimizerConfig", "adam_eps"), "hf": ("TrainingArguments", "adam_epsilon")}[framework]
        setattr(objects[owner], name, 1e-5)
        facts[model] = {"keys": len(said), "before": before, "after": sorted(differing(said, objects))}
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
