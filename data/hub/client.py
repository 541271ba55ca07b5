"""Client of the Hugging Face Hub: one file at a time, verified by digest, with one-line errors.

HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and HF_HOME have the meaning that huggingface_hub gives them. Its cache holds the
files, so a cached file is not downloaded again. huggingface_hub resumes a broken connection at the same byte and waits
as long as a hub asks that has too many requests; a killed process loses only the file it was downloading. It reads the
variables when it is imported, on first use.
"""

from __future__ import annotations

import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from data.hub import cache as hub_cache
from data.hub.hub_errors import SERVER_FAULTS, FetchError, SourceError, code_of, explain, scrubbed
from utils import redact
from utils.provenance.digests import sha256_file

T = TypeVar("T")

RETRY_WAITS_SECONDS = (1, 2, 4)
"""Pauses after a fault of the server, after which huggingface_hub does not try every request again."""
LONGEST_RETRY_AFTER_SECONDS = 300
"""The hub counts requests in windows of 5 minutes, so a longer Retry-After has another cause."""
CARD = "README.md"
LICENCE_KEYS = ("license", "license_name", "license_link")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Repo:
    """A repository at one commit."""

    id: str
    kind: str
    """`model` or `dataset`."""
    revision: str
    """Requested branch, tag or commit."""
    commit: str
    """Commit of the revision; every file is read at this commit."""
    files: tuple[str, ...] = ()
    """File names of a model (offline: of the cached files); empty for a data set, which may have 100,000 files."""
    card: Mapping[str, Any] | None = None
    """Metadata of its card as the hub lists it, offline as in the cache; None if there is none."""
    is_gated: bool = False


@dataclass(frozen=True)
class HubFile:
    """A downloaded file and the identity of its content."""

    name: str
    path: Path
    size: int
    etag: str
    """sha256 of a large file, git's blob id of a small one."""

    def as_dict(self) -> dict[str, Any]:
        """Return name, size and digest for the manifest."""
        digest = "sha256" if _SHA256.fullmatch(self.etag) else "git_blob"
        return {"name": self.name, "bytes": self.size, digest: self.etag}


def resolve(repo_id: str, kind: str, revision: str | None) -> Repo:
    """Return the repository at the current commit of `revision` (None = main).

    Raises SourceError if the repository or revision is not available, FetchError if the hub cannot be reached.
    """
    api = _api()
    revision = revision or "main"
    if _is_offline():
        return _resolve_offline(repo_id, kind, revision)
    log(f"{repo_id}: looking up {revision} at {endpoint()}")
    # the file names of a data set are left out: C4 has 70,000
    wanted = ["sha", "cardData", "gated"] if kind == "dataset" else None
    info = _ask(repo_id, kind, lambda: api.repo_info(repo_id, repo_type=kind, revision=revision, expand=wanted))
    names = sorted(sibling.rfilename for sibling in info.siblings or ())
    card = {}
    for key in LICENCE_KEYS:
        value = getattr(info.card_data, key, None)
        if value:
            card[key] = value
    return Repo(repo_id, kind, revision, str(info.sha), tuple(names), card, bool(info.gated))


def _resolve_offline(repo_id: str, kind: str, revision: str) -> Repo:
    commit = hub_cache.commit_of(repo_id, kind, revision)
    log(f"{repo_id}: offline, {revision} is {commit[:12]} in the cache")
    names = hub_cache.names(repo_id, kind, commit) if kind == "model" else []
    return Repo(repo_id, kind, revision, commit, tuple(names), hub_cache.card(repo_id, kind, commit))


def card(repo: Repo) -> Mapping[str, Any] | None:
    """Return the metadata of a repository's card; None if it has no card or it cannot be read.

    A mirror may list no metadata; then the card itself is downloaded.
    """
    if repo.card or _is_offline() or (repo.kind == "model" and CARD not in repo.files):
        return repo.card
    try:
        download(repo, CARD)
    except (SourceError, FetchError):
        return None
    return hub_cache.card(repo.id, repo.kind, repo.commit)


def train_files(repo: Repo, config: str | None) -> list[str]:
    """Return the file names of the train split of a data set, in order; no data are downloaded.

    `datasets` determines the files of a configuration: from the card of the repository, else from the file names.
    Raises SourceError for a data set that is a script, or without this configuration or a train split.
    """
    import datasets

    datasets.disable_progress_bars()
    if _is_offline():
        folder = str(hub_cache.snapshot(repo.id, repo.kind, repo.commit))
        patterns = hub_cache.train_patterns(repo.id, repo.commit, config)
        names = _train_files(repo, f"{folder}/", folder, None if patterns else config, data_files=patterns)
        hub_cache.require_no_gap(repo.id, repo.kind, names)
        return names
    return _train_files(repo, f"hf://datasets/{repo.id}@{repo.commit}/", repo.id, config, revision=repo.commit)


def _train_files(repo: Repo, start: str, *arguments: Any, **more: Any) -> list[str]:
    """Return what `datasets` finds, without `start`; it gets the other arguments."""
    import datasets

    def build() -> Any:
        try:
            return datasets.load_dataset_builder(*arguments, **more)
        # raised for a script, an unknown configuration, or no data files
        except (RuntimeError, ValueError, FileNotFoundError) as error:
            # an OSError with a cause is a failed transfer
            if isinstance(error, OSError) and error.__cause__ is not None:
                raise
            raise SourceError(
                f"{repo.id}: cannot be read as a data set ({scrubbed(error)}); name another repository or "
                "DATASET_CONFIG"
            ) from error

    splits = _ask(repo.id, repo.kind, build).config.data_files or {}
    files = splits.get("train")
    if not files:
        raise SourceError(f"{repo.id}: no files of a train split; name another repository or DATASET_CONFIG")
    return [str(file).removeprefix(start) for file in files]


def download(repo: Repo, name: str) -> HubFile:
    """Return one file of the repository, from the cache or from the hub; a large file is checked by its sha256.

    Raises SourceError for a missing or inaccessible file, FetchError if the transfer fails.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    _api()
    cached = try_to_load_from_cache(repo.id, name, repo_type=repo.kind, revision=repo.commit)
    if not isinstance(cached, str):
        if _is_offline():
            raise hub_cache.missing(repo.id, repo.kind, name)
        plan = _ask(
            repo.id,
            repo.kind,
            lambda: hf_hub_download(repo.id, name, repo_type=repo.kind, revision=repo.commit, dry_run=True),
        )
        log(f"{repo.id}: {name}: downloading {_megabytes(plan.file_size)}")
    with warnings.catch_warnings():
        # the library only warns before it fills the disk
        warnings.filterwarnings("error", "Not enough free disk space")
        path = _ask(
            repo.id, repo.kind, lambda: hf_hub_download(repo.id, name, repo_type=repo.kind, revision=repo.commit)
        )
    file = _file(name, Path(path))
    _require_intact(repo, file)
    return file


def _megabytes(size: int | None) -> str:
    if size is None:
        return "a file of unknown size"
    if size < 100_000:
        return f"{size / 1e3:,.1f} kB"
    return f"{size / 1e6:,.1f} MB"


def _file(name: str, path: Path) -> HubFile:
    """Return a file of the cache, which is a link to a file that is named after the digest of its content."""
    # on a file system without links the cache holds the file itself
    digest = path.readlink().name if path.is_symlink() else sha256_file(path)
    return HubFile(name, path, path.stat().st_size, digest)


def endpoint() -> str:
    """Return the address of the hub, without a password that it may contain."""
    from huggingface_hub import constants

    return re.sub(r"//[^/@]*@", "//", constants.ENDPOINT)


def log(text: str) -> None:
    """Print a line about the progress of the work on stderr."""
    print(f"hub: {redact.text(text)}", file=sys.stderr)


def _is_offline() -> bool:
    from huggingface_hub import is_offline_mode

    return bool(is_offline_mode())


def _ask(repo_id: str, kind: str, call: Callable[[], T]) -> T:
    """Return the result of `call`; an error of the libraries becomes one of ours."""
    import httpx2
    from huggingface_hub.errors import XetDownloadError

    # the errors of huggingface_hub, datasets and their HTTP client have no common base class
    failures = (OSError, ValueError, RuntimeError, UserWarning, httpx2.HTTPError, httpx2.InvalidURL, XetDownloadError)
    waits = iter(RETRY_WAITS_SECONDS)
    while True:
        try:
            return call()
        except (SourceError, FetchError):
            raise
        except failures as error:
            fault = explain(error, repo_id, kind, endpoint())
            wait = next(waits, None)
            if wait is None or code_of(error) not in SERVER_FAULTS:
                raise fault from error
            log(f"{fault}; trying again in {wait} s")
            time.sleep(wait)


@cache
def _api() -> Any:
    """Return the API of huggingface_hub, set up once: its messages go through `log`, and its waits are bounded."""
    import huggingface_hub
    from huggingface_hub.utils import logging as hub_logging

    token = huggingface_hub.get_token()
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise SourceError("HF_TOKEN: contains characters that no token has; copy it again from your account's settings")
    logger = hub_logging.get_logger("huggingface_hub")
    logger.handlers[:] = [_OneLineHandler()]
    logger.propagate = False
    huggingface_hub.set_client_factory(_client)
    return huggingface_hub.HfApi()


class _OneLineHandler(logging.Handler):
    """A handler that prints each message of the library as one line without secrets."""

    def emit(self, record: logging.LogRecord) -> None:
        log(scrubbed(record.getMessage()))


def _client() -> Any:
    from huggingface_hub.utils._http import default_client_factory

    client = default_client_factory()
    client.event_hooks["response"].append(_require_short_wait)
    return client


def _require_short_wait(response: Any) -> None:
    """Raise FetchError where the library would wait for hours without a word."""
    wait = response.headers.get("Retry-After", "")
    if wait.isdigit() and int(wait) > LONGEST_RETRY_AFTER_SECONDS:
        raise FetchError(
            f"{endpoint()}: answers {response.status_code}, too many requests, retry after {int(wait):,} s, above the "
            f"limit of {LONGEST_RETRY_AFTER_SECONDS} s; run again later, or set HF_TOKEN, which has a higher limit"
        )


def _require_intact(repo: Repo, file: HubFile) -> None:
    if not _SHA256.fullmatch(file.etag):
        return
    digest = sha256_file(file.path)
    if digest != file.etag:
        raise FetchError(
            f"{file.path}: sha256 is {digest}, {repo.id} has {file.etag}; the file is damaged: remove it and run again"
        )
