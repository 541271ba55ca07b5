"""The training data of a run: megatron-core's GPTDataset over the `.bin/.idx` pair, and checks of the pair.

Every framework reads its samples through `build_train_dataset`, so sample i holds the same tokens everywhere. The order
of samples is global: step s (from 0) holds samples s*GBS to s*GBS + GBS - 1. megatron-core and torch are imported on
use.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from utils.dataset.indexed import bin_path, check, idx_path, load_manifest, manifest_path, require_counts
from utils.dataset.manifest import AGAIN, name_of, require_recorded, require_tokenizer, sha256_once
from utils.dataset.place import (
    HUB_DATASETS,
    is_made_here,
    text_paths,
    tokenizer_folder,
    tokens_needed,
)
from utils.errors import DataError, UnusableError
from utils.housekeeping import footprint
from utils.own_files import note
from utils.provenance.digests import sha256_file, sha256_tokenizer
from utils.settings.config import RunConfig

REPEAT_WARNING_EPOCHS = 1.0
REPEAT_ERROR_EPOCHS = 4.0
"""Above this number of passes a small corpus is memorised; see ALLOW_REPEAT."""


def describe(
    prefix: Path, data_dir: Path | None = None, *, is_recorded: bool = True, config: RunConfig | None = None
) -> dict[str, Any]:
    """Return the manifest of a checked data set; without a manifest, the sizes and digests of its files.

    With a `data_dir`, files that have not changed since their digests were recorded there are not read again;
    `is_recorded=False` writes no record (utils/dataset/manifest.py). With the `config` of a run, text and tokenizer
    that it names must still be those that were encoded.
    Raises DataError if the files are missing, damaged, or not those that the manifest was written for.
    """
    index = check(prefix)
    digest: Callable[[Path], str] = sha256_file
    if data_dir is not None:
        digest = partial(sha256_once, data_dir=data_dir, is_recorded=is_recorded)
    found = {
        "tokens": index.tokens,
        "documents": index.documents,
        "bin_sha256": digest(bin_path(prefix)),
        "idx_sha256": digest(idx_path(prefix)),
    }
    if not manifest_path(prefix).exists():
        return found
    manifest = load_manifest(prefix)
    require_counts(prefix, index, manifest)
    # the counts are compared first: they tell more than a digest that differs
    for key in ("bin_sha256", "idx_sha256"):
        require_recorded(manifest_path(prefix), manifest, key, found[key])
    # each document ends with the token that the manifest names, the last one too
    last = np.fromfile(bin_path(prefix), dtype=index.dtype, offset=(index.tokens - 1) * index.dtype.itemsize)
    require_recorded(manifest_path(prefix), manifest, "eod_token_id", int(last[0]), "the last token is")
    if config is not None:
        _require_sources(config, prefix, manifest, digest)
    return manifest


def _require_sources(
    config: RunConfig, prefix: Path, manifest: dict[str, Any], digest_of: Callable[[Path], str]
) -> None:
    """Raise DataError if text or tokenizer of a run have other digests than those that its data were made from.

    The path of the data depends on their names, and on size and time of the text. What is no longer there is not
    compared: prepared data can be used without it.
    """
    again = f"{AGAIN}, or name the one that was encoded"
    if is_made_here(config):
        again = f"remove {prefix.parent} and prepare the data again: ./shell/run_data.sh"
    folder = tokenizer_folder(config, prefix)
    # a folder that was copied without its tokenizer can be trained from
    with suppress(UnusableError):  # there is no tokenizer
        require_tokenizer(folder, sha256_tokenizer(folder, digest_of), manifest_path(prefix), manifest, again)
    if not is_made_here(config) or config.dataset in ("synth", *HUB_DATASETS):
        return
    encoded: dict[tuple[str, int], list[str]] = {}  # several folders may have a file of one name
    for file in (manifest.get("source") or {}).get("files") or []:
        name, size, digest = file.values()
        encoded.setdefault((name, size), []).append(digest)
    for path in text_paths(config.dataset):
        known = encoded.get((name_of(path), path.stat().st_size), [])
        if known and digest_of(path) not in known:
            raise DataError(
                f"{path}: another text with the size and the time of the one that was encoded "
                f"({manifest_path(prefix)}); {again}"
            )


def check_epochs(config: RunConfig, tokens: int) -> tuple[float, str | None]:
    """Return the number of passes of the training over `tokens` tokens, and a warning above one.

    Raises DataError above 4 passes unless ALLOW_REPEAT is true.
    """
    epochs = tokens_needed(config) / tokens
    passes = f"{tokens:,} tokens for a training of {tokens_needed(config):,}: {epochs:.1f} epochs"
    if epochs > REPEAT_ERROR_EPOCHS and not config.allow_repeat:
        raise DataError(f"DATASET={config.dataset}: {passes} is memorising; take more SAMPLES or set ALLOW_REPEAT=true")
    return epochs, passes if epochs > REPEAT_WARNING_EPOCHS else None


def build_train_dataset(config: RunConfig, prefix: Path, manifest: dict[str, Any]) -> Any:
    """Return megatron-core's GPTDataset of the whole file (split 100,0,0), shuffled with SEED, with at least
    TRAIN_ITERS*GBS samples of SL tokens: dicts of int64 `tokens`, `labels` (already shifted), `loss_mask`,
    `position_ids`. With torch.distributed initialised, rank 0 builds the index cache and the others wait.
    """
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    footprint.mark(config.data_dir, footprint.DATA)  # also if the data are elsewhere: the index cache is ours
    cache = config.data_dir / "index_cache"
    earlier = {*cache.glob("*")}
    settings = GPTDatasetConfig(
        random_seed=config.seed,
        sequence_length=config.sequence_length,
        blend=([str(prefix)], None),
        # all of it is for training; the losses of a validation are not part of the comparison
        split="100,0,0",
        path_to_cache=str(cache),
        tokenizer=EncodedTokenizer(manifest),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        # rank 0 alone builds the cache; more threads gain nothing for one file
        num_dataset_builder_threads=1,
    )
    sizes = [config.training_samples, 0, 0]
    built = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, settings).build()[0]
    # megatron-core wrote them, so that nothing has noted them yet
    note(*({*cache.glob("*")} - earlier))
    return built


class EncodedTokenizer:
    """Tokenizer attributes that GPTDataset reads for encoded data; it has no `pad`, so no token is masked."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self.vocab_size = manifest.get("vocab_size")
        self.eod = manifest.get("eod_token_id")
        self.unique_identifiers = {"class": "encoded", "bin_sha256": manifest["bin_sha256"]}
