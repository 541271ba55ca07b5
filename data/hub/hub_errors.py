"""Errors of huggingface_hub as one line with a remedy, and without any token."""

from __future__ import annotations

import errno
import os
import re
from typing import NamedTuple

from utils import redact
from utils.errors import UnusableError, shortened

_SHOWN_CHARACTERS = 400
_CUT_SHORT = "Consistency check failed"
"""Text of the library's OSError for a file that is shorter than announced."""


class SourceError(UnusableError):
    """A repository or file that is not available under its name; another one may be."""


class FetchError(RuntimeError):
    """A failed transfer, because of the network, the hub or the disk. The same command may succeed later."""


class Fault(NamedTuple):
    """A row of the table of faults: the first one that matches an error gives the error to raise instead."""

    error: type[Exception]
    """Class of the library."""
    codes: tuple[object, ...]
    """HTTP statuses, or numbers or the text of an OSError; empty for all."""
    raised: type[SourceError | FetchError]
    is_temporary: bool
    """True if another attempt may succeed."""
    message: str
    """Its fields are those of `_facts`."""
    with_token: str = ""
    """Message where a token is set; empty for the same."""


def _faults() -> tuple[Fault, ...]:
    import httpx2
    from huggingface_hub import errors

    http = errors.HfHubHTTPError
    return (
        Fault(
            *(errors.GatedRepoError, (), SourceError, False),
            "{repo}: gated; ask for access at {page} and set HF_TOKEN to a token of your account ({tokens})",
            "{repo}: gated, and the account of HF_TOKEN has no access; ask for it at {page}",
        ),
        Fault(
            *(errors.RepositoryNotFoundError, (), SourceError, False),
            "{repo}: no such repository at {hub}; check the name (if it is private, set HF_TOKEN)",
            "{repo}: no such repository at {hub}; check the name (is it private? HF_TOKEN may have no access to it)",
        ),
        Fault(
            *(errors.RevisionNotFoundError, (), SourceError, False),
            "{repo}: no such revision; name a branch, tag or commit that it has",
        ),
        Fault(
            *(errors.RemoteEntryNotFoundError, (), SourceError, False),
            "{repo}: no such file: {file}; name another revision or repository",
        ),
        Fault(
            *(errors.HFValidationError, (), SourceError, False),
            "{repo}: not a valid repository name, wanted owner/name",
        ),
        Fault(
            *(errors.FileMetadataError, (), SourceError, False),
            "{hub}: does not answer like a hub; check HF_ENDPOINT, firewall and proxy",
        ),
        Fault(
            *(errors.OfflineModeIsEnabled, (), SourceError, False),
            "{repo}: HF_HUB_OFFLINE is set and a needed file is not in the cache; unset it, or prepare the data on a "
            "machine with a network and copy DATA_DIR",
        ),
        Fault(
            *(http, (401, 403), SourceError, False),
            "{repo}: {hub} refuses access (status {code}); set HF_TOKEN",
            "{repo}: {hub} refuses HF_TOKEN (status {code}); it is wrong, revoked or without read access: create "
            "another at {tokens}",
        ),
        Fault(
            *(http, (429,), FetchError, False),
            "{hub}: answers 429, too many requests, for {repo}; run again later, or set HF_TOKEN, which has a higher "
            "limit",
            "{hub}: answers 429, too many requests, for {repo}; run again later",
        ),
        Fault(
            *(http, (408, 500, 502, 503, 504), FetchError, True),
            "{hub}: answers {code} for {repo}, a fault of the server; run again later",
        ),
        Fault(*(http, (), FetchError, False), "{repo}: {hub} answers with status {code} ({error}); run again"),
        Fault(
            *(httpx2.TimeoutException, (), FetchError, True),
            "{hub}: does not answer in time; check network and proxy, run again",
        ),
        Fault(
            *(httpx2.ConnectError, (), FetchError, True),
            "{hub}: cannot be reached ({error}); check network, proxy, HF_ENDPOINT",
        ),
        Fault(*(httpx2.TransportError, (), FetchError, True), "{repo}: the transfer broke ({error}); run again"),
        Fault(
            *(OSError, (errno.ENOSPC, errno.EDQUOT), FetchError, False),
            "{path}: the disk is full; free space, or move the cache with HF_HOME",
        ),
        Fault(
            *(OSError, (errno.EACCES, errno.EROFS, errno.EPERM), SourceError, False),
            "{path}: cannot be written ({reason}); move the cache with HF_HOME",
        ),
        Fault(
            *(OSError, (_CUT_SHORT,), FetchError, True),
            "{repo}: the transfer broke, a file is shorter than announced; run again",
        ),
    )


def explain(error: Exception, repo: str, kind: str, endpoint: str) -> tuple[SourceError | FetchError, bool]:
    """Return the error to raise instead of the library's, and True if another attempt may succeed."""
    causes = _chain(error)
    for cause in causes:
        facts = _facts(cause, repo, kind, endpoint)
        for fault in _faults():
            if isinstance(cause, fault.error) and (not fault.codes or facts["code"] in fault.codes):
                message = (_secrets() and fault.with_token) or fault.message
                return fault.raised(message.format(**facts)), fault.is_temporary
    return FetchError(f"{repo}: fetching failed ({scrubbed(causes[0])}); run again"), True


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and its causes, the innermost first; the library wraps it in less specific ones."""
    chain = [error]
    while (inner := chain[-1].__cause__) is not None and inner not in chain:
        chain.append(inner)
    return chain[::-1]


def _facts(error: BaseException, repo: str, kind: str, endpoint: str) -> dict[str, object]:
    """Return the fields of a message; `code` is also what the codes of a fault are compared with."""
    response = getattr(error, "response", None)
    number = getattr(error, "errno", None) if response is None else response.status_code
    return {
        "repo": repo,
        "hub": endpoint,
        "page": page(kind, repo, endpoint),
        "tokens": f"{endpoint}/settings/tokens",
        "error": scrubbed(error),
        "code": _CUT_SHORT if _CUT_SHORT in str(error) else number,
        "file": str(getattr(response, "url", "")).partition("/resolve/")[2].partition("/")[2] or "the file",
        "path": getattr(error, "filename", None) or "the cache",
        "reason": getattr(error, "strerror", None),
    }


def page(kind: str, repo: str, endpoint: str) -> str:
    """Return the address of a repository; `kind` is `model` or `dataset`."""
    return f"{endpoint}/{'datasets/' if kind == 'dataset' else ''}{repo}"


def scrubbed(error: object) -> str:
    """Return the message of an error as one line of bounded length, without tokens, passwords and signatures."""
    text = " ".join(str(error).split()) or type(error).__name__
    for secret in _secrets():
        text = text.replace(secret, "***")
    text = re.sub(r"hf_[A-Za-z0-9]{4,}", "***", redact.text(text))  # also a cut token
    text = re.sub(r"//[^/@\s]*@", "//", text)
    text = re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", text)  # the query of a stored file's address is a signature
    return shortened(text, _SHOWN_CHARACTERS)


def _secrets() -> list[str]:
    from huggingface_hub import get_token

    given = {os.environ.get(name, "").strip() for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")} | {get_token() or ""}
    return sorted(given - {""}, key=len, reverse=True)
