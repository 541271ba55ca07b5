"""Find and replace secrets: the only place that knows their shapes.

Every writer of ours passes its output through `text` or `json_value`; the archive refuses files that `holds_secret`
finds. A secret is recognised by a published prefix or by the name before it; values of SECRET_VARIABLES are recognised
whatever their shape. Standard library only.

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
"""Replacement for a secret."""
SECRET_VARIABLES = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN"),
    *("WANDB_API_KEY", "NGC_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN", "GH_TOKEN"),
)
"""Environment variables whose value is a secret, whatever its shape."""
HUB_VARIABLES = SECRET_VARIABLES[:3]
SHORTEST_VALUE = 8
"""No service issues shorter secrets, and a shorter value could match ordinary text."""

_VALUE = r"[A-Za-z0-9+/_.~-]"
_SHAPES = (
    # minimum lengths are shorter than issued, because the end of a line may cut a secret off
    r"(?:hf_|api_org_)[A-Za-z0-9]{20,}",
    r"gh[pousr]_[A-Za-z0-9]{20,}",
    r"github_pat_[A-Za-z0-9_]{20,}",
    r"nvapi-[A-Za-z0-9_-]{20,}",
    r"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
)
_BEHIND = (
    # only the value after the name is replaced; a secret contains no quote, backslash or space
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
"""Every match of the pattern contains one of these, which are found ten times as fast."""
_SHAPES_IN_BYTES = re.compile("|".join(_SHAPES).encode())
_WORDS_IN_BYTES = tuple(word.encode() for word in _WORDS_OF_SHAPES)


def text(content: str, environ: Mapping[str, str] | None = None) -> str:
    """Return `content` with MARK in place of every secret; the name before it stays.

    SECRET_VARIABLES are looked up in `environ` (default: that of the process).
    """
    return _without(content, _values(environ))


def json_value(content: Any, environ: Mapping[str, str] | None = None) -> Any:
    """Return JSON data with `text` applied to every string in it, also to keys; other values are unchanged."""
    return _json_without(content, _values(environ))


def holds_secret(content: bytes, environ: Mapping[str, str]) -> bool:
    """Return True if bytes hold a secret by its shape alone, or the value of one of SECRET_VARIABLES."""
    if any(value.encode() in content for value in _values(environ)):
        return True
    return any(word in content for word in _WORDS_IN_BYTES) and _SHAPES_IN_BYTES.search(content) is not None


def without_hub_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for processes that do not need access to the hub."""
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
            return content  # raw samples, up to a million
        return [_json_without(value, values) for value in content]
    return content


def _values(environ: Mapping[str, str] | None) -> list[str]:
    """Return the values to search, longer ones first: one may be the beginning of another."""
    environ = os.environ if environ is None else environ
    given = {environ.get(name, "").strip() for name in SECRET_VARIABLES}
    return sorted((value for value in given if len(value) >= SHORTEST_VALUE), key=len, reverse=True)


def _marked(match: re.Match[str]) -> str:
    if match["scheme"]:
        return f"{match['scheme']}{MARK}@"
    return f"{match['name'] or ''}{MARK}"
