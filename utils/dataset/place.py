"""Path of the prepared data of a configuration.

It is computed only from the settings and the files that they name, so every process and every machine computes the
same path. The data need not exist yet.
"""

from __future__ import annotations

import glob
import hashlib
import re
from pathlib import Path

from utils.dataset.manifest import bin_path, idx_path
from utils.errors import UnusableError, did_you_mean
from utils.settings.config import RunConfig
from utils.settings.keys import KEYS

HUB_DATASETS = ("bc", "c4", "hub")
"""Data sets that data/hub/fetch.py downloads; `hub` is the repository in DATASET_REPO."""
TEXT_SETTINGS = tuple(key.field for key in KEYS.values() if key.decides_text)
"""Fields of RunConfig that change the data made from any text."""


def tokens_needed(config: RunConfig) -> int:
    """Return the number of tokens that one training reads: its samples, and one more for the last label."""
    return config.training_samples * config.sequence_length + 1


def data_prefix(config: RunConfig, model: str) -> Path:
    """Return the path without `.bin` / `.idx` of the training data of `model`, whether or not they exist yet.

    Models with the same tokenizer share a path: synthetic text, a named TOKENIZER, a ready pair. Two configurations
    share it only if every setting that changes a byte of the data is equal. No network access.

    Raises UnusableError for a data set that does not exist and cannot be made here.
    """
    if config.dataset not in HUB_DATASETS and (config.dataset_repo or config.dataset_config or config.dataset_revision):
        raise UnusableError(
            f"DATASET={config.dataset}: does not come from a repository; set DATASET=hub, or leave DATASET_REPO, "
            "DATASET_CONFIG and DATASET_REVISION at auto"
        )
    size = f"{config.samples}documents" if config.samples else f"{tokens_needed(config)}tokens"
    if config.dataset == "synth":
        tokenizer = f"_{_digest(config.tokenizer)}" if config.tokenizer else ""
        return config.data_dir / f"synth_seed{config.seed}_{size}{tokenizer}" / "text"
    if config.dataset in HUB_DATASETS:
        if config.dataset == "hub" and not config.dataset_repo:
            raise UnusableError("DATASET=hub: no repository given; set DATASET_REPO=owner/name")
        named = config.dataset if config.dataset != "hub" else str(config.dataset_repo).replace("/", "--")
        return _made_here(config, model, f"{named}_{_tokenizer_name(config, model)}_{size}", ())
    if is_pair(config.dataset):
        return _absolute(config.dataset)
    paths = text_paths(config.dataset)
    files = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", _absolute(config.dataset).name.split(".", 1)[0]) or "text"
    return _made_here(config, model, f"{stem}_{_tokenizer_name(config, model)}", files)


def tokenizer_folder(config: RunConfig, prefix: Path) -> Path:
    """Return the folder of the tokenizer of a data set: the one that TOKENIZER names, or the one beside the data."""
    named = Path(config.tokenizer or "").expanduser()
    return named if config.tokenizer and named.is_dir() else prefix.parent / "tokenizer"


def is_made_here(config: RunConfig) -> bool:
    """Return True if data.prepare makes the data; a ready pair is used as it is, also one in DATA_DIR."""
    return config.dataset in ("synth", *HUB_DATASETS) or not is_pair(config.dataset)


def is_pair(dataset: str) -> bool:
    """Return True if DATASET is the prefix of a `.bin/.idx` pair, or of one of its files."""
    path = _absolute(dataset)
    return bin_path(path).exists() or idx_path(path).exists()


def text_paths(dataset: str) -> list[Path]:
    """Return the files of a local text: the file itself, all files below a folder, or all matches of a glob, sorted.

    Raises UnusableError if there is none.
    """
    path = _absolute(dataset)
    if path.is_dir():
        found = [file for file in path.rglob("*") if file.is_file()]
    elif path.is_file():
        found = [path]
    else:
        found = [file for name in glob.glob(str(path), recursive=True) if (file := Path(name)).is_file()]  # noqa: PTH207
    if not found:
        raise UnusableError(
            f"DATASET={dataset}: no such file, and neither {path}.bin nor {path}.idx exists; allowed: bc, c4, hub, "
            "synth, a text (.jsonl, .parquet, .txt, a folder or a glob of them), or the prefix of a .bin/.idx pair"
            f"{did_you_mean(dataset, ('synth', *HUB_DATASETS))}"
        )
    if found == [path] and path.suffix in (".bin", ".idx"):
        raise UnusableError(f"DATASET={dataset}: got a file of a pair, wanted its prefix; leave out {path.suffix}")
    return sorted(found)


def _absolute(dataset: str) -> Path:
    return Path(dataset).expanduser().absolute()


def _made_here(config: RunConfig, model: str, name: str, files: tuple[object, ...]) -> Path:
    settings = tuple((field, getattr(config, field)) for field in TEXT_SETTINGS)
    hub = (config.dataset_repo, config.dataset_config) if config.dataset in HUB_DATASETS else ()
    size = config.samples or (tokens_needed(config) if hub else "all")
    tokenizer = model if config.tokenizer is None else None
    return config.data_dir / f"{name}_{_digest((config.dataset, settings, hub, size, tokenizer, files))}" / "text"


def _tokenizer_name(config: RunConfig, model: str) -> str:
    """Return a readable name; the digest after it distinguishes equal names."""
    if config.tokenizer is None:
        return model
    parts = Path(config.tokenizer).parts
    # owner/name in full; of a folder only the last part
    return (
        re.sub(r"[^A-Za-z0-9._-]+", "_", "--".join(parts if len(parts) == 2 else parts[-1:])).strip("_") or "tokenizer"
    )


def _digest(identity: object) -> str:
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
