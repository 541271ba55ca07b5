"""The Hugging Face Hub for this suite: one file at a time, retried aloud, verified, and errors in one line.

HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and HF_HOME mean what they mean to huggingface_hub, whose cache holds the files:
a file that is there is not downloaded again. A connection that breaks is taken up again where it broke; a process that
is killed loses the one file it was at. huggingface_hub reads its variables when it is imported, which is on first use.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
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
"""Pauses of ours after a failure that may pass; huggingface_hub makes up to five of its own within one attempt."""
LONGEST_TOLD_WAIT_SECONDS = 300
"""The hub counts requests in windows of 5 minutes, so a longer Retry-After is not about us alone."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Repo:
    """A repository at one commit."""

    id: str
    kind: str
    """`model` or `dataset`."""
    revision: str
    """What was asked for: branch, tag or commit."""
    commit: str
    """The commit that it was; everything is read at this one."""
    files: tuple[str, ...] = ()
    """Names of the files of a model (offline: those in the cache); empty for a data set, which may have 100,000."""


@dataclass(frozen=True)
class HubFile:
    """A downloaded file and what identifies its content."""

    name: str
    path: Path
    size: int
    etag: str
    """sha256 of a large file, git's blob id of a small one."""

    def as_dict(self) -> dict[str, Any]:
        """Return name, size and digest as the manifest holds them."""
        digest = "sha256" if _SHA256.fullmatch(self.etag) else "git_blob"
        return {"name": self.name, "bytes": self.size, digest: self.etag}


def resolve(repo_id: str, kind: str, revision: str | None) -> Repo:
    """Return the repository at the commit that `revision` (None = main) is now.

    Raises SourceError where there is none to be had, FetchError where the hub cannot be asked.
    """
    api = _api()
    named = revision or "main"
    if hub_cache.is_offline():
        commit = hub_cache.commit_of(repo_id, kind, named)
        say(f"{repo_id}: offline, {named} is {commit[:12]} in the cache")
        return Repo(
            repo_id, kind, named, commit, tuple(hub_cache.names(repo_id, kind, commit) if kind == "model" else ())
        )
    say(f"{repo_id}: looking up {named} at {endpoint()}")
    if kind == "model":
        model = _ask(repo_id, kind, lambda: api.model_info(repo_id, revision=named))
        names = tuple(sorted(sibling.rfilename for sibling in model.siblings or ()))
        return Repo(repo_id, kind, named, str(model.sha), names)
    found = _ask(repo_id, kind, lambda: api.dataset_info(repo_id, revision=named, expand=["sha"]))
    return Repo(repo_id, kind, named, str(found.sha))


def train_files(repo: Repo, config: str | None) -> list[str]:
    """Return the names of the files of the train split of a data set, in order; no data are downloaded.

    What a configuration holds is `datasets`' rule: the card of the repository, or else the names of its files.
    Raises SourceError for a data set that is a script, or has no such configuration or no train split.
    """
    import datasets

    datasets.disable_progress_bars()
    is_offline = hub_cache.is_offline()
    folder = hub_cache.snapshot(repo.id, repo.kind, repo.commit)

    def build() -> Any:
        try:
            if is_offline:
                patterns = hub_cache.train_patterns(repo.id, repo.commit, config)
                return datasets.load_dataset_builder(str(folder), None if patterns else config, data_files=patterns)
            return datasets.load_dataset_builder(repo.id, config, revision=repo.commit)
        # a script, an unknown configuration, no data files: RuntimeError, ValueError and FileNotFoundError by turns
        except (RuntimeError, ValueError, FileNotFoundError) as error:
            if isinstance(error, OSError) and error.__cause__ is not None:
                raise
            raise SourceError(f"{repo.id}: cannot be read as a data set ({scrubbed(error)}); name another repository "
                              "or DATASET_CONFIG") from error  # fmt: skip

    files = (_ask(repo.id, repo.kind, build).config.data_files or {}).get("train")
    if not files:
        raise SourceError(f"{repo.id}: has no files of a train split; name another repository or DATASET_CONFIG")
    start = f"{folder}/" if is_offline else f"hf://datasets/{repo.id}@{repo.commit}/"
    names = [str(file).removeprefix(start) for file in files]
    if is_offline:
        hub_cache.require_no_gap(repo.id, repo.kind, names)
    return names


def download(repo: Repo, name: str) -> HubFile:
    """Return one file of the repository, from the cache or from the hub; a large one is checked by its sha256.

    Raises SourceError for a file that does not exist or may not be had, FetchError where the transfer fails.
    """
    import huggingface_hub

    api = _api()
    if hub_cache.is_offline():
        file = HubFile(name, *hub_cache.file(repo.id, repo.kind, repo.commit, name))
        _require_sound(repo, file)
        return file
    cached = _cached(repo, name)
    found = _ask(
        repo.id, repo.kind, lambda: api.get_paths_info(repo.id, [name], repo_type=repo.kind, revision=repo.commit)
    )
    if not found:
        raise SourceError(f"{repo.id}: no file {name} at {repo.commit[:12]}; name another repository or revision")
    info = found[0]
    etag = info.lfs.sha256 if info.lfs else info.blob_id
    if cached is None:
        _require_space(repo, info.size)
        say(f"{repo.id}: {name}: downloading {_megabytes(info.size)}")
    started = time.monotonic()
    path = _ask(
        repo.id,
        repo.kind,
        lambda: huggingface_hub.hf_hub_download(repo.id, name, repo_type=repo.kind, revision=repo.commit),
    )
    file = HubFile(name, Path(path), int(info.size), str(etag))
    _require_sound(repo, file)
    if cached is None:
        say(f"{repo.id}: {name}: done after {time.monotonic() - started:,.1f} s")
    return file


def download_small(repo: Repo, names: Sequence[str], folder: Path) -> list[HubFile]:
    """Copy some small files of the repository into `folder`, which exists; return them as they lie there."""
    files = []
    for name in names:
        file = download(repo, name)
        shutil.copyfile(file.path, folder / name)
        files.append(HubFile(name, folder / name, file.size, file.etag))
    return files


def endpoint() -> str:
    """Return the address that is asked, without a password that may stand in it."""
    from huggingface_hub import constants

    return re.sub(r"//[^/@]*@", "//", constants.ENDPOINT)


def say(text: str) -> None:
    """Print a line about what is being done."""
    print(f"hub: {redact.text(text)}", file=sys.stderr)


def _ask(repo_id: str, kind: str, call: Callable[[], T]) -> T:
    """Return what `call` returns; a failure that may pass is said and tried again."""
    for wait in (*RETRY_WAITS_SECONDS, None):
        try:
            return call()
        except (SourceError, FetchError):
            raise
        except _failures() as error:
            fault, may_pass = explain(error, repo_id, kind, endpoint())
            if wait is None or not may_pass:
                raise fault from error
            say(f"{fault}; trying again in {wait} s")
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _failures() -> tuple[type[Exception], ...]:
    """Whatever huggingface_hub, datasets and the HTTP client below them raise: there is no common base."""
    import httpx2
    from huggingface_hub.errors import XetDownloadError

    return OSError, ValueError, RuntimeError, httpx2.HTTPError, httpx2.InvalidURL, XetDownloadError


@cache
def _api() -> Any:
    """Set huggingface_hub up for us once: its own messages through ours, waits that it is told bounded."""
    import huggingface_hub
    from huggingface_hub.utils import logging as hub_logging

    token = huggingface_hub.get_token()
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        raise SourceError("HF_TOKEN: holds characters that no token has; copy it again from your account's settings")
    logger = hub_logging.get_logger("huggingface_hub")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.addHandler(_Lines())
    logger.propagate = False
    huggingface_hub.set_client_factory(_client)
    return huggingface_hub.HfApi()


class _Lines(logging.Handler):
    """What the library says while it waits and retries, as one line of ours each."""

    def emit(self, record: logging.LogRecord) -> None:
        say(scrubbed(record.getMessage()))


def _client() -> Any:
    from huggingface_hub.utils._http import default_client_factory

    client = default_client_factory()
    client.event_hooks["response"].append(_bounded_wait)
    return client


def _bounded_wait(response: Any) -> None:
    told = response.headers.get("Retry-After", "")
    if response.status_code == 429 and told.isdigit() and int(told) > LONGEST_TOLD_WAIT_SECONDS:
        raise FetchError(
            f"{endpoint()}: answers 429, too many requests, and to wait {int(told):,} s, longer than the "
            f"{LONGEST_TOLD_WAIT_SECONDS} s that are waited; run again later, with HF_TOKEN set the limit is higher"
        )


def _cached(repo: Repo, name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo.id, name, repo_type=repo.kind, revision=repo.commit)
    return Path(found) if isinstance(found, str) else None


def _require_space(repo: Repo, size: int) -> None:
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < size:
        raise FetchError(
            f"{folder}: {_megabytes(free)} are free, {_megabytes(size)} of {repo.id} are to come; make room, or name "
            "another folder for the cache with HF_HOME"
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 100_000 else f"{size / 1e3:,.1f} kB"


def _require_sound(repo: Repo, file: HubFile) -> None:
    if _SHA256.fullmatch(file.etag) and (got := sha256_file(file.path)) != file.etag:
        raise FetchError(
            f"{file.path}: sha256 is {got}, {repo.id} says {file.etag}; the file is damaged: remove it and run again"
        )
