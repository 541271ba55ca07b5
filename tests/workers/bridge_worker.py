"""Trains the named cases with Megatron-Bridge, or with mega, in one process and prints what came of each as JSON.

Run by test_bridge.py with the Python of the framework and the checkout on PYTHONPATH:
`PYTHON tests/workers/bridge_worker.py FRAMEWORK PREFIX SCRATCH CASE [CASE ...]`. A case is `model`, or `model:what`:

- `bf16`: in that precision;
- `native:SEED`: megatron-core's own weights of a seed, two steps;
- `without:KEY`: one key of the settings map is not set in Bridge, so that the recipe's own default stands;
- `job:KEY`: the same, as a whole job with a result (nothing is printed of it).
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from nemo_worker import case_of, config_of, curves, mega
from parity_worker import RandomWeights

from train.job.recorder import StepRecorder
from train.job.report import MismatchError
from utils import models
from utils.dataset.gpt_dataset import build_train_dataset, describe
from utils.errors import ConfigError
from utils.settings.config import RunConfig


def bridge(config: RunConfig, model: str, what: str, missing: str, prefix: Path) -> dict[str, Any]:
    """Train one case with Megatron-Bridge; one that it refuses gives the refusal."""
    from train import train_bridge
    from train.bridge import recipe as bridge_recipe
    from train.bridge import resolved as bridge_resolved
    from train.mega.resolved import gpt_of

    spec = models.get(model, "tiny")
    source = None if what == "native" else RandomWeights(spec, config.seed, config.init_std)
    recorder = StepRecorder(config.train_iterations, stream=io.StringIO())
    seen: dict[str, Any] = {}

    def ready(built: bridge_resolved.Built) -> None:
        drawn = gpt_of(built.model).embedding.word_embeddings.weight
        seen["drawn_weights"] = drawn.double().square().sum().item()
        bridge_resolved.check(config, spec, bridge_resolved.read(built) | {"init": config.init})
        bridge_resolved.check_unread(built)

    said = bridge_recipe.overrides
    bridge_recipe.overrides = lambda *arguments: {
        key: value for key, value in said(*arguments).items() if key not in missing.split(",")
    }
    try:
        manifest = describe(prefix)
        train_bridge.run(config, spec, source, lambda: build_train_dataset(config, prefix, manifest), recorder, ready)
    except MismatchError as error:
        return {"refused": str(error), "steps": len(recorder.samples.steps)}
    finally:
        bridge_recipe.overrides = said
    return curves(recorder.samples) | seen | {"data_wait_seconds": recorder.samples.data_wait_seconds}


def job(model: str, missing: str, where: list[str]) -> None:
    """Run a whole job of one rank through the trainer's `main`."""
    from nemo_worker import SETTINGS

    from train import train_bridge
    from train.bridge import recipe as bridge_recipe

    said = bridge_recipe.overrides
    bridge_recipe.overrides = lambda *arguments: {
        key: value for key, value in said(*arguments).items() if key != missing
    }
    sys.argv = ["train_bridge", "--platform", "cpu", "--model", model, *SETTINGS[:-1], *where]
    train_bridge.main()


def facts() -> dict[str, Any]:
    """Return the refusals of keys that Bridge does not have, and of the models keys that it does not have."""
    from train import train_bridge
    from train.bridge import recipe as bridge_recipe

    config = config_of("", "", [])
    recipe = bridge_recipe.make(config, models.get("llama", "tiny"), list)
    refused = {}
    for key in ("ddp.nonsense", "model.nonsense"):
        try:
            bridge_recipe.set_field(recipe, key, 1)
        except ConfigError as error:
            refused[key] = str(error)
    four = config_of("", "", ["CPU_RANKS=4", "PP=2", "FRAMEWORK=bridge"])
    reporters = []
    for rank in range(4):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "4"}
        reporters += [rank] if train_bridge.is_reporter(four) else []
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
    return {"refused": refused, "reporters": reporters}


def main() -> None:
    """Train the cases of the command line."""
    framework, prefix, scratch, *cases = sys.argv[1:]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    where = [f"DATASET={prefix}", f"DATA_DIR={scratch}", f"OUTPUT_DIR={scratch}"]
    is_bridge = framework == "bridge"
    if is_bridge:
        from train import train_bridge  # first: it sends Bridge to the CPU

        if not any(case_of(case)[1] == "job" for case in cases):
            train_bridge.start_processes(config_of("", "", where))
    printed: dict[str, Any] = {"facts": facts()} if is_bridge else {}
    for case in cases:
        model, what, argument = case_of(case)
        if what == "job":
            job(model, argument, where)
            continue
        config = config_of(what, argument, where)
        missing = argument if what == "without" else ""
        if is_bridge:
            printed[case] = bridge(config, model, what, missing, Path(prefix))
        else:
            printed[case] = mega(config, model, Path(prefix))
    print("\n" + json.dumps(printed))


if __name__ == "__main__":
    main()
