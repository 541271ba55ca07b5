"""Errors of huggingface_hub as one line with a remedy, and without any token."""

from __future__ import annotations

import errno
import re
from functools import cache
from typing import NamedTuple

from utils import redact
from utils.errors import UnusableError, shortened

SERVER_FAULTS = (500, 502, 503, 504)
"""HTTP statuses of a hub that is out of order for a moment."""
_SHOWN_CHARACTERS = 400


class SourceError(UnusableError):
    """A repository or file that is not available under its name; another one may be."""


class FetchError(RuntimeError):
    """A failed transfer, because of the network, the hub or the disk. The same command may succeed later."""


class Remedy(NamedTuple):
    """A row of the table of remedies."""

    error: type[Exception]
    """Class of the library's error, with its subclasses."""
    codes: tuple[int, ...]
    """HTTP statuses or numbers of an OSError that the row is for; empty for all."""
    raised: type[SourceError | FetchError]
    message: str
    """Its fields are those that `explain` fills."""


@cache
def _remedies() -> tuple[Remedy, ...]:
    """Return the table; the first row that fits an error counts, so subclasses come before their base class."""
    # imported on use: huggingface_hub reads its environment variables when it is imported
    import httpx2
    from huggingface_hub import errors

    return (
        Remedy(
            errors.GatedRepoError,
            (),
            SourceError,
            "{repo}: gated; ask for access at {page} and set HF_TOKEN to a token of the account that has it ({tokens})",
        ),
        Remedy(
            errors.RepositoryNotFoundError,
            (),
            SourceError,
            "{repo}: no such repository at {hub}; check the name (for a private one, set HF_TOKEN)",
        ),
        Remedy(
            errors.RevisionNotFoundError,
            (),
            SourceError,
            "{repo}: no such revision; name a branch, tag or commit that it has",
        ),
        Remedy(
            errors.RemoteEntryNotFoundError,
            (),
            SourceError,
            "{repo}: no such file ({error}); name another revision or repository",
        ),
        Remedy(errors.HFValidationError, (), SourceError, "{repo}: not a valid repository name, wanted owner/name"),
        Remedy(
            errors.HfHubHTTPError,
            (401, 403),
            SourceError,
            "{repo}: {hub} refuses access (status {code}); set HF_TOKEN to a token with read access, from {tokens}",
        ),
        Remedy(
            errors.HfHubHTTPError,
            (429,),
            FetchError,
            "{hub}: answers 429, too many requests, for {repo}; run again later (with HF_TOKEN the limit is higher)",
        ),
        Remedy(
            errors.HfHubHTTPError,
            SERVER_FAULTS,
            FetchError,
            "{hub}: answers {code} for {repo}, a fault of the server; run again later",
        ),
        Remedy(
            httpx2.TransportError,
            (),
            FetchError,
            "{hub}: cannot be reached ({error}); check network, proxy and HF_ENDPOINT, then run again",
        ),
        # a warning of the library before a download, which `client.download` turns into an error
        Remedy(UserWarning, (), FetchError, "{repo}: {error} Free space, or move the cache with HF_HOME"),
        Remedy(
            OSError,
            (errno.ENOSPC, errno.EDQUOT),
            FetchError,
            "{repo}: the disk is full ({error}); free space, or move the cache with HF_HOME",
        ),
        Remedy(
            OSError,
            (errno.EACCES, errno.EROFS, errno.EPERM),
            SourceError,
            "{repo}: the cache cannot be written ({error}); move it with HF_HOME",
        ),
    )


def explain(error: Exception, repo: str, kind: str, endpoint: str) -> SourceError | FetchError:
    """Return the error to raise instead of the library's."""
    chain = _chain(error)
    for cause in chain:
        for remedy in _remedies():
            if isinstance(cause, remedy.error) and (not remedy.codes or code_of(cause) in remedy.codes):
                message = remedy.message.format(
                    repo=repo,
                    hub=endpoint,
                    page=page(kind, repo, endpoint),
                    tokens=f"{endpoint}/settings/tokens",
                    error=scrubbed(cause),
                    code=code_of(cause),
                )
                return remedy.raised(message)
    return FetchError(f"{repo}: fetching failed ({scrubbed(chain[0])}); run again")


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, the innermost first: the library wraps it in less specific ones."""
    chain = [error]
    while chain[0].__cause__ is not None and chain[0].__cause__ not in chain:
        chain.insert(0, chain[0].__cause__)
    return chain


def code_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error of the hub, the number of an OSError, None for any other error."""
    response = getattr(error, "response", None)
    if response is not None:
        return int(response.status_code)
    return getattr(error, "errno", None)


def page(kind: str, repo: str, endpoint: str) -> str:
    """Return the address of a repository; `kind` is `model` or `dataset`."""
    return f"{endpoint}/datasets/{repo}" if kind == "dataset" else f"{endpoint}/{repo}"


def scrubbed(error: object) -> str:
    """Return the message of an error as one line of bounded length, without tokens, passwords and signatures."""
    from huggingface_hub import get_token

    text = " ".join(str(error).split()) or type(error).__name__
    token = get_token()
    if token:
        text = text.replace(token, "***")
    # a token that was cut no longer has the form that redact knows
    text = re.sub(r"hf_[A-Za-z0-9]{4,}", "***", redact.text(text))
    text = re.sub(r"//[^/@\s]*@", "//", text)
    # the query of a stored file's address is a signature
    text = re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", text)
    return shortened(text, _SHOWN_CHARACTERS)
