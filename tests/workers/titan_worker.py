"""Trains the named cases with torchtitan in one process and prints what came of each as JSON.

Run by test_titan.py with the Python of torchtitan: `PYTHON -m tests.workers.titan_worker PREFIX SCRATCH CASE ...`.
RANK and WORLD_SIZE make it one rank of several. A case is `model`, or `model:what`:

- `bf16`, `full`, `selective`: in that precision, or with that recomputation; `compiled`: as on a GPU;
- `native`: torchtitan's own weights, two steps;
- `without:KEY`: one key of the settings map is not set in torchtitan, so that its own default applies;
- `fault:decay_on_norms`, `fault:order_of_channels`: with this fault planted, three steps.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.workers.parity_worker import SETTINGS, RandomWeights
from train import train_titan  # first: it imports torchtitan for the CPU
from train.job.recorder import StepRecorder
from train.job.report import MismatchError
from train.titan import loop, recipe
from train.titan import model as titan_model
from train.titan import resolved as titan_resolved
from utils import models
from utils.dataset.gpt_dataset import build_train_dataset, describe
from utils.errors import ConfigError
from utils.settings.config import RunConfig, load

Llama3StateDictAdapter = titan_model.llama3.Llama3StateDictAdapter

CHANGED = {
    "bf16": ["PRECISION=bf16", "TRAIN_ITERS=10"],
    "native": ["INIT=native", "TRAIN_ITERS=2", "WARMUP_ITERS=1"],
    "fault": ["TRAIN_ITERS=3"],
    "full": ["RECOMPUTE=full"],
    "selective": ["RECOMPUTE=selective"],
}


@contextmanager
def planted(what: str, argument: str) -> Iterator[None]:
    """Plant a fault in our code around torchtitan, or leave a key out."""
    kept = recipe.overrides, recipe.build_decayed_optimizers, Llama3StateDictAdapter._reverse_permute
    if what == "without":
        recipe.overrides = lambda *them: {key: value for key, value in kept[0](*them).items() if key != argument}
    if what == "compiled":
        recipe.overrides = lambda *them: kept[0](*them) | {"compile.enable": True}
    if argument == "decay_on_norms":
        recipe.build_decayed_optimizers = recipe.build_optimizers
    if argument == "order_of_channels":
        Llama3StateDictAdapter._reverse_permute = lambda self, weight, *shape: weight
    try:
        yield
    finally:
        recipe.overrides, recipe.build_decayed_optimizers, Llama3StateDictAdapter._reverse_permute = kept


def train(config: RunConfig, model: str, dataset: Any, *, is_as_on_gpu: bool) -> dict[str, Any]:
    """Train one case; one that is refused gives the refusal, which what is compiled as on a GPU would be here."""
    spec = models.get(model, "tiny")
    source = None if config.init == "native" else RandomWeights(spec, config.seed, config.init_std)
    recorder = StepRecorder(config.train_iterations, stream=io.StringIO())
    try:
        made = recipe.make(config, spec, dataset)
        training = loop.build(config, made)
        resolved = titan_resolved.read(training, spec, source)
        if not is_as_on_gpu:
            titan_resolved.check(config, spec, resolved)
        loop.fill(training, config, spec, source, made)
    except (MismatchError, ConfigError) as error:
        return {"refused": str(error)}
    loop.run(training, recorder)
    samples = recorder.samples
    return {
        "loss": samples.loss_values,
        "grad_norm": samples.grad_norms,
        "learning_rate": samples.learning_rates,
        "data_wait_seconds": samples.data_wait_seconds,
        "resolved": resolved,
    }


def main() -> None:
    """Train the cases of the command line."""
    prefix, scratch, *cases = sys.argv[1:]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"} | os.environ
    where = [f"DATASET={prefix}", f"DATA_DIR={scratch}", f"OUTPUT_DIR={scratch}"]
    settings = [*SETTINGS, "MODEL=llama,qwen,qwen3", "FRAMEWORK=titan", f"CPU_RANKS={os.environ['WORLD_SIZE']}", *where]
    printed: dict[str, Any] = {}
    for case in cases:
        model, _, rest = case.partition(":")
        what, _, argument = rest.partition(":")
        config = load("cpu", arguments=[*settings, *CHANGED.get(what, [])], environ={})
        if not printed:
            train_titan.initialize(config)
        dataset = build_train_dataset(config, Path(prefix), describe(Path(prefix)))
        with planted(what, argument):
            printed[case] = train(config, model, dataset, is_as_on_gpu=what == "compiled")
    print("\n" + json.dumps(printed))


if __name__ == "__main__":
    main()
