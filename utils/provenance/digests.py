"""SHA-256 digests that must be equal for two runs to be comparable: files, tokenizer, settings, code, token order.

Nothing here imports torch, and numpy is imported on use: digests are also computed on machines that only analyse or
pack results.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from utils.errors import DataError, UnusableError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
"""Files that determine how `transformers` turns text into ids; weights, cards and chat templates do not."""
CODE_FOLDERS = ("utils", "train")
TOKEN_STREAM_BATCHES = 2
"""Number of global batches whose tokens are hashed, from the first."""
_CHUNK_BYTES = 1 << 20
_BAR_BYTES = 1 << 30
"""A smaller file is read in about two seconds and needs no progress bar."""


def sha256_file(path: Path) -> str:
    """Return the digest of a file's bytes, read in pieces; raise UnusableError if there is no such file."""
    if not path.is_file():
        raise UnusableError(f"{path}: no such file; check the path")
    digest = hashlib.sha256()
    with path.open("rb") as file, _progress_bar(path) as bar:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            if bar is not None:
                bar.update(len(chunk))
    return digest.hexdigest()


def _progress_bar(path: Path) -> AbstractContextManager[Any]:
    size = path.stat().st_size
    if size < _BAR_BYTES or find_spec("tqdm") is None:
        return nullcontext()
    from tqdm import tqdm

    bar: AbstractContextManager[Any] = tqdm(
        desc=f"sha256 {path.name}", total=size, unit="B", unit_scale=True, leave=False, disable=None
    )
    return bar


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the tokenizer files in a folder."""
    return [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]


def sha256_tokenizer(folder: Path, digest_of: Callable[[Path], str] = sha256_file) -> str:
    """Return one digest of the names and contents of the tokenizer files in `folder` (`TOKENIZER_FILES`).

    `digest_of` returns the digest of a file. Raises UnusableError if the folder holds none of them.
    """
    paths = tokenizer_files(folder)
    if not paths:
        raise UnusableError(f"{folder}: no tokenizer in it; wanted a folder with tokenizer.json or a vocabulary file")
    return sha256_files(folder, paths, digest_of)


def sha256_json(mapping: Mapping[str, Any]) -> str:
    """Return the digest of a mapping as canonical JSON: keys sorted, no spaces, UTF-8; the order of keys is irrelevant.

    Raises TypeError or ValueError for a value that JSON cannot represent, such as NaN.
    """
    text = json.dumps(dict(mapping), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf8")).hexdigest()


def sha256_code(root: Path) -> str:
    """Return one digest of names and contents of the training code: `*.py` and `*.sh` below utils/ and train/, and the
    `*-requirements.txt` files. It needs no git, so it is the same in a container and in a checkout.

    Raises UnusableError if there are no such files.
    """
    paths = list(root.glob("*-requirements.txt"))
    for folder in CODE_FOLDERS:
        paths += [path for ending in ("*.py", "*.sh") for path in (root / folder).rglob(ending)]
    if not paths:
        raise UnusableError(f"{root}: holds none of our code; name the root of a checkout")
    return sha256_files(root, paths)


def sha256_token_stream(dataset: Any, global_batch_size: int, batches: int) -> str:
    """Return the digest of the input tokens of the first `batches` global batches, in the order of training.

    `dataset[i]["tokens"]` is sample i of the training as a torch tensor on the CPU or an array. The ids are hashed as
    little-endian int64, sample after sample, so the digest does not depend on framework or integer type.
    Raises DataError for a data set with fewer samples.
    """
    import numpy as np

    samples = global_batch_size * batches
    if len(dataset) < samples:
        raise DataError(f"token stream: got {len(dataset)} samples, wanted {samples} to fingerprint; take more data")
    digest = hashlib.sha256()
    # int64, because frameworks use different types for the same ids
    for number in range(samples):
        digest.update(np.asarray(dataset[number]["tokens"]).astype("<i8").tobytes())
    return digest.hexdigest()


def sha256_files(root: Path, paths: Iterable[Path], digest_of: Callable[[Path], str] = sha256_file) -> str:
    """Return one digest of the names, relative to `root`, and the contents of files, in any order."""
    ordered = sorted(paths, key=lambda path: path.relative_to(root).as_posix())
    # digests have a fixed length, so no other set of names and contents gives the same text
    lines = [f"{digest_of(path)} {path.relative_to(root).as_posix()}\n" for path in ordered]
    return hashlib.sha256("".join(lines).encode("utf8")).hexdigest()
