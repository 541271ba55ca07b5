"""What looks like a secret, found and taken out: the one place that knows the shapes.

Every writer of ours puts what it writes through `text` or `json_value`; the archive refuses what `holds_secret`. A
shape is known where its letters alone tell it (published prefixes), or where the name before it does; the values of
SECRET_VARIABLES are known whatever they look like. Standard library only.

Sources of the shapes: Hugging Face (hf_ and 34 letters and digits, api_org_), GitHub "Behind GitHub's new
authentication token formats" (ghp_ and others with 36, github_pat_), AWS "IAM identifiers" (AKIA and ASIA with 16),
NVIDIA NGC (nvapi-), Weights & Biases (40 hex digits, which commits have too: only behind its name), RFC 6750 (Bearer),
RFC 3986 3.2.1 (user:password@ in an address), AWS Signature Version 4 and Azure SAS (signed addresses).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

MARK = "***"
"""What stands in place of a secret."""
SECRET_VARIABLES = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN"),
    *("WANDB_API_KEY", "NGC_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN", "GH_TOKEN"),
)
"""Environment variables whose value is a secret, whatever its form."""
HUB_VARIABLES = SECRET_VARIABLES[:3]
SHORTEST_VALUE = 8
"""A shorter value of such a variable is no secret of any service, and would be found everywhere."""

_VALUE = r"[A-Za-z0-9+/_.~-]"
_SHAPES = (
    # those that may be cut off by the end of a line: shorter than they are issued
    r"(?:hf_|api_org_)[A-Za-z0-9]{20,}",
    r"gh[pousr]_[A-Za-z0-9]{20,}",
    r"github_pat_[A-Za-z0-9_]{20,}",
    r"nvapi-[A-Za-z0-9_-]{20,}",
    r"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
)
_BEHIND = (
    # only what stands behind the name is taken out; a secret never reaches over a quote, a backslash or a space
    rf"(?:{'|'.join(SECRET_VARIABLES)})[\"']?\s?[=:]\s?[\"']?(?={_VALUE}{{16}})",
    r"[Aa]uthorization[\"']?\s?[=:]\s?[\"']?(?:[Bb]earer|[Bb]asic|[Tt]oken)\s(?=[^\s\"'\\,;<]{4})",
    rf"\b[Bb]earer\s(?={_VALUE}{{16}})",
    r"[?&](?:X-Amz-(?:Signature|Credential|Security-Token)|Signature|sig|access_token|token|api_key)=(?=[^\s&\"'\\<])",
)
_ADDRESS = r"(?P<scheme>://)[^\s/?#@:\"'\\<]*:[^\s/?#@\"'\\<]+@"
_PATTERN = rf"(?P<whole>{'|'.join(_SHAPES)})|(?P<name>{'|'.join(_BEHIND)})[^\s&\"'\\,;<]+|{_ADDRESS}"
_TEXT = re.compile(_PATTERN)
_WORDS_OF_SHAPES = ("hf_", "api_org_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "nvapi-", "AKIA", "ASIA")
_WORDS = (
    *_WORDS_OF_SHAPES,
    *("TOKEN", "_KEY", "uthorization", "earer", "://", "oken=", "ignature=", "redential=", "sig=", "api_key="),
)
"""One of these stands in everything that the pattern finds, and is found ten times as fast."""
_SHAPES_IN_BYTES = re.compile("|".join(_SHAPES).encode())
_WORDS_IN_BYTES = tuple(word.encode() for word in _WORDS_OF_SHAPES)


def text(content: str, environ: Mapping[str, str] | None = None) -> str:
    """Return `content` with MARK in place of every secret; the name before it stays.

    `environ` (default: the process's own) is where SECRET_VARIABLES are looked up.
    """
    return _without(content, _values(environ))


def json_value(content: Any, environ: Mapping[str, str] | None = None) -> Any:
    """Return JSON data with every string in it, keys too, put through `text`; all else stays what it is."""
    return _json_without(content, _values(environ))


def holds_secret(content: bytes, environ: Mapping[str, str]) -> bool:
    """Tell whether bytes hold a secret by its shape alone, or the value of one of SECRET_VARIABLES."""
    if any(value.encode() in content for value in _values(environ)):
        return True
    return any(word in content for word in _WORDS_IN_BYTES) and _SHAPES_IN_BYTES.search(content) is not None


def without_hub_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for processes that have no business with the hub."""
    return {name: value for name, value in environ.items() if name not in HUB_VARIABLES}


def _without(content: str, values: Sequence[str]) -> str:
    for value in values:
        content = content.replace(value, MARK)
    if not any(word in content for word in _WORDS):
        return content
    return _TEXT.sub(_marked, content)


def _json_without(content: Any, values: Sequence[str]) -> Any:
    if isinstance(content, str):
        return _without(content, values)
    if isinstance(content, Mapping):
        return {_json_without(key, values): _json_without(value, values) for key, value in content.items()}
    if isinstance(content, list | tuple):
        if all(isinstance(value, (int, float)) for value in content):
            return content  # samples, of which there can be a million
        return [_json_without(value, values) for value in content]
    return content


def _values(environ: Mapping[str, str] | None) -> list[str]:
    """The values to look for, a longer one first: one may be the beginning of another."""
    environ = os.environ if environ is None else environ
    given = {environ.get(name, "").strip() for name in SECRET_VARIABLES}
    return sorted((value for value in given if len(value) >= SHORTEST_VALUE), key=len, reverse=True)


def _marked(match: re.Match[str]) -> str:
    if match["scheme"]:
        return f"{match['scheme']}{MARK}@"
    return f"{match['name'] or ''}{MARK}"
