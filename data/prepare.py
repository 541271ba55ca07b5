"""Prepare training data for any machine: set up, download, clean, encode, verify; print the contents and the location.

Data that exist are kept and verified again. After an interrupt, the same command continues where it stopped. Data that
do not fit the model size or number of steps of this machine are prepared with a warning: they may be for another one.
On a GPU machine it runs in the image that ./shell/build.sh makes; RUNTIME selects the engine (docs/containers.md).

Usage:   ./shell/run_data.sh [--dry-run] [--here] [--for-this-training] [KEY=VALUE ...]
         --dry-run prints the command that it would start; --here uses no container; --for-this-training refuses data
         that do not fit the training here, and verifies no data that exist. Both together are ./shell/data.sh
Reads:   config.env and its overlays, the environment, secrets.env; CONTAINER_ARGS, CONTAINER_SHM_SIZE; the hub, with
         HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, HF_HOME
Writes:  .venv, DATA_DIR/<data set>/text.{bin,idx,json}, tokenizer/; the cache of huggingface_hub; prefixes on stdout
Exits:   0 prepared and verified, 2 bad input, 128 + signal interrupted, 1 failed
Example: ./shell/run_data.sh DATASET=c4 SAMPLES=50000

Each step writes complete files. A new `.bin` is hashed while it is written and read whole once, by `verify`, which
checks its tokens and its digest in one pass.
"""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

from data.command_lines import PREPARE

if __name__ == "__main__":
    PREPARE.parse_first()

import numpy as np

from data import synth, verify
from data.checking.pair_summary import PairSummary
from data.checking.plot import write_plot
from data.cleaning import text
from data.encoding import pair
from data.encoding.workers import WorkerError, one_thread_each
from data.hub.fetch import fetch_tokenizer
from data.hub.hub_errors import FetchError
from data.hub.licences import GENERATED, OWN_TOKENIZER
from data.reading.tokenizer import Encoder
from data.reading.unchanged import is_written_text
from utils.arguments import refusing, run
from utils.dataset.gpt_dataset import check_epochs, describe
from utils.dataset.indexed import bin_path, idx_path, load_manifest, manifest_path, read_index
from utils.dataset.manifest import record_pair
from utils.dataset.place import HUB_DATASETS, data_prefix, is_made_here, tokenizer_folder, tokens_needed
from utils.errors import ConfigError, DataError
from utils.hardware.detect import HardwareError, visible_gpus
from utils.housekeeping import footprint
from utils.models import MODELS
from utils.own_files import is_png, require_ours
from utils.settings.config import RunConfig, load, require_writable

SYNTH_VOCABULARY_SIZE = 4096
"""Small enough for every model: the tiny models have exactly this vocabulary."""
HUB_ID = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?"
"""owner/name of a repository, with @revision if it is not main."""
ATTEMPTS = 3
"""Attempts to take enough text for one epoch; the first estimate is short only if the text changes along the way."""


def prepare(
    config: RunConfig, model: str, workers: int = 1, is_for_training: bool = True
) -> tuple[Path, dict[str, Any]]:
    """Return prefix and manifest of the data that `model` trains on, after preparing missing data.

    Raises DataError for a data set that is missing, damaged, too small, or does not fit the model; the last two are
    only warnings if the data are not `is_for_training` with these settings. Raises FetchError if the hub fails.
    """
    prefix = data_prefix(config, model)
    plot = config.output_dir / f"data_{prefix.parent.name}.png"
    if not is_for_training:
        require_ours(is_png, plot)
    # a cleaned text that is still there was left by a run that was killed before it had verified the pair
    is_finished = manifest_path(prefix).exists() and not text.load(prefix.with_suffix(".jsonl"))
    summary: PairSummary | None = None
    if is_made_here(config) and not is_finished:
        if is_for_training:
            _check_expected_vocabulary(config, model)
        summary = _make(config, model, prefix, workers)
        record_pair(prefix, config.data_dir, load_manifest(prefix), tokenizer_folder(config, prefix))
        _remove_texts(config)
    elif not is_for_training:
        summary = _verify_again(config, prefix)
    # a training shows one line about its data
    if summary and not is_for_training:
        print(summary, file=sys.stderr)
        _draw(config, plot, prefix, summary)
    manifest = describe(prefix, config.data_dir, config=config)
    _check(config, model, prefix, manifest, is_for_training)
    return prefix, manifest


def prepare_all(config: RunConfig, workers: int = 1, is_for_training: bool = True) -> list[tuple[Path, dict[str, Any]]]:
    """Return prefix and manifest of every model's data, once if models share them; raises as `prepare` does."""
    prepared: dict[Path, tuple[Path, dict[str, Any]]] = {}
    for model in config.models:
        prefix = data_prefix(config, model)
        if prefix not in prepared:
            prepared[prefix] = prepare(config, model, workers, is_for_training)
    return list(prepared.values())


def _remove_texts(config: RunConfig) -> None:
    """Remove the cleaned text once every model has its data; it is as large as they are and can be made again."""
    if config.dataset == "synth":
        return
    prefixes = {data_prefix(config, model) for model in config.models}
    if all(manifest_path(prefix).exists() for prefix in prefixes):
        for prefix in prefixes:
            text.remove(prefix.with_suffix(".jsonl"))


def _make(config: RunConfig, model: str, prefix: Path, workers: int) -> PairSummary:
    """Make text, tokenizer and pair, verify the pair and return its summary."""
    _check_places(config, prefix)
    require_writable(prefix.parent, "DATA_DIR")
    footprint.mark(config.data_dir, footprint.DATA)
    if config.dataset == "synth":
        return _make_synthetic(config, model, prefix, workers)
    tokenizer, about_tokenizer = _tokenizer(config, model, prefix.parent)
    path = prefix.with_suffix(".jsonl")
    margin = text.MARGIN
    for attempt in range(1, ATTEMPTS + 1):
        known = text.load(path) or _text(config, path, Encoder(tokenizer), margin)
        if manifest_path(prefix).exists():
            manifest = load_manifest(prefix)
        else:
            about = {"source": known["source"], "cleaning": known["cleaning"], "tokenizer_source": about_tokenizer}
            manifest = pair.encode(path, tokenizer, prefix, workers, extra_manifest=about)
        shortage = tokens_needed(config) / manifest["tokens"]
        if known["is_all"] or config.samples or shortage <= 1 or attempt == ATTEMPTS:
            break
        margin *= shortage * text.MARGIN
        print(f"data: {manifest['tokens']:,} tokens are fewer than one epoch; taking more text", file=sys.stderr)
        # the manifest last, because it describes the others
        bin_path(prefix).unlink(missing_ok=True)
        idx_path(prefix).unlink(missing_ok=True)
        manifest_path(prefix).unlink(missing_ok=True)
        text.remove(path)
    return verify.verify(prefix, tokenizer, path)


def _check_places(config: RunConfig, prefix: Path) -> None:
    """Raise ForeignFileError, before anything is written, if a file of a user is in the place of one to be made."""
    tokenizer = prefix.parent / "tokenizer"
    path = prefix.with_suffix(".jsonl")
    pair.check_places((), tokenizer, prefix)
    if config.dataset != "synth":
        require_ours(text.recogniser(path), path, text.sidecar(path))
        return
    require_ours(is_written_text, path)
    if not config.tokenizer:
        require_ours(synth.is_written_tokenizer, tokenizer, is_folder=True)


def _text(config: RunConfig, path: Path, encoder: Encoder, margin: float) -> dict[str, Any]:
    """Make the text, or share another model's text if the wanted documents do not depend on the tokenizer."""
    if config.dataset in HUB_DATASETS and not config.samples:
        quota = text.Quota(tokens=tokens_needed(config), encoder=encoder, margin=margin)
        return text.make(config, path, quota)
    others = [data_prefix(config, model).with_suffix(".jsonl") for model in config.models]
    return text.share(others, path) or text.make(config, path, text.Quota(documents=config.samples))


def _make_synthetic(config: RunConfig, model: str, prefix: Path, workers: int) -> PairSummary:
    path = prefix.with_suffix(".jsonl")
    # every word is at least one token, so this many words give at least the tokens of one epoch
    words = None if config.samples else tokens_needed(config)
    synth.write_documents(path, seed=config.seed, documents=config.samples, words=words)
    if config.tokenizer:
        tokenizer, about_tokenizer = _tokenizer(config, model, prefix.parent)
    else:
        tokenizer = prefix.parent / "tokenizer"
        about_tokenizer = GENERATED
        synth.write_tokenizer(tokenizer, seed=config.seed, vocabulary_size=SYNTH_VOCABULARY_SIZE)
    about = {"source": GENERATED, "tokenizer_source": about_tokenizer}
    pair.encode(path, tokenizer, prefix, workers, extra_manifest=about)
    return verify.verify(prefix, tokenizer, path)


def _tokenizer(config: RunConfig, model: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the tokenizer and its origin; a tokenizer from the hub is put into `folder`."""
    if config.tokenizer:
        named = Path(config.tokenizer).expanduser()
        if named.is_dir():
            return named, {"folder": named.name, **OWN_TOKENIZER}
        if not re.fullmatch(HUB_ID, config.tokenizer):
            raise DataError(
                f"TOKENIZER={config.tokenizer}: no such folder, and not the owner/name of a repository; name a folder "
                "that AutoTokenizer loads"
            )
    fetched = folder / "tokenizer"
    return fetched, fetch_tokenizer(config, model, fetched)


def _verify_again(config: RunConfig, prefix: Path) -> PairSummary | None:
    tokenizer = tokenizer_folder(config, prefix)
    if tokenizer.is_dir():
        return verify.verify(prefix, tokenizer)
    if manifest_path(prefix).exists():
        return verify.verify(prefix)
    print(f"data: {prefix}: no manifest and no TOKENIZER=FOLDER, only the structure is checked", file=sys.stderr)
    return None


def _draw(config: RunConfig, plot: Path, prefix: Path, summary: PairSummary) -> None:
    require_writable(config.output_dir, "OUTPUT_DIR")
    footprint.mark(config.output_dir, footprint.OUTPUT)
    write_plot(plot, summary, f"{prefix.parent.name}/{prefix.name}")
    print(f"data: {plot}: plot of the document lengths", file=sys.stderr)


def _check_expected_vocabulary(config: RunConfig, model: str) -> None:
    """Raise DataError, before anything is fetched, if the model's own tokenizer does not fit this model size."""
    if config.tokenizer or config.dataset == "synth":
        return
    size = MODELS[model].tokenizer.size
    limit = config.spec(model).vocab_size
    if size > limit:
        raise DataError(
            f"TOKENIZER=auto: {size:,} token ids of {model} do not fit the {limit:,} of {model} {config.model_size}; "
            "name a smaller TOKENIZER or a larger MODEL_SIZE (./shell/run_data.sh prepares data for other machines)"
        )


def _check(config: RunConfig, model: str, prefix: Path, manifest: dict[str, Any], is_for_training: bool) -> None:
    """Print size and epochs of the data; raise DataError if they cannot be used for training."""
    size = f"data: {prefix}: {manifest['documents']:,} documents, {manifest['tokens']:,} tokens"
    try:
        _check_vocabulary(config, model, prefix, manifest)
        epochs, warning = check_epochs(config, manifest["tokens"])
    except DataError as error:
        if is_for_training:
            raise
        print(size, f"warning: unusable for training with these settings: {error}", sep="\n", file=sys.stderr)
        return
    print(f"{size}, {epochs:.2f} epochs", file=sys.stderr)
    if warning:
        print(f"warning: DATASET={config.dataset}: {warning}; the result records this", file=sys.stderr)


def _check_vocabulary(config: RunConfig, model: str, prefix: Path, manifest: dict[str, Any]) -> None:
    """Raise DataError if the ids do not fit one of the models that train on these data."""
    size = manifest.get("vocab_size") or _largest_id(prefix) + 1
    sharing = [other for other in config.models if data_prefix(config, other) == prefix]
    for name in sharing or [model]:
        limit = config.spec(name).vocab_size
        if size > limit:
            raise DataError(
                f"{prefix}: {size:,} token ids do not fit the {limit:,} of {name} {config.model_size}; use a smaller "
                "tokenizer or a larger MODEL_SIZE"
            )


def _largest_id(prefix: Path) -> int:
    """Return the largest id of a pair without a manifest, which would record the vocabulary size."""
    ids = np.memmap(bin_path(prefix), dtype=read_index(prefix).dtype, mode="r")
    return int(ids.max())


@refusing(
    (ConfigError, DataError, HardwareError),
    (OSError, FetchError, WorkerError),
    interrupted="; run the same command to continue",
)
def main() -> int:
    """Run the command line; return its exit code."""
    options = PREPARE.parse_args()
    one_thread_each()
    # SIGTERM ends the run like an error: workers are stopped, no file is left half-written
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    config = load(options.platform, visible_gpus(options.platform), arguments=options.settings)
    prepared = prepare_all(config, options.workers, is_for_training=not options.for_any_training)
    print(*(prefix for prefix, _ in prepared), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
