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
    # they would be ignored in silence
    names_repository = config.dataset_repo or config.dataset_config or config.dataset_revision
    if names_repository and config.dataset not in HUB_DATASETS:
        raise UnusableError(
            f"DATASET={config.dataset}: does not come from a repository; set DATASET=hub, or leave DATASET_REPO, "
            "DATASET_CONFIG and DATASET_REVISION at auto"
        )
    size = f"{config.samples}documents" if config.samples else f"{tokens_needed(config)}tokens"
    if config.dataset == "synth":
        folder = f"synth_seed{config.seed}_{size}"
        if config.tokenizer:
            folder += f"_{_digest(config.tokenizer)}"
        return config.data_dir / folder / "text"
    if config.dataset in HUB_DATASETS:
        name = config.dataset
        if name == "hub":
            if not config.dataset_repo:
                raise UnusableError("DATASET=hub: no repository given; set DATASET_REPO=owner/name")
            name = config.dataset_repo.replace("/", "--")
        return _made_here(config, model, f"{name}_{_tokenizer_name(config, model)}_{size}", ())
    # a ready pair stays where it is, and nothing is written beside it
    if is_pair(config.dataset):
        return _absolute(config.dataset)
    files = []
    for path in text_paths(config.dataset):
        # size and time stand for the content, so that a path can be known without reading the text
        status = path.stat()
        files.append((str(path), status.st_size, status.st_mtime_ns))
    stem = _plain(_absolute(config.dataset).name.split(".", 1)[0]) or "text"
    return _made_here(config, model, f"{stem}_{_tokenizer_name(config, model)}", tuple(files))


def tokenizer_folder(config: RunConfig, prefix: Path) -> Path:
    """Return the folder of the tokenizer of a data set: the one that TOKENIZER names, or the one beside the data."""
    if config.tokenizer:
        folder = Path(config.tokenizer).expanduser()
        if folder.is_dir():
            return folder
    return prefix.parent / "tokenizer"  # a copy, of a name on the hub too


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
        candidates = list(path.rglob("*"))
    elif path.is_file():
        candidates = [path]
    else:
        candidates = [Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207
    files = sorted(candidate for candidate in candidates if candidate.is_file())
    if not files:
        raise UnusableError(
            f"DATASET={dataset}: no such file, and neither {path}.bin nor {path}.idx exists; allowed: bc, c4, hub, "
            "synth, a text (.jsonl, .parquet, .txt, a folder or a glob of them), or the prefix of a .bin/.idx pair"
            f"{did_you_mean(dataset, ('synth', *HUB_DATASETS))}"
        )
    if files == [path] and path.suffix in (".bin", ".idx"):
        raise UnusableError(f"DATASET={dataset}: got a file of a pair, wanted its prefix; leave out {path.suffix}")
    return files


def _absolute(dataset: str) -> Path:
    return Path(dataset).expanduser().absolute()


def _made_here(config: RunConfig, model: str, name: str, files: tuple[object, ...]) -> Path:
    # the digest is that of the text of this tuple: another form of it gives every prepared data set another path
    settings = tuple((field, getattr(config, field)) for field in TEXT_SETTINGS)
    hub: tuple[object, ...] = ()
    size: object = config.samples
    if config.dataset in HUB_DATASETS:
        hub = (config.dataset_repo, config.dataset_config)
        size = size or tokens_needed(config)
    tokenizer = model if config.tokenizer is None else None
    digest = _digest((config.dataset, settings, hub, size or "all", tokenizer, files))
    return config.data_dir / f"{name}_{digest}" / "text"


def _tokenizer_name(config: RunConfig, model: str) -> str:
    """Return a readable name; the digest after it distinguishes equal names."""
    if config.tokenizer is None:
        return model
    parts = Path(config.tokenizer).parts
    if len(parts) != 2:  # owner/name in full; of a folder only the last part
        parts = parts[-1:]
    return _plain("--".join(parts)).strip("_") or "tokenizer"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)


def _digest(identity: object) -> str:
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:12]
