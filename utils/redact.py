"""Find and replace secrets: the only place that knows them.

Every writer of ours passes its output through `text` or `json_value`; `holds_secret` tells whether contents or a name
hold one, for what is refused. A secret is recognised by its form (`utils/secret_forms.py`), by the name before it, and,
whatever its form, by its value: those of secrets.env, of environment variables whose name means a secret, and the user
information in addresses of the environment. Standard library only.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from utils.secret_forms import (
    MARK,
    NO_VALUES,
    OF_ADDRESS,
    SECRET_NAME,
    end_of_user,
    is_secret_name,
    is_value,
    without_forms,
    without_shapes,
)

__all__ = ["MARK", "SECRET_NAME", "holds_secret", "is_secret_name", "json_value", "text"]

SHORTEST_VALUE = 8
"""No service issues shorter secrets, and a shorter value could match ordinary text."""
SECRETS_FILE = Path(__file__).resolve().parents[1] / "secrets.env"
_NO_TEXT = re.compile("[\0-\x08\udc80-\udcff]")
"""Control characters, and bytes that are no UTF-8."""


def text(content: str, environ: Mapping[str, str] | None = None) -> str:
    """Return `content` with MARK in place of every secret; the name before it stays.

    Known values are those of secrets.env and of `environ` (default: the environment of the process at the first call).
    """
    return _without(content, _values(environ))


def json_value(content: Any, environ: Mapping[str, str] | None = None) -> Any:
    """Return JSON data with `text` applied to every string in it, also to keys; other values are unchanged."""
    return _json_without(content, _values(environ))


def holds_secret(content: str | bytes, environ: Mapping[str, str] | None = None) -> bool:
    """Return True if `text` would change a name or the content of a file; bytes that are no text hold tokens only."""
    values = _values(environ)
    if isinstance(content, str):
        return _without(content, values) != content
    told = content.decode("utf8", errors="surrogateescape")
    rules = ((without_shapes if _NO_TEXT.search(line) else without_forms, line) for line in told.split("\n"))
    if any(value in told for value in values) or any(without(line) != line for without, line in rules):
        return True
    return "%" in told and bool(values) and _percent_encoded(tuple(values)).search(told) is not None


def _without(content: str, values: Sequence[str]) -> str:
    for value in values:
        content = content.replace(value, MARK)
    if "%" in content and values:
        content = _percent_encoded(tuple(values)).sub(MARK, content)
    return without_forms(content)


def _json_without(content: Any, values: Sequence[str]) -> Any:
    if isinstance(content, str):
        return _without(content, values)
    if isinstance(content, Mapping):
        return {_json_without(key, values): _behind(key, value, values) for key, value in content.items()}
    if isinstance(content, list | tuple):
        if all(isinstance(value, (int, float)) for value in content):
            return content  # raw samples, up to a million
        return [_json_without(value, values) for value in content]
    return content


def _behind(key: Any, value: Any, values: Sequence[str]) -> Any:
    is_secret = isinstance(value, str) and is_secret_name(str(key)) and is_value(str(key), value, is_strict=True)
    return MARK if is_secret else _json_without(value, values)


def _values(environ: Mapping[str, str] | None) -> list[str]:
    return _of_process() if environ is None else _known(environ)


@cache
def _of_process() -> list[str]:
    """Cached, because a log has millions of lines and an environment a hundred variables."""
    return _known(os.environ)


def _known(environ: Mapping[str, str]) -> list[str]:
    """Return the values to search in every encoding, longer ones first: one may be the beginning of another."""
    given = {*_of_file(), *(secret for name, value in environ.items() for secret in _secrets_of(name, value.strip()))}
    forms = {form for value in given for form in (value, unquote(value), *_encoded(value), *_encoded(unquote(value)))}
    return sorted((form for form in forms if len(form) >= SHORTEST_VALUE), key=len, reverse=True)


def _secrets_of(name: str, value: str) -> Iterator[str]:
    """Yield the secrets in a variable: its value, or the user information of the address that it holds."""
    _, scheme, rest = (value if "@" in value else unquote(value)).rpartition("://")
    if "@" in rest and (scheme or re.search(OF_ADDRESS, name, re.IGNORECASE)):
        user = rest[: max(end_of_user(rest), 0)]
        yield from (user, user.partition(":")[2])
    elif is_secret_name(name) and not scheme and value.lower() not in NO_VALUES:
        yield value


def _encoded(value: str) -> Iterator[str]:
    """Yield a value percent-encoded as libraries do it, and its part of any base64 text that holds it (RFC 4648)."""
    for safe in ("", "/"):
        encoded = quote(value, safe=safe)
        yield from (encoded, re.sub("%..", lambda match: match[0].lower(), encoded))
    data = value.encode("utf8", "surrogateescape")
    for before in range(
        3 if len(data) >= SHORTEST_VALUE else 0
    ):  # bytes in front of it, up to whole groups of 3 bytes and 4 characters
        begin, end = -(-before * 8 // 6), (before + len(data)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            yield encode(b"\0" * before + data).decode("ascii")[begin:end]


@lru_cache(maxsize=8)
def _percent_encoded(values: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of the values with any of their characters percent-encoded, also several times."""
    plain = [value for value in values if value.isascii() and "%" not in value]
    ways = ("".join(f"(?:{re.escape(one)}|%(?:25)*(?i:{ord(one):02X}))" for one in value) for value in plain)
    return re.compile("|".join(ways) or "(?!)")


@cache
def _of_file() -> list[str]:
    """Return the values of secrets.env, whose grammar `shell/lib/passed.sh` checks."""
    try:
        lines = SECRETS_FILE.read_text(encoding="utf8", errors="replace").splitlines()
    except OSError:
        return []  # there is none, or it is hidden from a container
    return [line.partition("=")[2].strip() for line in lines if not line.startswith("#")]
