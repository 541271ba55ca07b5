"""Text of settings: the grammar of settings files, assignments on the command line, and typed values.

A settings file holds `KEY=VALUE`, one a line, without quotes, spaces, `$` or `export`; comments are on lines of their
own. So bash, `docker --env-file` and Python read the same values from it.

One environment variable hands the text and the origin of every setting on to the processes that a process starts. A
process that finds it does not read the settings files, so a file that is edited while a matrix runs changes nothing in
it. Settings are in command lines, results and names of folders, so one that holds a secret is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils import redact
from utils.errors import ConfigError
from utils.settings.keys import KEYS

VARIABLE = "TPRIMAT_SETTINGS"
_LINE = re.compile(r"([A-Z][A-Z0-9_]*)=(\S*)")


@dataclass(frozen=True)
class Value:
    """The text of one setting and its origin: `config.env:12`, `environment` or `argument`."""

    text: str
    origin: str


def read_file(path: Path, name: str) -> dict[str, Value]:
    """Return the values of a settings file; `name` is its name in messages.

    Raises ConfigError for a line outside the grammar, an unknown key, a repeated key and an unreadable file.
    """
    try:
        lines = path.read_text(encoding="utf8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot be read: {error}") from error
    values: dict[str, Value] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        key, value = parse_assignment(line, f"{name}:{number}")
        if key in values:
            raise ConfigError(f"{name}:{number}: {key} is already set in {values[key].origin}; keep one of the two")
        values[key] = value
    return values


def parse_assignment(text: str, origin: str) -> tuple[str, Value]:
    """Return key and value of one `KEY=VALUE`; raise ConfigError for another form or an unknown key."""
    match = _LINE.fullmatch(text)
    if match is None or re.search(r"[$'\"`\\]", text):
        raise ConfigError(
            f"{origin}: got {text!r}, wanted KEY=VALUE without quotes, spaces, $ or export, comments on their own line"
        )
    key, value = match.groups()
    if key not in KEYS:
        raise ConfigError(f"{origin}: unknown key {key}={value}; allowed: {', '.join(KEYS)}")
    return key, Value(value, origin)


def from_environment(environ: Mapping[str, str]) -> dict[str, Value]:
    """Return the settings that the environment overrides."""
    return {key: Value(environ[key], "environment") for key in KEYS if key in environ}


def from_arguments(arguments: Iterable[str]) -> dict[str, Value]:
    """Return the settings given as KEY=VALUE arguments; a later one replaces an earlier one."""
    return dict(parse_assignment(argument, "argument") for argument in arguments)


def parse_values(values: Mapping[str, Value]) -> dict[str, Any]:
    """Return the typed values by field name.

    Raises ConfigError for a bad value, a value that holds a secret, and a key that no layer sets.
    """
    typed: dict[str, Any] = {}
    for key, rule in KEYS.items():
        if key not in values:
            raise ConfigError(f"config.env: {key} is missing; wanted {rule.allowed}; add the line {key}=...")
        value = values[key]
        if redact.text(value.text) != value.text:
            raise ConfigError(
                f"{value.origin}: {key}: looks like a secret, which no setting may hold; see docs/secrets.md"
            )
        try:
            typed[rule.field] = rule.parse(value.text)
        except (ValueError, KeyError) as error:
            raise ConfigError(f"{value.origin}: {key}={value.text}: wanted {rule.allowed}") from error
    return typed


def variable(values: Mapping[str, Value]) -> dict[str, str]:
    """Return the environment variable that hands `values` on, by its name."""
    return {VARIABLE: json.dumps({key: [value.text, value.origin] for key, value in values.items()})}


def received(environ: Mapping[str, str]) -> dict[str, Value] | None:
    """Return the settings that the parent process handed on, None where there are none.

    Raises ConfigError for a variable that `variable` did not write.
    """
    if VARIABLE not in environ:
        return None
    try:
        return {
            str(key): Value(str(text), str(origin)) for key, (text, origin) in json.loads(environ[VARIABLE]).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{VARIABLE}: cannot be read ({error}); unset it, only this suite sets it") from error
