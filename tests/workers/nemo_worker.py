"""Trains the named cases with NeMo, or with mega, in one process and prints what came of each as JSON.

Run by test_nemo.py with the Python of the framework and the checkout on PYTHONPATH, by its path and not as a module,
because a package of NeMo's environment is called `tests`:
`PYTHON tests/workers/nemo_worker.py FRAMEWORK PREFIX SCRATCH CASE [CASE ...]`. A case is `model`, or `model:what`:

- `bf16`: in that precision;
- `native:SEED`: NeMo's own weights of a seed, two steps;
- `without:KEY`: one key of the settings map is not said to NeMo, so that the recipe's own default stands;
- `job:KEY`: the same, as a whole job with a result (nothing is printed of it).
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from parity_worker import SETTINGS, RandomWeights, train_mega

from train.job.recorder import StepRecorder
from train.job.report import MismatchError
from utils import models
from utils.dataset.gpt_dataset import build_train_dataset, describe
from utils.settings.config import RunConfig, load


def case_of(text: str) -> tuple[str, str, str]:
    """Return model, what and its argument."""
    model, _, rest = text.partition(":")
    what, _, argument = rest.partition(":")
    return model, what, argument


def config_of(what: str, argument: str, where: list[str]) -> RunConfig:
    """Return the settings of a case."""
    changed = {
        "bf16": ["PRECISION=bf16"],
        "native": ["INIT=native", f"SEED={argument}", "TRAIN_ITERS=2", "WARMUP_ITERS=1"],
    }
    return load("cpu", arguments=[*SETTINGS, *where, *changed.get(what, [])], environ={})


def mega(config: RunConfig, model: str, prefix: Path) -> dict[str, Any]:
    """Train one case with megatron-core alone."""
    import train.train_mega  # noqa: F401 - first: it sends megatron-core to the CPU

    spec = models.get(model, "tiny")
    dataset = build_train_dataset(config, prefix, describe(prefix))
    return curves(train_mega(config, spec, RandomWeights(spec, config.seed, config.init_std), dataset, ""))


def nemo(config: RunConfig, model: str, what: str, missing: str, prefix: Path) -> dict[str, Any]:
    """Train one case with NeMo; one that it refuses gives the refusal."""
    from train import train_nemo
    from train.mega.resolved import gpt_of
    from train.nemo import recipe as nemo_recipe
    from train.nemo import resolved as nemo_resolved

    spec = models.get(model, "tiny")
    source = None if what == "native" else RandomWeights(spec, config.seed, config.init_std)
    recorder = StepRecorder(config.train_iterations, stream=io.StringIO())
    seen: dict[str, Any] = {}

    def check(training: Any) -> None:
        drawn = gpt_of(nemo_resolved.ddp_of(training)).embedding.word_embeddings.weight
        seen["drawn_weights"] = drawn.double().square().sum().item()
        resolved = nemo_resolved.read(training) | {"init": config.init}
        nemo_resolved.check(config, spec, resolved)

    said = nemo_recipe.overrides
    nemo_recipe.overrides = lambda *arguments: {key: value for key, value in said(*arguments).items() if key != missing}
    try:
        train_nemo.run(config, spec, source, train_nemo.tokenizer(describe(prefix), spec), recorder, check)
    except MismatchError as error:
        return {"refused": str(error), "steps": len(recorder.samples.steps)}
    finally:
        nemo_recipe.overrides = said
    return curves(recorder.samples) | seen | {"data_wait_seconds": recorder.samples.data_wait_seconds}


def curves(samples: Any) -> dict[str, Any]:
    """Return what parity is about."""
    return {
        "loss": samples.loss_values,
        "grad_norm": samples.grad_norms,
        "learning_rate": samples.learning_rates,
    }


def job(model: str, missing: str, where: list[str]) -> None:
    """Run a whole job of one rank through the trainer's `main`."""
    from train import train_nemo
    from train.nemo import recipe as nemo_recipe

    said = nemo_recipe.overrides
    nemo_recipe.overrides = lambda *arguments: {key: value for key, value in said(*arguments).items() if key != missing}
    sys.argv = ["train_nemo", "--platform", "cpu", "--model", model, *SETTINGS[:-1], *where]
    train_nemo.main()


def facts() -> dict[str, Any]:
    """Return what NeMo's signatures say to a key that they do not have, and which ranks report."""
    import tempfile

    from train import train_nemo
    from train.nemo import recipe as nemo_recipe
    from utils.errors import ConfigError

    config = load("cpu", arguments=[*SETTINGS, "CPU_RANKS=4", "PP=2", "FRAMEWORK=nemo"], environ={})
    with tempfile.TemporaryDirectory() as folder:
        recipe = nemo_recipe.make(config, models.get("llama", "tiny"), None, [], Path(folder))
    refused = {}
    for key in ("trainer.strategy.nonsense", "model.config.nonsense"):
        try:
            nemo_recipe.set_argument(recipe, key, 1)
        except ConfigError as error:
            refused[key] = str(error)
    reporters = []
    for rank in range(4):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "4"}
        reporters += [rank] if train_nemo.is_reporter(config) else []
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
    return {"refused": refused, "reporters": reporters}


def main() -> None:
    """Train the cases of the command line."""
    framework, prefix, scratch, *cases = sys.argv[1:]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    where = [f"DATASET={prefix}", f"DATA_DIR={scratch}", f"OUTPUT_DIR={scratch}"]
    if framework == "nemo":
        from train import train_nemo  # noqa: F401 - first: it sends NeMo to the CPU
    printed: dict[str, Any] = {"facts": facts()} if framework == "nemo" else {}
    for case in cases:
        model, what, argument = case_of(case)
        if what == "job":
            job(model, argument, where)
            continue
        config = config_of(what, argument, where)
        missing = argument if what == "without" else ""
        if framework == "mega":
            printed[case] = mega(config, model, Path(prefix))
        else:
            printed[case] = nemo(config, model, what, missing, Path(prefix))
    print("\n" + json.dumps(printed))


if __name__ == "__main__":
    main()
