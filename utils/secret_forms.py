"""Forms of secrets in a line of text: issued tokens, addresses with a user, and values behind a name.

Only `utils/redact.py` uses this module. Every rule has words of which each of its matches contains one, because looking
for words is ten times as fast as matching. The forms of issued tokens are in secret_forms.txt. Standard library only.

Sources of the forms: Hugging Face (hf_ and 34 letters and digits, api_org_); GitHub "Behind GitHub's new authentication
token formats"; GitLab "Token overview", table of prefixes; AWS "IAM identifiers" (AKIA and ASIA with 16); NVIDIA NGC
(nvapi-); Weights & Biases (wandb_v1_, before that 40 hex digits, which commits have too: only behind a name); Slack
"Token types" (xox, xapp-); OpenAI (sk-); Docker Hub (dckr_pat_); PyPI (pypi-AgE); RFC 7519 (JSON Web Token, whose
header begins with eyJ); RFC 6750 and 7617 (Bearer, Basic); RFC 3986 3.2 (user information of an address); AWS Signature
Version 4, Google Cloud and Azure SAS (signed addresses).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path

_Rule = tuple[Sequence[str], Callable[[str], str]]
"""Lower-case words, of which each match contains one, and a function that returns a line without the matches."""
MARK = "***"
"""Replacement for a secret."""

_ESCAPE = r"(?<=%[0-9A-Fa-f]{2})|(?<=\\[nrt])"
"""The end of an encoded or escaped character, whose letters and digits do not belong to the word behind it."""
_NAMES, *_FORMS = (
    line.split()
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf8").splitlines()
    if not line.startswith("#")
)
SECRET_NAME = re.compile(_NAMES[1], re.IGNORECASE)
"""Name of an environment variable that may hold a secret."""
_SHAPES = (
    ("" if before == "-" else f"(?:(?<![{before}])|{_ESCAPE})") + form + ("" if after == "-" else f"(?![{after}])")
    for _, before, form, after in _FORMS
)
_PRIVATE_KEY = r"-----BEGIN (?P<key>(?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?)-----(?:(?s:.*?)-----END (?P=key)-----)?"
"""RFC 7468, section 10 and 11, and keys of OpenSSH and OpenPGP."""
_SHAPE = re.compile("|".join((*_SHAPES, _PRIVATE_KEY)))
_ENCODED_MARK = re.compile("%(?:25)*(5F|2D)", re.IGNORECASE)
_SHAPE_WORDS = (
    *(word for words, *_ in _FORMS for word in words.split(",")),
    *("private key", "%5f", "255f", "%2d", "252d"),
)
_BEHIND = re.compile(
    r"(?P<name>[Aa]uthorization\\*[\"']?\s?[=:]\s?\\*[\"']?(?:[Bb]earer|[Bb]asic|[Tt]oken)\s(?=[^\s\"'\\,;<]{4})"
    r"|\b[Bb]earer\s(?=[A-Za-z0-9+/_.~-]{16})"
    r"|(?:wandb login(?: --\S+)*|password)\s+(?=[0-9a-fA-F]{40}\b)"
    # of a netrc file: an entry on one line, or the last line of one
    r"|(?:\bmachine\s+\S+|\bdefault|^)\s+login\s+\S+\s+(?:account\s+\S+\s+)?password\s+|\bmachine\s+\S+\s+password\s+"
    r"|^\s*password\s+(?=[^\s:=]*[0-9])(?=[^\s:=]*[A-Za-z])(?=[^\s:=]{6,}\s*$)"
    r"|\bcurl\b.*?[\s\"'](?:-u|-U|--user|--proxy-user)[\s\"',=]*[^\s:\"']+:"
    r"|(?:[?&;#]|%(?:25)*(?:3F|26|23))(?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|Signature|sig"
    r"|access_token|token|api_key|private_token)(?:=|%(?:25)*3D)(?=[^\s&\"'\\<]))[^\s&\"'\\,;<]+",
    re.IGNORECASE,
)
_BEHIND_WORDS = (
    *("authorization", "bearer", "wandb login", "password", "sig", "credential", "token", "api_key", "curl"),
)

_ADDRESS = re.compile(r"((?::|%(?:25)*3A)(?:/|%(?:25)*2F){2})", re.IGNORECASE)
_REST = re.compile(r"(?:[^\s\"'<>\\`]|(?<=\w)'(?=\w)|\\{1,2}(?=\w+:[^\s\"'<>\\/]*@))*")
"""The part of a word that may belong to an address; `DOMAIN\\user` is a user of a proxy."""
_AUTHORITY = re.compile(r"[^/?#]*")
_CHARACTER = re.compile(r"%(?:25)*(?:3A|2F|40|3F|23)|.", re.IGNORECASE | re.DOTALL)
"""A character of an address, or one of its delimiters percent-encoded, also several times."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{32}")
_HOST = re.compile(
    r"(?:\[[0-9a-fA-F:.]+\]|(?:\d{1,3}\.){3}\d{1,3}|localhost|[\w.-]+(?=:\d{2,5}\b)|(?:[\w-]+\.)+[A-Za-z]{2,})"
    r"(?::\d{1,5})?(?![\w@-])"
)
"""The beginning of a text that is certainly a host: with a port, a dot, or as an IP address."""
OF_ADDRESS = r"(?:prox(?:y|ies)|ur[li]|index|mirror|registry)"
"""Word in a name whose value may be an address without a scheme; at most 48 characters follow."""
_BARE = re.compile(
    rf"(?P<name>(?<![\w.-])(?:[\w.-]{{0,48}}?{OF_ADDRESS}[\w-]{{0,48}}\\*[\"']?\s?[=:]\s?"
    rf"|--[\w-]{{0,48}}?{OF_ADDRESS}[\w-]{{0,48}}\s)\\*[\"']?)"
    r"(?P<rest>[^\s\"'<>\\`]*)"
    r"|(?<![\w.%@/:-])[\w.~%!$*+-]{0,1024}:[^\s@/:,;\"'<>\\]+@(?!sha256:)(?P<host>(?:\[[0-9a-fA-F:.]+\]|[\w.-]+):\d{2,5}(?![\w.]))",
    re.IGNORECASE,
)

_NAMED = re.compile(
    r"(?<![\w.])(?P<flag>--)?(?P<name>(?=[A-Za-z_])[\w.-]{0,48}?(?:token|secret|pass|pw|credential|auth|key)[\w.-]{0,48})"
    r"(?P<between>\\*[\"']?\s{0,2}[=:]\s{0,2}|(?(flag)[\"']?,?\s{1,2}|(?!)))"
    r"(?:\\+[\"'](?P<escaped>[^\"'\\]+)|\"(?P<double>(?:[^\"\\]|\\.)+)|'(?P<single>(?:[^'\\]|\\.)+)|(?P<bare>[^\s\"'\\<>]{1,1024}))",
    re.IGNORECASE,
)
_WHOLE_BARE = re.compile(r"[^\s\"'\\<>]+")
"""A value whose start tells that it is a secret, to its end. The start alone is looked at, so that a line of many names
without spaces takes no time that grows with the square of its length."""
_NAME_WORDS = ("token", "secret", "pass", "pw", "credential", "auth", "key")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_CHOSEN = ("password", "passwd", "passphrase", "passcode", "secret", "secrets")
"""Ends of words for what people choose themselves, which may be short."""
_SHORT = ("pw", "pwd", "pass")
_ISSUED = ("token", "authtoken", "accesstoken", "apitoken", "credential", "credentials", "apikey")
_KEYS = (
    *("api", "access", "private", "secret", "account", "auth", "encryption", "signing", "deploy", "master", "shared"),
    *("storage", "service", "ngc", "wandb", "openai", "hf", "license"),
)
"""Words before `key` that make it a secret."""
_NOT_BEFORE = (
    *("eod", "eos", "bos", "pad", "unk", "sep", "cls", "mask", "special", "image", "audio", "added", "next", "first"),
    *("last", "each", "per", "max", "min", "num", "moe", "a", "forward", "backward", "single", "multi"),
)
_NOT_LAST = (
    *("file", "path", "dir", "folder", "sock", "socket", "home", "type", "method", "mode", "name", "user", "host"),
    *("port", "url", "uri", "endpoint", "timeout", "seconds", "second", "enabled", "disabled", "required", "policy"),
    *(
        "provider",
        "scope",
        "parallelism",
        "id",
        "ids",
        "count",
        "limit",
        "length",
        "size",
        "taken",
        "embedding",
        "drop",
    ),
)
"""Last words of a name whose value is about a secret and is none."""
NO_VALUES = ("none", "null", "true", "false", "required", "optional", "disabled", "enabled", "undefined", "anonymous")
"""Words that are no secret, whatever the name before them."""
_BEFORE_NEXT = re.compile(r"[^,;&(){}\[\]]*")
_LETTER_AND_DIGIT = re.compile(r"(?=.*[A-Za-z])(?=.*[0-9])")
_LEAST_ISSUED = 8
_LEAST_CHOSEN = 6


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return True if a variable, option or key of this name holds a secret, such as `WANDB_API_KEY` or `authToken`."""
    words = _words(name)
    if not words or words[-1] in _NOT_LAST or words in (["pwd"], ["oldpwd"]):
        return False
    if not name.isupper() and any(word in _ISSUED for word in words[:-1]):
        words = words[-1:]  # `token_stream_sha256`; a variable may be GITLAB_TOKEN_PROD
    return any(_is_secret(before, word) for before, word in zip(["", *words], words, strict=False))


@lru_cache(maxsize=4096)
def is_chosen_name(name: str) -> bool:
    """Return True if people choose such a secret themselves (a password), so that it may be short."""
    words = _words(name)
    return any(word.endswith(_CHOSEN) or (word in _SHORT and len(words) > 1) for word in words)


def without_forms(content: str) -> str:
    """Return a text with MARK in place of everything that has the form of a secret, line by line."""
    if "PRIVATE KEY" in content:  # of many lines
        content = _SHAPE.sub(MARK, content)
    lowered = content.lower()
    rules = [(found, rule) for words, rule in _RULES if (found := [word for word in words if word in lowered])]
    if not rules:
        return content
    pairs = zip(content.split("\n"), lowered.split("\n"), strict=True)
    return "\n".join([_without_forms(line, lowered, rules) for line, lowered in pairs])


def end_of_user(rest: str) -> int:
    """Return the place of the `@` that ends the user information of the text behind `://`; -1 without any.

    RFC 3986 allows neither `@` nor `/` in a password, and people paste such ones. So behind `user:` the last `@`
    counts, unless the text before a later one is certainly a host and the text after it is none
    (`.../path/@scope/name`).
    """
    last, authority = rest.rfind("@"), _AUTHORITY.match(rest)[0]  # type: ignore[index]
    inner = authority.rfind("@")
    user, colon, start = authority.partition(":")
    if inner < 0:
        if last < 0 or not colon or user.startswith("["):
            return -1
        is_port = not start or start.isdigit()
        is_host = "." in user or user == "localhost" or not _HOST.match(rest, last + 1)
        return -1 if is_port and is_host else last
    if inner == 0 or authority[:inner] == "git" or _DIGEST.match(rest, inner + 1):
        return -1
    if ":" not in authority[:inner]:  # a name or a token alone
        return -1 if "," in user or ";" in user else inner
    return inner if _HOST.match(rest, inner + 1) and not _HOST.match(rest, last + 1) else last


def _without_forms(line: str, lowered: str, rules: Sequence[_Rule]) -> str:
    for words, rule in rules:
        if any(word in lowered for word in words):
            line = rule(line)
    return line


def _words(name: str) -> list[str]:
    words = [word.lower() for word in _WORD.findall(name)]
    while words and words[-1].isdigit():
        words.pop()
    return words


def _is_secret(before: str, word: str) -> bool:
    if word in ("key", "keys"):
        return before in _KEYS
    if word.endswith(_CHOSEN) or word == "auth":
        return True
    return before not in _NOT_BEFORE and word in (*_SHORT, *_ISSUED)


def without_shapes(line: str) -> str:
    """Return a line without issued tokens and private keys, which even bytes that are no text do not contain by chance.

    `_` and `-` may be percent-encoded; all of them in a line with such a token are then decoded.
    """
    found = _SHAPE.sub(MARK, line)
    if "%" not in found:
        return found
    decoded = _ENCODED_MARK.sub(lambda match: "_" if match[1].upper() == "5F" else "-", found)
    without = _SHAPE.sub(MARK, decoded)
    return found if without == decoded else without


def _without_users(line: str) -> str:
    """Return a line without the user information of addresses, also of percent-encoded ones."""
    parts = _ADDRESS.split(line)
    for place in range(2, len(parts), 2):
        word = _REST.match(parts[place])[0]  # type: ignore[index]
        if "%" in parts[place - 1]:
            word = word.partition("&")[0]
        parts[place] = _without_user(word) + parts[place][len(word) :]
    return "".join(parts)


def _without_user(rest: str) -> str:
    """Return the text behind `://` without its user information; delimiters may be percent-encoded."""
    end = end_of_user(rest)
    if end >= 0:
        return MARK + rest[end:]
    characters = _CHARACTER.findall(rest)
    end = end_of_user("".join(one if len(one) == 1 else chr(int(one[-2:], 16)) for one in characters))
    return MARK + "".join(characters[end:]) if end >= 0 else rest


def _without_bare_user(match: re.Match[str]) -> str:
    """Return a match of `user:password@` that has no scheme, without it: in values for proxies, before host:port."""
    if match["host"]:
        return f"{MARK}@{match['host']}"
    rest = match["rest"] if _ADDRESS.search(match["rest"]) else _without_user(match["rest"])
    return match["name"] + rest


def _without_named(line: str) -> str:
    kept, place = [], 0
    while match := _NAMED.search(line, place):
        kind = str(match.lastgroup)
        start, end = match.span(kind)
        is_strict = kind != "bare" or bool(match["flag"]) or (match["name"].isupper() and match["between"] == "=")
        if kind == "bare":
            end = start + _end_of_bare(match[kind], is_strict=is_strict)
        if is_secret_name(match["name"]) and is_value(match["name"], line[start:end], is_strict=is_strict):
            if kind == "bare":
                end = start + _end_of_bare(_WHOLE_BARE.match(line, start)[0], is_strict=is_strict)  # type: ignore[index]
            kept += [line[place:start], MARK]
            place = end
        else:  # a value may begin with another name
            kept.append(line[place:start])
            place = start
    return "".join([*kept, line[place:]])


def _end_of_bare(word: str, *, is_strict: bool) -> int:
    """Return the length of the value at the start of a word without quotes."""
    return len(word.rstrip(",;)}]") if is_strict else _BEFORE_NEXT.match(word)[0])  # type: ignore[index]


def is_value(name: str, value: str, *, is_strict: bool) -> bool:
    """Return True for a text behind the name of a secret that may be one.

    Behind `NAME=`, `--name` and in quotes (strict) that is almost everything, else a word with letters and digits.
    """
    if value.lower() in NO_VALUES or (name.lower() == "pass" and not is_strict):
        return False
    if is_strict:
        return len(value) >= (1 if is_chosen_name(name) else _LEAST_ISSUED)
    least = _LEAST_CHOSEN if is_chosen_name(name) else _LEAST_ISSUED
    return len(value) >= least and _LETTER_AND_DIGIT.match(value) is not None


_RULES: tuple[_Rule, ...] = (
    (("://", "%2f", "%252f"), _without_users),
    (_SHAPE_WORDS, without_shapes),
    (_BEHIND_WORDS, partial(_BEHIND.sub, rf"\g<name>{MARK}")),
    (("@", "%40", "%2540"), partial(_BARE.sub, _without_bare_user)),
    (_NAME_WORDS, _without_named),
)
