"""Errors of huggingface_hub as one line with a remedy, and without any token."""

from __future__ import annotations

import errno
import os
import re

from utils import redact
from utils.errors import UnusableError, shortened

_SHOWN_CHARACTERS = 400
_TEMPORARY_STATUSES = (408, 500, 502, 503, 504)
TOKENS_PAGE = "settings/tokens"


class SourceError(UnusableError):
    """A repository or file that is not available under its name; another one may be."""


class FetchError(RuntimeError):
    """A failed transfer, because of the network, the hub or the disk. The same command may succeed later."""


def scrubbed(error: object) -> str:
    """Return the message of an error as one line of bounded length, without tokens, passwords and signatures."""
    text = " ".join(str(error).split()) or type(error).__name__
    for secret in _secrets():
        text = text.replace(secret, "***")
    text = re.sub(r"hf_[A-Za-z0-9]{4,}", "***", redact.text(text))  # also a cut token
    text = re.sub(r"//[^/@\s]*@", "//", text)
    text = re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", text)  # the query of a stored file's address is a signature
    return shortened(text, _SHOWN_CHARACTERS)


def explain(error: Exception, repo: str, kind: str, endpoint: str) -> tuple[SourceError | FetchError, bool]:
    """Return the error to raise instead of the library's, and True if another attempt may succeed."""
    for cause in _chain(error):
        known = _of_repository(cause, repo, kind, endpoint) or _of_transfer(cause, repo, endpoint)
        if known is not None:
            return known
    return FetchError(f"{repo}: fetching failed ({scrubbed(_chain(error)[0])}); run again"), True


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, the innermost first; the library wraps it in less specific ones."""
    chain = [error]
    while (inner := chain[-1].__cause__) is not None and inner not in chain:
        chain.append(inner)
    return chain[::-1]


def _of_repository(
    error: BaseException, repo: str, kind: str, endpoint: str
) -> tuple[SourceError | FetchError, bool] | None:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return SourceError(_gated(repo, kind, endpoint)), False
    if isinstance(error, errors.RepositoryNotFoundError):
        hint = "is it private? HF_TOKEN may have no access to it" if _has_token() else "if it is private, set HF_TOKEN"
        return SourceError(f"{repo}: no such repository at {endpoint}; check the name ({hint})"), False
    if isinstance(error, errors.RevisionNotFoundError):
        return SourceError(f"{repo}: no such revision; name a branch, tag or commit that it has"), False
    if isinstance(error, errors.RemoteEntryNotFoundError):
        name = str(error.response.url).partition("/resolve/")[2].partition("/")[2] or "the file"
        return SourceError(f"{repo}: no such file: {name}; name another revision or repository"), False
    if isinstance(error, errors.HFValidationError):
        return SourceError(f"{repo}: not a valid repository name, wanted owner/name"), False
    if isinstance(error, errors.FileMetadataError):
        return SourceError(f"{endpoint}: does not answer like a hub; check HF_ENDPOINT, firewall and proxy"), False
    if isinstance(error, errors.OfflineModeIsEnabled):
        return SourceError(
            f"{repo}: HF_HUB_OFFLINE is set and a needed file is not in the cache; unset it, or prepare the data on a "
            "machine with a network and copy DATA_DIR"
        ), False
    return None


def _of_transfer(error: BaseException, repo: str, endpoint: str) -> tuple[SourceError | FetchError, bool] | None:
    import httpx2
    from huggingface_hub import errors

    if isinstance(error, errors.HfHubHTTPError):
        return _of_status(error.response.status_code, error, repo, endpoint)
    if isinstance(error, httpx2.TimeoutException):
        return FetchError(f"{endpoint}: does not answer in time; check network and proxy, run again"), True
    if isinstance(error, httpx2.ConnectError):
        return FetchError(f"{endpoint}: cannot be reached ({scrubbed(error)}); check network, proxy, HF_ENDPOINT"), True
    if isinstance(error, httpx2.TransportError):
        return FetchError(f"{repo}: the transfer broke ({scrubbed(error)}); run again"), True
    return _of_disk(error, repo) if isinstance(error, OSError) else None


def _of_disk(error: OSError, repo: str) -> tuple[SourceError | FetchError, bool] | None:
    path = error.filename or "the cache"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FetchError(f"{path}: the disk is full; free space, or move the cache with HF_HOME"), False
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return SourceError(f"{path}: cannot be written ({error.strerror}); move the cache with HF_HOME"), False
    if "Consistency check failed" in str(error):
        return FetchError(f"{repo}: the transfer broke, a file is shorter than announced; run again"), True
    return None


def _of_status(status: int, error: object, repo: str, endpoint: str) -> tuple[SourceError | FetchError, bool]:
    if status in (401, 403) and _has_token():
        return SourceError(
            f"{repo}: {endpoint} refuses HF_TOKEN (status {status}); it is wrong, revoked or without read access: "
            f"create another at {endpoint}/{TOKENS_PAGE}"
        ), False
    if status in (401, 403):
        return SourceError(f"{repo}: {endpoint} refuses access (status {status}); set HF_TOKEN"), False
    if status == 429:
        hint = "run again later" if _has_token() else "run again later, or set HF_TOKEN, which has a higher limit"
        return FetchError(f"{endpoint}: answers 429, too many requests, for {repo}; {hint}"), False
    if status in _TEMPORARY_STATUSES:
        return FetchError(f"{endpoint}: answers {status} for {repo}, a fault of the server; run again later"), True
    return FetchError(f"{repo}: {endpoint} answers with status {status} ({scrubbed(error)}); run again"), False


def _gated(repo: str, kind: str, endpoint: str) -> str:
    page = f"{endpoint}/{'datasets/' if kind == 'dataset' else ''}{repo}"
    if _has_token():
        return f"{repo}: gated, and the account of HF_TOKEN has no access; ask for it at {page}"
    tokens = f"{endpoint}/{TOKENS_PAGE}"
    return f"{repo}: gated; ask for access at {page} and set HF_TOKEN to a token of your account ({tokens})"


def _has_token() -> bool:
    return bool(_secrets())


def _secrets() -> list[str]:
    from huggingface_hub import get_token

    given = {os.environ.get(name, "").strip() for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")} | {get_token() or ""}
    return sorted(given - {""}, key=len, reverse=True)
