"""Prepare the data that the settings name, if they are not there yet: fetch, clean, encode, verify.

`python -m data.prepare --platform cpu [KEY=VALUE ...]` prints the prefix of each `.bin/.idx` pair. Each step leaves its
work whole: after an interrupt the same command goes on with what is missing.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from data import synth, verify
from data.checking.pair_summary import Summary
from data.cleaning import text
from data.encoding import pair
from data.encoding.workers import WorkerError, one_thread_each
from data.engines.encoder import Encoder
from data.hub.fetch import FetchError, fetch_tokenizer
from data.hub.repositories import TOKENIZERS, VOCABULARIES
from utils.dataset.digest_cache import record_pair
from utils.dataset.gpt_dataset import check_epochs, data_prefix, describe, tokens_needed
from utils.dataset.indexed import bin_path, load_manifest, manifest_path, read_index
from utils.dataset.place import HUB_DATASETS, is_made_here
from utils.errors import ConfigError, DataError
from utils.hardware.detect import HardwareError, visible_gpus
from utils.housekeeping import footprint
from utils.settings.config import PLATFORMS, RunConfig, load, require_writable

SYNTH_VOCABULARY_SIZE = 4096
"""Fits every model: the tiny ones have exactly this vocabulary."""
IDS_AT_ONCE = 1 << 24
HUB_ID = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?"
"""owner/name of a repository, with @revision where it is not main."""
ATTEMPTS = 3
"""At taking enough text for one epoch: the first estimate is short only where the text changes its character."""


def prepare(
    config: RunConfig, model: str, workers: int = 1, is_for_training: bool = True
) -> tuple[Path, dict[str, Any]]:
    """Return prefix and manifest of the data that `model` trains on, after making what is missing.

    Raises DataError for a data set that is missing, damaged, too small, or does not fit the model; the last two are
    only said where the data are not `is_for_training` of these settings. Raises FetchError where the hub fails.
    """
    prefix = data_prefix(config, model)
    summary: Summary | None
    if is_made_here(config) and (not manifest_path(prefix).exists() or text.load(prefix.with_suffix(".jsonl"))):
        if is_for_training:
            _check_expected_vocabulary(config, model)
        summary = _make(config, model, prefix, workers)
        record_pair(prefix, config.data_dir, load_manifest(prefix))
        _remove_texts(config)
    else:
        summary = None if is_for_training else _verify_again(config, prefix)
    if summary:
        print(summary, file=sys.stderr)
    if summary and not is_for_training:
        _draw(config, prefix, summary)
    manifest = describe(prefix, config.data_dir)
    _check(config, model, prefix, manifest, is_for_training)
    return prefix, manifest


def prepare_all(config: RunConfig, workers: int = 1, is_for_training: bool = True) -> list[tuple[Path, dict[str, Any]]]:
    """Return prefix and manifest of the data of every model, one where models share them; raises as `prepare` does."""
    first_model = {data_prefix(config, model): model for model in reversed(config.models)}
    return [prepare(config, model, workers, is_for_training) for model in reversed(first_model.values())]


def _remove_texts(config: RunConfig) -> None:
    """Remove the cleaned text when every model has its data: it takes as much disk, and can be made again."""
    prefixes = {data_prefix(config, model) for model in config.models}
    if config.dataset != "synth" and all(manifest_path(prefix).exists() for prefix in prefixes):
        for prefix in prefixes:
            text.remove(prefix.with_suffix(".jsonl"))


def _make(config: RunConfig, model: str, prefix: Path, workers: int) -> Summary:
    """Make text, tokenizer and pair, and return what verifying it showed."""
    require_writable(prefix.parent, "DATA_DIR")
    footprint.mark(config.data_dir, footprint.DATA)
    if config.dataset == "synth":
        return _make_synthetic(config, model, prefix, workers)
    tokenizer, about_tokenizer = _tokenizer(config, model, prefix.parent)
    path = prefix.with_suffix(".jsonl")
    margin = text.MARGIN
    for attempt in range(1, ATTEMPTS + 1):
        known = text.load(path) or _text(config, path, Encoder(tokenizer), margin)
        about = {"source": known["source"], "cleaning": known["cleaning"], "tokenizer_source": about_tokenizer}
        # a text that is still there beside a manifest is of a run that was killed before it had verified
        manifest = (
            load_manifest(prefix)
            if manifest_path(prefix).exists()
            else pair.encode(path, tokenizer, prefix, workers, engine=config.encoder, extra_manifest=about)
        )
        short = tokens_needed(config) / manifest["tokens"]
        if known["is_all"] or config.samples or short <= 1 or attempt == ATTEMPTS:
            break
        margin *= short * text.MARGIN
        print(f"data: {manifest['tokens']:,} tokens are less than one epoch; taking more text", file=sys.stderr)
        manifest_path(prefix).unlink()
        text.remove(path)
    return verify.verify(prefix, tokenizer, path)


def _text(config: RunConfig, path: Path, encoder: Encoder, margin: float) -> dict[str, Any]:
    """Make the text, or take that of another model where the same documents are wanted whatever the tokenizer."""
    if config.dataset in HUB_DATASETS and not config.samples:
        enough = text.Enough(tokens=tokens_needed(config), encoder=encoder, margin=margin)
        return text.make(config, path, enough)
    others = (data_prefix(config, model).with_suffix(".jsonl") for model in config.models)
    return text.share(others, path) or text.make(config, path, text.Enough(documents=config.samples))


def _make_synthetic(config: RunConfig, model: str, prefix: Path, workers: int) -> Summary:
    path = prefix.with_suffix(".jsonl")
    # every word is at least one token, so as many words as tokens are needed make one epoch
    words = None if config.samples else tokens_needed(config)
    synth.write_documents(path, seed=config.seed, documents=config.samples, words=words)
    if config.tokenizer:
        tokenizer, _ = _tokenizer(config, model, prefix.parent)
    else:
        tokenizer = prefix.parent / "tokenizer"
        synth.write_tokenizer(tokenizer, seed=config.seed, vocabulary_size=SYNTH_VOCABULARY_SIZE)
    pair.encode(path, tokenizer, prefix, workers, engine=config.encoder)
    return verify.verify(prefix, tokenizer, path)


def _tokenizer(config: RunConfig, model: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the tokenizer and where it came from; one of the hub is put below `folder`."""
    named = config.tokenizer
    if named and Path(named).expanduser().is_dir():
        return Path(named).expanduser(), {"folder": Path(named).name}
    if named and not re.fullmatch(HUB_ID, named):
        raise DataError(
            f"TOKENIZER={named}: no such folder, and no owner/name of the hub; name a folder that AutoTokenizer loads"
        )
    fetched = folder / "tokenizer"
    return fetched, fetch_tokenizer(config, model, fetched)


def _verify_again(config: RunConfig, prefix: Path) -> Summary | None:
    folders = (Path(config.tokenizer or "").expanduser(), prefix.parent / "tokenizer")
    tokenizer = next((folder for folder in folders if folder.name and folder.is_dir()), None)
    if tokenizer or manifest_path(prefix).exists():
        return verify.verify(prefix, tokenizer)
    print(f"data: {prefix}: no manifest and no TOKENIZER=FOLDER, so only the structure is checked", file=sys.stderr)
    return None


def _draw(config: RunConfig, prefix: Path, summary: Summary) -> None:
    from data.checking.plot import write_plot  # matplotlib takes a second

    require_writable(config.output_dir, "OUTPUT_DIR")
    footprint.mark(config.output_dir, footprint.OUTPUT)
    path = config.output_dir / f"data_{prefix.parent.name}.png"
    write_plot(path, summary, f"{prefix.parent.name}/{prefix.name}")
    print(f"data: {path}: lengths of the documents", file=sys.stderr)


def _check_expected_vocabulary(config: RunConfig, model: str) -> None:
    """Raise DataError before anything is fetched where the model's own tokenizer will not fit this size of it."""
    if config.tokenizer or config.dataset == "synth":
        return
    size = VOCABULARIES[TOKENIZERS[model][0]].size
    if size > config.spec(model).vocab_size:
        raise DataError(
            f"TOKENIZER=auto: {size:,} token ids of {model} do not fit the {config.spec(model).vocab_size:,} of "
            f"{model} {config.model_size}; name a smaller TOKENIZER or a larger MODEL_SIZE "
            "(./shell/run_data.sh makes data for other machines)"
        )


def _check(config: RunConfig, model: str, prefix: Path, manifest: dict[str, Any], is_for_training: bool) -> None:
    """Say what the data are to the training, and raise DataError where they cannot be used for it."""
    said = f"data: {prefix}: {manifest['documents']:,} documents, {manifest['tokens']:,} tokens"
    try:
        _check_vocabulary(config, model, prefix, manifest)
        epochs, warning = check_epochs(config, manifest["tokens"])
    except DataError as error:
        if is_for_training:
            raise
        print(said, f"warning: not for a training with these settings: {error}", sep="\n", file=sys.stderr)
        return
    print(f"{said}, {epochs:.2f} epochs", file=sys.stderr)
    if warning:
        print(f"warning: DATASET={config.dataset}: {warning}; a result of more than one epoch says so", file=sys.stderr)


def _check_vocabulary(config: RunConfig, model: str, prefix: Path, manifest: dict[str, Any]) -> None:
    size = manifest.get("vocab_size") or _largest_id(prefix) + 1
    sharing = [other for other in config.models if data_prefix(config, other) == prefix]
    for name in sharing or [model]:
        if size > config.spec(name).vocab_size:
            raise DataError(
                f"{prefix}: {size:,} token ids do not fit the {config.spec(name).vocab_size:,} of "
                f"{name} {config.model_size}; use a smaller tokenizer or a larger MODEL_SIZE"
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
    parser.add_argument(
        "--for-any-training",
        action="store_true",
        help="data that this machine's model size or number of steps has no use for are made too, with a warning",
    )
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    one_thread_each()
    # an ordinary `kill` ends the run like any error: workers stopped, nothing half-written
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        config = load(options.platform, visible_gpus(options.platform), arguments=options.settings)
        prepared = prepare_all(config, options.workers, is_for_training=not options.for_any_training)
    except (ConfigError, DataError, HardwareError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (FetchError, WorkerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; the same command goes on from here", file=sys.stderr)
        return 128 + signal.SIGINT
    print(*(prefix for prefix, _ in prepared), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
