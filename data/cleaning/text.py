"""The cleaned text of a data set as one JSONL file, `{"text": ...}` a line, with a file beside it that records its
origin.

Shards from the hub are fetched while they are read, only as many as the wanted documents need. Both files appear whole
or not at all: after a kill, the next run finds them or makes them again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from data.cleaning.documents import clean, described, level
from data.hub.fetch import Shards, open_shards
from data.hub.licences import OWN_TEXT
from data.reading.records import records
from data.reading.sources import find
from data.reading.tokenizer import Encoder
from data.reading.unchanged import FileState, progress_bar, require_unchanged, state_of
from utils import redact
from utils.dataset.manifest import name_of, sha256_once
from utils.dataset.place import HUB_DATASETS
from utils.errors import DataError
from utils.files import written_whole
from utils.own_files import Recogniser, json_with
from utils.provenance.digests import sha256_file
from utils.settings.config import RunConfig

MEASURED_BYTES = 1 << 20
"""Size of the first documents that are encoded to measure the bytes per token of this text."""
MARGIN = 1.1
"""Factor on the estimated amount of text: the first documents may have fewer bytes per token than the rest."""


_is_record = json_with("documents", "source", "cleaning")


class LocalFiles:
    """Files of this machine, recorded as they are read."""

    def __init__(self, paths: list[Path], column: str, data_dir: Path | None = None) -> None:
        self.column = column
        self.text_unit = None
        self._digest: Callable[[Path], str] = sha256_file
        if data_dir is not None:
            self._digest = partial(sha256_once, data_dir=data_dir)
        self._paths = paths
        self._used: list[tuple[Path, FileState]] = []

    def __iter__(self) -> Iterator[Path]:
        for path in self._paths:
            self._used.append((path, state_of(path)))
            yield path

    def as_dict(self) -> dict[str, Any]:
        """Return the source for the manifest: the files that were read, without their folders.

        Raises DataError if one has changed since.
        """
        files = []
        for path, state in self._used:
            files.append({"name": name_of(path), "bytes": state.bytes, "sha256": self._digest(path)})
            require_unchanged([path], [state])
        return {"column": self.column, **OWN_TEXT, "files": files}


@dataclass
class Quota:
    """The wanted amount of text: a number of documents, an estimated number of tokens, or everything."""

    documents: int | None = None
    tokens: int | None = None
    encoder: Encoder | None = None
    margin: float = MARGIN
    _first: list[str] = field(default_factory=list)
    _wanted_bytes: float | None = None

    def is_met(self, documents: int, bytes_of_text: int, text: str) -> bool:
        """Return True if `documents` with `bytes_of_text` are enough; `text` is the last of them."""
        if self.documents is not None:
            return documents >= self.documents
        if self.tokens is None:
            return False
        if self._wanted_bytes is None:
            self._first.append(text)
            # a token has at least one byte, so less text than this cannot be enough
            if bytes_of_text < min(MEASURED_BYTES, self.tokens):
                return False
            self._wanted_bytes = self.tokens * self.margin * self._bytes_per_token(bytes_of_text)
            self._first.clear()
        return bytes_of_text >= self._wanted_bytes

    def _bytes_per_token(self, bytes_of_text: int) -> float:
        assert self.encoder is not None
        tokens = sum(len(ids) for ids in self.encoder.ids(self._first))
        return bytes_of_text / max(1, tokens)


def sidecar(text: Path) -> Path:
    """Return the path of the file that records the origin of a text."""
    return text.with_name(f"{text.stem}.source.json")


def recogniser(text: Path) -> Recogniser:
    """Return the recogniser of a text and its record: both are the suite's if the record is."""
    return lambda _: _is_record(sidecar(text))


def load(text: Path) -> dict[str, Any] | None:
    """Return the record of a text that was made earlier; None if the text does not exist or is not finished."""
    if not (text.is_file() and sidecar(text).is_file()):
        return None
    return dict(json.loads(sidecar(text).read_text(encoding="utf8")))


def make(config: RunConfig, text: Path, quota: Quota) -> dict[str, Any]:
    """Write the cleaned text of the configured data set and return its record.

    Raises DataError for text that cannot be read or has fewer documents than SAMPLES, ForeignFileError for a text that
    the suite did not write, and SourceError or FetchError of `data.hub`.
    """
    counts: Counter[str] = Counter()
    files = _files(config)
    rules = level(
        config.clean,
        is_bookcorpus=config.dataset == "bc",
        group_rows=config.group_rows,
        min_characters=config.min_characters,
        max_characters=config.max_characters,
    )
    unit = config.text_unit
    # a repository that is known to hold a line a document; TEXT_UNIT overrides it
    if unit == "file" and files.text_unit:
        unit = files.text_unit
    read = records(files, files.column, text_unit=unit, on_bad=config.on_bad_record, counts=counts)
    with written_whole(sidecar(text), text, is_ours=recogniser(text)) as (about, temporary):
        known = _write(temporary, config.dataset, clean(read, rules, counts), quota, config.samples)
        if config.samples and known["documents"] < config.samples:
            raise DataError(
                f"SAMPLES={config.samples}: {config.dataset} has only {known['documents']:,} documents; "
                "use SAMPLES=auto"
            )
        known |= {"source": files.as_dict(), "cleaning": described(rules, counts)}
        about.write_text(json.dumps(redact.json_value(known), indent=1) + "\n", encoding="utf8")
    return known


def share(texts: Iterable[Path], text: Path) -> dict[str, Any] | None:
    """Link the first finished one of `texts` as `text` and return its record; None if none is finished."""
    for other in texts:
        known = None if other == text else load(other)
        if known is None:
            continue
        with written_whole(sidecar(text), text, is_ours=recogniser(text)) as (about, temporary):
            _link(sidecar(other), about)
            _link(other, temporary)
        return known
    return None


def remove(text: Path) -> None:
    """Remove a text and its record, if they exist."""
    # in this order, because a text without its record is taken for a user's
    text.unlink(missing_ok=True)
    sidecar(text).unlink(missing_ok=True)


def _files(config: RunConfig) -> LocalFiles | Shards:
    if config.dataset in HUB_DATASETS:
        return open_shards(config)
    return LocalFiles(find(Path(config.dataset).expanduser()), config.text_column or "text", config.data_dir)


def _write(path: Path, name: str, texts: Iterator[str], quota: Quota, total: int | None) -> dict[str, Any]:
    documents = size = 0
    is_all = True
    print(f"text: {name}: reading and cleaning", file=sys.stderr)
    with path.open("wb") as file, progress_bar(f"text {name}", total, "documents") as bar:
        for text in texts:
            file.write(orjson.dumps({"text": text}) + b"\n")
            documents += 1
            size += len(text.encode("utf8"))
            bar.update()
            if quota.is_met(documents, size, text):
                is_all = False
                break
    print(f"text: {name}: {documents:,} documents, {size / 1e6:,.1f} MB", file=sys.stderr)
    return {"documents": documents, "bytes_of_text": size, "is_all": is_all}


def _link(source: Path, target: Path) -> None:
    target.unlink()
    try:
        os.link(source, target)
    except OSError:
        # a file system without hard links, or source and target on different file systems
        shutil.copyfile(source, target)
