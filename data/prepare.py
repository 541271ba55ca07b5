"""Prepare the data that the settings name, if they are not there yet: generate, tokenize, encode, verify.

`python -m data.prepare --platform cpu [KEY=VALUE ...]` prints the prefix of each `.bin/.idx` pair.
"""

from __future__ import annotations

import argparse
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from data import encode, synth
from data.files import written_whole
from data.workers import WorkerError
from utils import footprint
from utils.configure import PLATFORMS, ConfigError, RunConfig, load, require_writable
from utils.dataset import check_epochs, data_prefix, describe, tokens_needed
from utils.hardware import HardwareError, visible_gpus
from utils.indexed import DataError, bin_path, read_index

SYNTH_VOCABULARY_SIZE = 4096
"""Fits every model: the tiny ones have exactly this vocabulary."""
IDS_AT_ONCE = 1 << 24


def prepare(config: RunConfig, model: str, workers: int = 1) -> tuple[Path, dict[str, Any]]:
    """Return prefix and manifest of the data that `model` trains on, after making what is missing.

    Raises DataError for a data set that is missing, damaged, too small, or does not fit the models.
    """
    prefix = data_prefix(config, model)
    ours = config.data_dir in prefix.parents
    if ours and not prefix.with_name(prefix.name + ".json").exists():
        _make(config, prefix, workers)
    manifest = describe(prefix)
    _check_vocabulary(config, prefix, manifest)
    epochs, warning = check_epochs(config, manifest["tokens"])
    print(
        f"data: {prefix}: {manifest['documents']:,} documents, {manifest['tokens']:,} tokens, {epochs:.2f} epochs",
        file=sys.stderr,
    )
    if warning:
        print(f"warning: DATASET={config.dataset}: {warning}; a result of more than one epoch says so", file=sys.stderr)
    return prefix, manifest


def _make(config: RunConfig, prefix: Path, workers: int) -> None:
    require_writable(prefix.parent, "DATA_DIR")
    footprint.mark(config.data_dir, footprint.DATA)
    tokenizer = Path(config.tokenizer) if config.tokenizer else None
    if config.dataset == "synth":
        text = prefix.with_suffix(".jsonl")
        # every word is at least one token, so as many words as tokens are needed make one epoch
        words = None if config.samples else tokens_needed(config)
        synth.write_documents(text, seed=config.seed, documents=config.samples, words=words)
        if tokenizer is None:
            tokenizer = prefix.parent / "tokenizer"
            synth.write_tokenizer(tokenizer, seed=config.seed, vocabulary_size=SYNTH_VOCABULARY_SIZE)
    else:
        text = Path(config.dataset) if config.samples is None else _first_lines(config, prefix.with_suffix(".jsonl"))
    if tokenizer is None:
        raise DataError(f"TOKENIZER=auto: {text} has no tokenizer of its own; name the folder of one, TOKENIZER=DIR")
    if not tokenizer.is_dir():
        raise DataError(f"TOKENIZER={tokenizer}: no such folder; name a folder that AutoTokenizer loads")
    encode.encode(text, tokenizer, prefix, workers=workers)


def _first_lines(config: RunConfig, path: Path) -> Path:
    """Copy the first SAMPLES documents of the data set to `path` and return it."""
    with Path(config.dataset).open("rb") as file, written_whole(path) as (temporary,):
        with temporary.open("wb") as part:
            taken = sum(1 for line in islice(file, config.samples) if part.write(line))
        if taken < (config.samples or 0):
            raise DataError(
                f"SAMPLES={config.samples}: {config.dataset} has only {taken:,} documents; say SAMPLES=auto"
            )
    return path


def _check_vocabulary(config: RunConfig, prefix: Path, manifest: dict[str, Any]) -> None:
    size = manifest.get("vocab_size") or _largest_id(prefix) + 1
    for model in config.models:
        if size > config.spec(model).vocab_size:
            raise DataError(
                f"{prefix}: {size:,} token ids do not fit the {config.spec(model).vocab_size:,} of "
                f"{model} {config.model_size}; use a smaller tokenizer or a larger MODEL_SIZE"
            )


def _largest_id(prefix: Path) -> int:
    """Read the ids of a pair that has no manifest to say how many there can be."""
    ids = np.memmap(bin_path(prefix), dtype=read_index(prefix).dtype, mode="r")
    return max(int(ids[start : start + IDS_AT_ONCE].max()) for start in range(0, len(ids), IDS_AT_ONCE))


def main() -> int:
    """Prepare the configured data set."""
    parser = argparse.ArgumentParser(prog="python -m data.prepare", description=__doc__)
    parser.add_argument("--platform", required=True, choices=PLATFORMS)
    parser.add_argument("--workers", type=int, default=1, help="processes that encode (default: %(default)s)")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    try:
        config = load(options.platform, visible_gpus(options.platform), arguments=options.settings)
        first_model = {data_prefix(config, model): model for model in reversed(config.models)}
        prefixes = [prepare(config, model, options.workers)[0] for model in reversed(first_model.values())]
    except (ConfigError, DataError, HardwareError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (WorkerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(*prefixes, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
