"""Fetch the data of a run from the hub: the shards of a text, one at a time, and the tokenizer of a model.

Repositories are tried in the order of TEXTS and of utils/models.py, which declares the tokenizers: the canonical one
first, then copies of the same content. The reason for skipping one is logged. The origin, with its commit and the
digest of every file, is returned for the manifest. docs/data.md has the sources, and what could not be checked.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from data.hub import client as hub
from data.hub.hub_errors import SourceError, scrubbed
from data.hub.licences import Licence, licence_of
from data.reading.sources import WANTED, kind
from data.reading.tokenizer import Encoder
from utils.errors import UnusableError
from utils.files import folder_written_whole
from utils.models import MODELS, ModelTokenizer
from utils.provenance.digests import TOKENIZER_FILES
from utils.results.store import write_json
from utils.settings.config import RunConfig


@dataclass(frozen=True)
class TextSource:
    """A data set on the hub and how to read it."""

    repo: str
    config: str | None
    """Configuration as `datasets` knows it; None = the only one, or the default."""
    column: str
    text_unit: str | None = None
    """What a document of a `.txt` file is where that is not the file, as TEXT_UNIT names it."""


TEXTS: dict[str, tuple[TextSource, ...]] = {
    "c4": (TextSource("allenai/c4", "en", "text"),),
    # bookcorpus/bookcorpus itself is a loading script, which datasets has not run since version 4
    "bc": (
        TextSource("SamuelYang/bookcorpus", None, "text"),
        # two files with a sentence on each line
        TextSource("rojagtap/bookcorpus", None, "text", text_unit="line"),
    ),
}
"""Data sets by the name that DATASET gives them; each tuple in the order in which they are tried."""

VOCABULARIES: dict[str, ModelTokenizer] = {
    repo: model.tokenizer for model in MODELS.values() for repo in model.repositories
}
"""Identity of the tokenizer in a repository; one that is not in this table is used unchecked."""
UNGATED = {model.release: model.tokenizer.copies[0] for model in MODELS.values() if model.tokenizer.is_gated}
"""A copy that needs no access request, for the message about a gated repository."""


Candidate = TypeVar("Candidate")
Fetched = TypeVar("Fetched")
SOURCE_FILE = "source.json"
"""File beside a fetched tokenizer that records its origin."""
_SLOW_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.txt", "tekken.json")
"""Not needed beside a tokenizer.json, which has the same content and is the file that the encoder loads."""


class Shards:
    """The files of a text on the hub, each downloaded when it is requested."""

    def __init__(self, source: TextSource, repo: hub.Repo, names: Sequence[str]) -> None:
        self.column = source.column
        self.text_unit = source.text_unit
        self.licence = _licence(repo)
        self.used: list[hub.HubFile] = []
        self._source = source
        self._repo = repo
        self._names = names

    def __iter__(self) -> Iterator[Path]:
        for number in range(len(self._names)):
            # the first file is there already
            if number == len(self.used):
                self.fetch_next()
            yield self.used[number].path

    def fetch_next(self) -> None:
        """Download one more file; raises SourceError or FetchError."""
        self.used.append(hub.download(self._repo, self._names[len(self.used)]))

    def as_dict(self) -> dict[str, Any]:
        """Return the source for the manifest: repository, commit and files."""
        return {
            "repo": self._repo.id,
            "config": self._source.config,
            "revision": self._repo.revision,
            "commit": self._repo.commit,
            "column": self.column,
            **self.licence.as_dict(),
            "files": [file.as_dict() for file in self.used],
            "files_of_the_split": len(self._names),
        }


def open_shards(config: RunConfig) -> Shards:
    """Return the shards of the configured hub data set, the first of them downloaded.

    Raises SourceError if none of its repositories is available, FetchError if the hub cannot be reached.
    """
    return _first_that_works(
        f"DATASET={config.dataset} DATASET_REPO=auto", _text_sources(config), lambda source: _open(config, source)
    )


def _text_sources(config: RunConfig) -> list[TextSource]:
    """Return the repositories of a data set, with the settings that override the table."""
    sources = list(TEXTS.get(config.dataset, ()))
    if config.dataset_repo:
        named = [source for source in sources if source.repo == config.dataset_repo]
        sources = named or [TextSource(config.dataset_repo, None, "text")]
    if config.dataset_config:
        sources = [replace(source, config=config.dataset_config) for source in sources]
    if config.text_column:
        sources = [replace(source, column=config.text_column) for source in sources]
    return sources


def _open(config: RunConfig, source: TextSource) -> Shards:
    repo = hub.resolve(source.repo, "dataset", config.dataset_revision)
    names = hub.train_files(repo, source.config)
    if kind(Path(names[0])) is None:
        raise SourceError(f"{source.repo}: contains {names[0]}, wanted {WANTED}; name another repository")
    shards = Shards(source, repo, names)
    hub.log(str(shards.licence))
    # a gated repository lists its files to everybody: only a download shows whether there is access
    shards.fetch_next()
    return shards


def _licence(repo: hub.Repo) -> Licence:
    return licence_of(repo.kind, repo.id, hub.card(repo), hub.endpoint(), is_gated=repo.is_gated)


def fetch_tokenizer(config: RunConfig, model: str, folder: Path) -> dict[str, Any]:
    """Put the tokenizer of `model`, or the one that TOKENIZER names, into `folder`, whole or not at all.

    Returns its origin; a folder that was fetched before is kept. Raises ForeignFileError for any other folder that is
    not empty, SourceError if no repository is available or its tokenizer is a different one, FetchError if the hub
    cannot be reached.
    """
    if (folder / SOURCE_FILE).is_file():
        source = dict(json.loads((folder / SOURCE_FILE).read_text(encoding="utf8")))
        # a tokenizer that an earlier version fetched has no licence on record
        return licence_of("model", str(source.get("repo")), None).as_dict() | source
    repositories = (config.tokenizer,) if config.tokenizer else MODELS[model].repositories
    return _first_that_works(
        f"TOKENIZER=auto of {model}", repositories, lambda repo_id: _fetch_tokenizer(repo_id, folder)
    )


def _fetch_tokenizer(named: str, folder: Path) -> dict[str, Any]:
    repo_id, _, revision = named.partition("@")
    repo = hub.resolve(repo_id, "model", revision or None)
    names = [name for name in TOKENIZER_FILES if name in repo.files]
    if "tokenizer.json" in names:
        names = [name for name in names if name not in _SLOW_FILES]
    if not names:
        raise SourceError(f"{repo_id}: contains no tokenizer; name a repository with a tokenizer.json")
    licence = _licence(repo)
    hub.log(str(licence))
    # only an empty folder may be replaced
    with folder_written_whole(folder, is_ours=lambda path: not any(path.iterdir())) as temporary:
        files = [hub.download(repo, name) for name in names]
        for file in files:
            shutil.copyfile(file.path, temporary / file.name)
        _check_vocabulary(repo_id, temporary)
        source = {
            "repo": repo.id,
            "revision": repo.revision,
            "commit": repo.commit,
            **licence.as_dict(),
            "files": [file.as_dict() for file in files],
        }
        write_json(source, temporary / SOURCE_FILE)
    return source


def _check_vocabulary(repo_id: str, folder: Path) -> None:
    """Raise SourceError for a tokenizer that cannot be used, or is not the one that VOCABULARIES has for `repo_id`."""
    encoder = Encoder(folder)
    try:
        first_id = encoder.ids(["a"])[0][0]
    except UnusableError as error:
        reason = scrubbed(str(error).replace(f"{folder}: ", ""))
        raise SourceError(f"{repo_id}: its tokenizer cannot be used: {reason}") from error
    wanted = VOCABULARIES.get(repo_id)
    if wanted is None:
        return
    begins = first_id if first_id == encoder.tokenizer.bos_token_id else None
    _require_equal(repo_id, "entries", encoder.vocabulary_size, wanted.size)
    _require_equal(repo_id, "as end of text", encoder.eod, wanted.eos_token_id)
    _require_equal(repo_id, "before each document", begins, wanted.bos_token_id)


def _require_equal(repo_id: str, name: str, got: int | None, wanted: int | None) -> None:
    if got != wanted:
        raise SourceError(f"{repo_id}: its tokenizer has {got} {name}, wanted {wanted}; it is a different tokenizer")


def _first_that_works(name: str, candidates: Sequence[Candidate], fetch: Callable[[Candidate], Fetched]) -> Fetched:
    """Return what `fetch` gives for the first of the candidates that is available."""
    refusals: list[str] = []
    for candidate in candidates:
        try:
            return fetch(candidate)
        except SourceError as error:
            if len(candidates) == 1:
                copy = UNGATED.get(str(candidate))
                if copy and "gated" in str(error):
                    raise SourceError(f"{error}; or use an ungated copy, TOKENIZER={copy}") from error
                raise
            refusals.append(str(error))
            if len(refusals) < len(candidates):
                hub.log(f"{error}; trying the next repository")
    raise SourceError(f"{name}: none of its repositories is available: {' | '.join(refusals)}")
