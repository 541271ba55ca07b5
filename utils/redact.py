"""Find and replace secrets: the only place that knows them.

Every writer of ours passes its output through `text` or `json_value`. `holds_secret` tells whether a name or the
content of a file has one. Two things make a secret: it is known, or it has a well-known shape. Known are the values of
secrets.env, of environment variables whose name means a secret, and the user information in addresses of the
environment; they are found in plain, percent-encoded and base64 form. The shapes are the table `_SHAPES`.
Standard library only.

Sources of the shapes: RFC 7468 10 and 11 (private keys); RFC 6750 and 7617 (Bearer, Basic); RFC 3986 3.2 (user
information of an address); AWS Signature Version 4, Google Cloud and Azure SAS (signed addresses). Those of the issued
tokens, which utils/secret_forms.txt holds for Python and the scripts: Hugging Face (hf_ and 34 letters and digits,
api_org_); GitHub "Behind GitHub's new authentication token formats"; GitLab "Token overview", table of prefixes; AWS
"IAM identifiers" (AKIA and ASIA with 16); NVIDIA NGC (nvapi-); Weights & Biases (wandb_v1_, before that 40 hex digits,
which commits have too: only behind a name); Slack "Token types" (xox, xapp-); OpenAI (sk-); Docker Hub (dckr_pat_);
PyPI (pypi-AgE); RFC 7519 (JSON Web Token, whose header begins with eyJ).
"""

from __future__ import annotations

import os
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

MARK = "***"
"""Replacement for a secret."""
SHORTEST_VALUE = 8
"""No service issues shorter secrets, and a shorter value could match ordinary text."""
SECRETS_FILE = Path(__file__).resolve().parents[1] / "secrets.env"
FORMS_FILE = Path(__file__).with_name("secret_forms.txt")
_NO_TEXT = re.compile("[\0-\x08\udc80-\udcff]")
"""Control characters, and bytes that are no UTF-8."""
_PERCENT_ENCODED = re.compile("%[0-9A-Fa-f]{2}")
_NO_VALUES = ("none", "null", "true", "false", "required", "optional", "disabled", "enabled", "undefined", "anonymous")
"""Words that are no secret, whatever the name before them."""


class _Shape(NamedTuple):
    """A shape of secrets in a line of text. Words are looked for first, which is ten times as fast as matching."""

    words: Sequence[str]
    """Lower-case words, of which each match contains one."""
    pattern: re.Pattern[str]
    replacement: str | Callable[[re.Match[str]], str] = MARK


def _issued_tokens() -> tuple[str, _Shape]:
    """Return the pattern of SECRET_NAME and the shape of all issued tokens, from the table that scripts read too."""
    variable = ""
    words: list[str] = []
    forms = []
    for line in FORMS_FILE.read_text(encoding="utf8").splitlines():
        if line.startswith("#"):
            continue
        if line.startswith("variable "):
            variable = line.split()[1]
            continue
        word, before, form, after = line.split()
        words += word.split(",")
        if before != "-":
            # the letters of an escaped character (`%3D`, `\n`) do not belong to the word behind it
            form = rf"(?:(?<![{before}])|(?<=%[0-9A-Fa-f]{{2}})|(?<=\\[nrt])){form}"
        forms.append(form if after == "-" else f"{form}(?![{after}])")
    return variable, _Shape(words, re.compile("|".join(forms)))


_VARIABLE, _TOKENS = _issued_tokens()
SECRET_NAME = re.compile(_VARIABLE, re.IGNORECASE)
"""Name of an environment variable that may hold a secret and therefore goes to no rank. It also matches harmless names,
which `is_secret_name` tells apart."""
_PRIVATE_KEY = _Shape(
    ("private key",),
    re.compile(r"-----BEGIN ((?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?)-----(?:(?s:.*?)-----END \1-----)?"),
)

# The text behind `://`. RFC 3986 allows neither `@` nor `/` in a password, and people paste such ones. So a password
# may hold them as long as it does not begin like a port (`host:80/@scope/name`) and a host follows. `git@` is no
# secret, `@sha256:` is the digest of an image, `DOMAIN\\user` is a user of a proxy. Delimiters may be percent-encoded,
# also twice.
_DELIMITER = r"%(?:25)*(?:2F|3F|23|26|40)"
_USER = rf"""(?!git@|\[|[a-z]:/)(?:[\w.-]+\\{{1,2}}(?=[\w.-]+:))?
    (?: (?:(?!{_DELIMITER})[^\s/?\#@"'<>\\])+
      | [^\s/?\#@:"'<>\\]*:(?![0-9]+[/?\#])[^\s"'<>\\]{{0,256}}? )"""
_HOST = rf"""(?!sha256:)(?:\[[0-9a-z:.%]+\](?::[0-9]+)?|[^\s/?\#@"'<>,&\\]+?)
    (?=[/?\#\s"'<>,&\\]|{_DELIMITER}(?![^\s/?\#&]*@)|$)"""
_SHAPES = (
    _TOKENS,
    _PRIVATE_KEY,
    _Shape(
        ("://", "%2f"),
        re.compile(
            rf"(?P<kept>(?::|%(?:25)*3A)(?:/|%(?:25)*2F){{2}}){_USER}(?=(?:@|%(?:25)*40){_HOST})",
            re.IGNORECASE | re.VERBOSE,
        ),
        rf"\g<kept>{MARK}",
    ),
    # the address of a proxy may have no scheme; its port tells it from other text with an @
    _Shape(
        ("@",),
        re.compile(
            r"(?<![\w.%@/:-])[\w.~-]{1,64}:(?!//)[^\s:,;\"'<>\\]{1,256}(?=@(?!sha256:)[\w.-]+:\d{2,5}(?![\w.]))"
        ),
    ),
    _Shape(
        ("authorization", "bearer"),
        re.compile(
            r"(?P<kept>authorization\\*[\"']?\s?[=:]\s?\\*[\"']?(?:bearer|basic|token)\s(?=[^\s\"'\\,;<]{4})"
            r"|\bbearer\s(?=[a-z0-9+/_.~-]{16}))[^\s\"'\\,;<]+",
            re.IGNORECASE,
        ),
        rf"\g<kept>{MARK}",
    ),
    # signed addresses, to which the hub redirects a download
    _Shape(
        ("sig", "credential", "token", "api_key"),
        re.compile(
            r"(?P<kept>(?:[?&;#]|%(?:25)*(?:3F|26|23))(?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|Signature"
            r"|sig|access_token|token|api_key|private_token)(?:=|%(?:25)*3D))[^\s&\"'\\,;<]+",
            re.IGNORECASE,
        ),
        rf"\g<kept>{MARK}",
    ),
)
"""All shapes but that of a value behind a name, for which see `_without_named`."""

_NAME_WORDS = ("token", "secret", "pass", "pw", "credential", "auth", "key")
"""One of these stands in each name that means a secret."""
_NAME = re.compile(
    r"(?<![\w.-])(?P<flag>--)?(?P<name>[A-Za-z_][\w.-]{0,96})"
    r"(?P<between>\\*[\"']?\s{0,2}[=:]\s{0,2}|(?(flag)[\"']?,?\s{1,2}|(?!)))"
)
_QUOTED = re.compile(r"(?P<quote>\\*[\"'])(?P<value>(?:\\.|[^\\\n])+?)(?P=quote)")
_WHOLE = re.compile(r"(?P<value>[^\s\"'\\<>]*[^\s\"'\\<>,;)}\]])")
_SIMPLE = r"[^\s\"'\\<>,;&(){}\[\]]"
_IN_PROSE = re.compile(rf"(?={_SIMPLE}{{0,64}}[0-9])(?={_SIMPLE}{{0,64}}[A-Za-z])(?P<value>{_SIMPLE}{{6,}})")
"""Behind `name: ` and `name = ` of a sentence only a word with letters and digits is taken for a secret."""

_HARMLESS_NAME = re.compile(
    # tokens of a text: `eos_token`, `seconds_per_token`, `tokens`, `token_stream_sha256`
    r"(?:^|_)(?:eod|eos|bos|pad|unk|sep|cls|mask|special|image|audio|added|first|next|last|each|per|max|min|num"
    r"|multi)_?token"
    r"|(?<!auth)(?<!auth_)(?<!access_)(?<!api_)tokens(?:_|$)|(?-i:token_[a-z]|Tokens?[A-Z]"
    r"|[a-z](?<!auth)(?<!access)(?<!api)token)"
    # a key that opens nothing: `sort_key`, and `key` alone
    r"|^_*keys?(?:_|$)|(?:^|_)(?!(?:api|access|private|secret|account|auth|encryption|signing|deploy|master|shared|storage|service"
    r"|ngc|wandb|openai|hf|license)_)[a-z0-9]+_+keys?(?:_|$)"
    r"|auth(?:or|ent)|(?:^|_)(?:forward|backward|single|multi)_pass$"
    # a value about a secret
    r"|_(?:file|path|dir|folder|sock|socket|home|type|method|mode|name|user|host|port|url|uri|endpoint|timeout|seconds"
    r"|enabled|disabled|required|policy|provider|scope|parallelism|ids?|count|limit|length|size|taken|embedding)$",
    re.IGNORECASE,
)
"""Names that SECRET_NAME matches, and whose values are no secrets."""
_CHOSEN_NAME = re.compile("pass|pw|secret", re.IGNORECASE)
"""People choose passwords themselves, so that they may be short."""


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return True if a variable, option or key of this name holds a secret, such as `WANDB_API_KEY` or `authToken`."""
    plain = re.sub("[.-]", "_", name)
    return SECRET_NAME.search(plain) is not None and _HARMLESS_NAME.search(plain) is None


def _may_be_secret(name: str, value: str) -> bool:
    """Return True unless a value behind the name of a secret is too short, or a word such as `none`."""
    least = 1 if _CHOSEN_NAME.search(name) else SHORTEST_VALUE
    return len(value) >= least and value.lower() not in _NO_VALUES


def text(content: str, environ: Mapping[str, str] | None = None) -> str:
    """Return `content` with MARK in place of every secret; the name before it stays.

    Known values are those of secrets.env and of `environ` (default: the environment of the process at the first call).
    """
    return _without(content, _values(environ))


def json_value(content: Any, environ: Mapping[str, str] | None = None) -> Any:
    """Return JSON data with `text` applied to every string in it, also to keys; other values are unchanged."""
    return _json_without(content, _values(environ))


def holds_secret(content: str | bytes, environ: Mapping[str, str] | None = None) -> bool:
    """Return True if `text` would change a name or the content of a file.

    A line of bytes that are no text is searched for known values, tokens and private keys only: chance does not make
    those.
    """
    values = _values(environ)
    if isinstance(content, str):
        return _without(content, values) != content
    decoded = content.decode("utf8", errors="surrogateescape")
    if _without_known(decoded, values) != decoded:
        return True
    for line in decoded.split("\n"):
        shapes = (_TOKENS, _PRIVATE_KEY) if _NO_TEXT.search(line) else _SHAPES
        if _without_shapes(line, shapes) != line:
            return True
    return False


def _without(content: str, values: Sequence[str]) -> str:
    content = _without_known(content, values)
    if "PRIVATE KEY" in content:  # of many lines; everything else is searched line by line
        content = _PRIVATE_KEY.pattern.sub(MARK, content)
    return "\n".join([_without_shapes(line, _SHAPES) for line in content.split("\n")])


def _without_known(content: str, values: Sequence[str]) -> str:
    if values and _PERCENT_ENCODED.search(content):  # first: a part of an encoded value may be a known value itself
        content = _percent_encoded(tuple(values)).sub(MARK, content)
    for value in values:
        content = content.replace(value, MARK)
    return content


def _without_shapes(line: str, shapes: Sequence[_Shape]) -> str:
    lowered = line.lower()
    for shape in shapes:
        if any(word in lowered for word in shape.words):
            line = shape.pattern.sub(shape.replacement, line)
    if shapes is _SHAPES and any(word in lowered for word in _NAME_WORDS):
        line = _without_named(line)
    return line


def _without_named(line: str) -> str:
    """Return a line without values behind names that mean a secret: `NAME=value`, `"name": "value"`, `--name value`.

    A name and its value are matched one after the other, because the value of another name may be a name itself:
    `--env HF_TOKEN=...`.
    """
    parts, place = [], 0
    for match in _NAME.finditer(line):
        if match.start() < place or not is_secret_name(match["name"]):
            continue
        is_assigned = match["flag"] or (match["name"].isupper() and match["between"] == "=")
        bare = _WHOLE if is_assigned else _IN_PROSE
        value = _QUOTED.match(line, match.end()) or bare.match(line, match.end())
        if value and _may_be_secret(match["name"], value["value"]):
            start, end = value.span("value")
            parts += [line[place:start], MARK]
            place = end
    return "".join([*parts, line[place:]])


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
    if isinstance(value, str) and is_secret_name(str(key)) and _may_be_secret(str(key), value):
        return MARK
    return _json_without(value, values)


def _values(environ: Mapping[str, str] | None) -> list[str]:
    return _of_process() if environ is None else _known(environ)


@cache
def _of_process() -> list[str]:
    """Cached, because a log has millions of lines and an environment a hundred variables."""
    return _known(os.environ)


def _known(environ: Mapping[str, str]) -> list[str]:
    """Return the values to search in every encoding, longer ones first: one may be the beginning of another."""
    given = set(_of_file())
    for name, value in environ.items():
        given.update(_secrets_of(name, value.strip()))
    forms = set()
    for secret in given | {unquote(secret) for secret in given}:
        forms.update([secret, *_in_base64(secret)])
    return sorted((form for form in forms if len(form) >= SHORTEST_VALUE), key=len, reverse=True)


def _secrets_of(name: str, value: str) -> Iterator[str]:
    """Yield the secrets in a variable: its value, or the user information of the address that it holds.

    Where the password of an address holds `@` or `/`, all that could be user information is yielded. That may be too
    much, such as a port and a folder: a text without them shows less, and no secret.
    """
    _, scheme, rest = (value if "@" in value else unquote(value)).rpartition("://")
    if "@" in rest and (scheme or _OF_ADDRESS.search(name)):
        authority = re.split("[/?#]", rest)[0]
        users = [authority.rpartition("@")[0]]
        if ":" in authority and "@sha256:" not in rest:
            users.append(rest.rpartition("@")[0])
        for user in users:
            yield user
            yield user.partition(":")[2]
    elif is_secret_name(name) and not scheme and _may_be_secret(name, value):
        yield value


_OF_ADDRESS = re.compile("prox(?:y|ies)|ur[li]|index|mirror|registry", re.IGNORECASE)
"""Word in the name of a variable whose value may be an address without a scheme."""


def _in_base64(value: str) -> Iterator[str]:
    """Yield the part of a value in any base64 text that holds it (RFC 4648)."""
    data = value.encode("utf8", "surrogateescape")
    if len(data) < SHORTEST_VALUE:
        return
    # three bytes make four characters, so that a value looks different with 0, 1 and 2 bytes in front of it; only
    # characters that hold no bit of its neighbours are searched
    for before in range(3):
        begin = -(-before * 8 // 6)
        end = (before + len(data)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            yield encode(b"\0" * before + data).decode("ascii")[begin:end]


@lru_cache(maxsize=8)
def _percent_encoded(values: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of the values with any of their characters percent-encoded, also several times."""
    patterns = []
    for value in values:
        pattern = ""
        for letter in value:
            encoded = "".join(f"%(?:25)*{byte:02X}" for byte in letter.encode("utf8", "surrogateescape"))
            pattern += f"(?:{re.escape(letter)}|(?i:{encoded}))"
        patterns.append(pattern)
    return re.compile("|".join(patterns) or "(?!)")


@cache
def _of_file() -> list[str]:
    """Return the values of secrets.env, whose grammar `shell/lib/passed.sh` checks."""
    try:
        lines = SECRETS_FILE.read_text(encoding="utf8", errors="replace").splitlines()
    except OSError:
        return []  # there is none, or it is hidden from a container
    return [line.partition("=")[2].strip() for line in lines if not line.startswith("#")]
