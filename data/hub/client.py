"""Client of the Hugging Face Hub: one file at a time, verified by digest, with logged retries and one-line errors.

HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and HF_HOME have the meaning that huggingface_hub gives them. Its cache holds the
files, so a cached file is not downloaded again. A broken connection is resumed at the same byte; a killed process loses
only the file it was downloading. huggingface_hub reads these variables when it is imported, on first use.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from data.hub import cache as hub_cache
from data.hub.hub_errors import FetchError, SourceError, explain, scrubbed
from utils import redact
from utils.provenance.digests import sha256_file

T = TypeVar("T")

RETRY_WAITS_SECONDS = (1, 2, 4)
"""Pauses after a temporary failure; within one attempt, huggingface_hub makes up to five pauses of its own."""
LONGEST_RETRY_AFTER_SECONDS = 300
"""The hub counts requests in windows of 5 minutes, so a longer Retry-After has another cause."""
CARD, LICENCE_KEYS = "README.md", ("license", "license_name", "license_link")
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
    named = revision or "main"
    if _is_offline():
        commit = hub_cache.commit_of(repo_id, kind, named)
        log(f"{repo_id}: offline, {named} is {commit[:12]} in the cache")
        names = tuple(hub_cache.names(repo_id, kind, commit) if kind == "model" else ())
        return Repo(repo_id, kind, named, commit, names, hub_cache.card(repo_id, kind, commit))
    log(f"{repo_id}: looking up {named} at {endpoint()}")
    wanted = ["sha", "cardData", "gated"] if kind == "dataset" else None  # without the names of its files
    info = _ask(repo_id, kind, lambda: api.repo_info(repo_id, repo_type=kind, revision=named, expand=wanted))
    names = tuple(sorted(sibling.rfilename for sibling in info.siblings or ()))
    card = {key: value for key in LICENCE_KEYS if (value := getattr(info.card_data, key, None))}
    return Repo(repo_id, kind, named, str(info.sha), names, card, bool(info.gated))


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
    is_offline = _is_offline()
    folder = hub_cache.snapshot(repo.id, repo.kind, repo.commit)

    def build() -> Any:
        try:
            if is_offline:
                patterns = hub_cache.train_patterns(repo.id, repo.commit, config)
                return datasets.load_dataset_builder(str(folder), None if patterns else config, data_files=patterns)
            return datasets.load_dataset_builder(repo.id, config, revision=repo.commit)
        # raised for a script, an unknown configuration, or no data files
        except (RuntimeError, ValueError, FileNotFoundError) as error:
            if isinstance(error, OSError) and error.__cause__ is not None:
                raise
            raise SourceError(f"{repo.id}: cannot be read as a data set ({scrubbed(error)}); name another repository "
                              "or DATASET_CONFIG") from error  # fmt: skip

    files = (_ask(repo.id, repo.kind, build).config.data_files or {}).get("train")
    if not files:
        raise SourceError(f"{repo.id}: no files of a train split; name another repository or DATASET_CONFIG")
    start = f"{folder}/" if is_offline else f"hf://datasets/{repo.id}@{repo.commit}/"
    names = [str(file).removeprefix(start) for file in files]
    if is_offline:
        hub_cache.require_no_gap(repo.id, repo.kind, names)
    return names


def download(repo: Repo, name: str) -> HubFile:
    """Return one file of the repository, from the cache or from the hub; a large file is checked by its sha256.

    Raises SourceError for a missing or inaccessible file, FetchError if the transfer fails.
    """
    import huggingface_hub

    api = _api()
    here = huggingface_hub.try_to_load_from_cache(repo.id, name, repo_type=repo.kind, revision=repo.commit)
    cached = Path(here) if isinstance(here, str) else None
    if _is_offline():
        if cached is None:
            raise hub_cache.missing(repo.id, repo.kind, name)
        file = HubFile(name, cached, cached.stat().st_size, cached.resolve().name)
        _require_intact(repo, file)
        return file
    found = _ask(
        repo.id, repo.kind, lambda: api.get_paths_info(repo.id, [name], repo_type=repo.kind, revision=repo.commit)
    )
    if not found:
        raise SourceError(f"{repo.id}: no file {name} at {repo.commit[:12]}; name another repository or revision")
    info = found[0]
    etag = info.lfs.sha256 if info.lfs else info.blob_id
    if cached is None:
        _require_space(repo, info.size)
        log(f"{repo.id}: {name}: downloading {_megabytes(info.size)}")
    started = time.monotonic()
    path = _ask(
        repo.id,
        repo.kind,
        lambda: huggingface_hub.hf_hub_download(repo.id, name, repo_type=repo.kind, revision=repo.commit),
    )
    file = HubFile(name, Path(path), int(info.size), str(etag))
    _require_intact(repo, file)
    if cached is None:
        log(f"{repo.id}: {name}: done after {time.monotonic() - started:,.1f} s")
    return file


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
    """Return the result of `call`; log a temporary failure and try again."""
    import httpx2
    from huggingface_hub.errors import XetDownloadError

    # the errors of huggingface_hub, datasets and their HTTP client have no common base class
    failures = OSError, ValueError, RuntimeError, httpx2.HTTPError, httpx2.InvalidURL, XetDownloadError
    for wait in (*RETRY_WAITS_SECONDS, None):
        try:
            return call()
        except (SourceError, FetchError):
            raise
        except failures as error:
            fault, is_temporary = explain(error, repo_id, kind, endpoint())
            if wait is None or not is_temporary:
                raise fault from error
            log(f"{fault}; trying again in {wait} s")
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


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
    client.event_hooks["response"].append(_bounded_wait)
    return client


def _bounded_wait(response: Any) -> None:
    wait = response.headers.get("Retry-After", "")
    if response.status_code == 429 and wait.isdigit() and int(wait) > LONGEST_RETRY_AFTER_SECONDS:
        raise FetchError(
            f"{endpoint()}: answers 429, too many requests, retry after {int(wait):,} s, above the limit of "
            f"{LONGEST_RETRY_AFTER_SECONDS} s; run again later, or set HF_TOKEN, which has a higher request limit"
        )


def _require_space(repo: Repo, size: int) -> None:
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < size:
        raise FetchError(
            f"{folder}: {_megabytes(free)} are free, {repo.id} needs {_megabytes(size)}; free space, or move the cache "
            "with HF_HOME"
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


def _require_intact(repo: Repo, file: HubFile) -> None:
    if _SHA256.fullmatch(file.etag) and (got := sha256_file(file.path)) != file.etag:
        raise FetchError(
            f"{file.path}: sha256 is {got}, {repo.id} has {file.etag}; the file is damaged: remove it and run again"
        )
