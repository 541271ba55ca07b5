"""Text of settings: the grammar of settings files, assignments on the command line, and typed values.

A settings file holds `KEY=VALUE`, one a line, without quotes, spaces, `$` or `export`; comments are on lines of their
own. So bash, `docker --env-file` and Python read the same values from it.

One environment variable hands the text and the origin of every setting on to the processes that a process starts. A
process that finds it does not read the settings files, so a file that is edited while a matrix runs changes nothing in
it. Settings are in command lines, results and names of folders, so one that holds a secret is refused.

With METHOD=best `config.<platform>-best.env` is the recipe for RECIPE_OF. `config.<platform>-best-<device>.env` holds
what the vendor publishes otherwise for another device. It changes MBS, TP, PP and CP only: the work stays the same
on every device, and scripts can read all other keys without knowing the GPU.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils import redact
from utils.errors import ConfigError, closest, did_you_mean, quoted
from utils.settings.keys import KEYS, Key
from utils.settings.parsers import PATH

VARIABLE = "TPRIMAT_SETTINGS"
ELSEWHERE = ("PLATFORM", "CONTAINER_ARGS", "CONTAINER_SHM_SIZE", "BASE_IMAGE", "BUILD_ARGS")
"""Names that commands take as arguments or from the environment, and that no settings file may hold."""
GONE = {"ENCODER": "encoding has one engine since this version, and the setting is gone; leave it out"}
"""Settings of earlier versions, and what became of them."""
_LINE = re.compile(r"([A-Z][A-Z0-9_]*)=(\S*)")
ARGUMENT = "argument"
"""Origin of a setting of the command line, in messages."""
_KEYS_OF_PATHS = [key for key, rule in KEYS.items() if rule.allowed.endswith(PATH[1])]
_PATH_WITH_SPACES = re.compile(rf"({'|'.join(_KEYS_OF_PATHS)})=([^\s#]+(?: +[^\s#]+)*)")


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
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise ConfigError(f"{name}: cannot be read ({reason}); `git checkout -- {name}` restores it") from error
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
    # a shell has taken the quotes off a path with spaces
    if match is None and origin == ARGUMENT:
        match = _PATH_WITH_SPACES.fullmatch(text)
    if match is None or re.search(r"[$'\"`\\]", text):
        wanted = "wanted KEY=VALUE without quotes, spaces, $ or export, comments on their own line"
        raise ConfigError(f"{origin}: got {quoted(text)}, {wanted}{_suggestion(text)}")
    key, value = match.groups()
    if key in ELSEWHERE:
        raise ConfigError(f"{origin}: {key}={value}: is no line of a settings file; give {key} to the command")
    # before the search for a near name, which would offer another setting
    if key in GONE:
        raise ConfigError(f"{origin}: {key}={value}: {GONE[key]}")
    if key not in KEYS:
        near = _near_key(key)
        advice = f"allowed: {', '.join(KEYS)}"
        if near is not None:
            advice = f"did you mean {near}?; python -m utils.configure --help lists all keys"
        raise ConfigError(f"{origin}: unknown key {key}={value}; {advice}")
    return key, Value(value, origin)


def warn_of_gone(environ: Mapping[str, str]) -> None:
    """Print a warning for each setting of earlier versions in the environment, where it may be for another program."""
    for key, why in GONE.items():
        if key in environ:
            print(f"warning: environment: {key} is ignored: {why}", file=sys.stderr)


def _near_key(got: str) -> str | None:
    """Return the key that a word is close to, also by the name that its setting has in results (micro_batch_size)."""
    names = {key: key for key in ELSEWHERE}
    for key, rule in KEYS.items():
        names[key] = names[rule.field] = key
    for key, rule in KEYS.items():
        if rule.in_results is not None:
            names[rule.in_results.key] = key
    near = closest(got, names)
    return None if near is None else names[near]


def _suggestion(text: str) -> str:
    """Return the end of a message about a line that is no assignment: the one that it may have been meant for."""
    key, equals, value = re.sub(r"^\s*(export\s+)?(-+(?=\w+\s*=))?", "", text).partition("=")
    value = re.sub(r"\s#.*$", "", value).strip().strip("'\"")
    near = _near_key(key.strip())
    if near is None or redact.text(text) != text:  # the value may be a secret
        return ""
    if not equals:
        return f"; did you mean {near}=VALUE?"
    is_plain = re.fullmatch(r"[^\s$'\"`\\]*", value) is not None
    return f"; did you mean {near}={value}?" if is_plain else ""


def from_arguments(arguments: Iterable[str]) -> dict[str, Value]:
    """Return the settings given as KEY=VALUE arguments; a later one replaces an earlier one."""
    return dict(parse_assignment(argument, ARGUMENT) for argument in arguments)


def parse_values(values: Mapping[str, Value]) -> dict[str, Any]:
    """Return the typed values by field name.

    Raises ConfigError for a bad value, a value that holds a secret, and a key that no layer sets.
    """
    typed: dict[str, Any] = {}
    for key, rule in KEYS.items():
        if key not in values:
            raise ConfigError(f"config.env: {key} is missing; wanted {rule.allowed}; add the line {key}=...")
        value = values[key]
        # before it is parsed, because the message of a bad value repeats it
        if redact.text(value.text) != value.text:
            raise ConfigError(
                f"{value.origin}: {key}: looks like a secret, which no setting may hold; see docs/secrets.md"
            )
        try:
            typed[rule.field] = rule.parse(value.text)
        except (ValueError, KeyError) as error:
            near = _near_value(value.text, rule)
            raise ConfigError(f"{value.origin}: {key}={value.text}: wanted {rule.allowed}{near}") from error
    return typed


def _near_value(text: str, rule: Key) -> str:
    """Return the end of a message about a bad value: the allowed word that its first bad part is close to."""
    known = []
    for phrase in re.split(r", or | or |, ", rule.allowed):
        # "a comma list of mega", where the first word of the list stands behind what it is
        word = phrase.rsplit(" ", 1)[-1] if "comma list" in phrase else phrase
        if re.fullmatch(r"[A-Za-z][\w-]*", word) and _is_allowed(word, rule):
            known.append(word)
    for part in text.split(","):
        if part not in known:
            return did_you_mean(part, known)
    return did_you_mean("", known)


def _is_allowed(text: str, rule: Key) -> bool:
    try:
        rule.parse(text)
    except (ValueError, KeyError):
        return False
    return True


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
        settings = json.loads(environ[VARIABLE])
        return {key: Value(str(text), str(origin)) for key, (text, origin) in settings.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{VARIABLE}: cannot be read ({error}); unset it, only this suite sets it") from error


RECIPE_OF = {"nvd": ("H100", "H200"), "amd": ("MI300X",)}
"""Devices of the platform's recipe. NVIDIA publishes none for the H200, which has the chip of the H100."""
AUTO = "auto"


def overlays(platform: str, device: str | None, root: Path, *, is_asked: bool = False) -> list[str]:
    """Return the names of the files to read, the later ones over the earlier ones; empty without a recipe.

    `device` is a short name such as B200, None for an unknown GPU. A device without a recipe gets that of RECIPE_OF.
    Raises ConfigError for such a device if a person named it (`is_asked`).
    """
    recipe = f"config.{platform}-best.env"
    if not (root / recipe).exists():
        return []
    known = devices(platform, root)
    if is_asked and device not in known:
        raise ConfigError(
            f"BEST_DEVICE={device}: no recipe for it on {platform}; there are {', '.join(known)}; or auto"
        )
    if device:
        own = f"config.{platform}-best-{device.lower()}.env"
        if (root / own).exists():
            return [recipe, own]
    return [recipe]


def devices(platform: str, root: Path) -> list[str]:
    """Return the short names of the devices of a platform that a published recipe is for."""
    start = f"config.{platform}-best-"
    own = [path.name.removeprefix(start).removesuffix(".env").upper() for path in root.glob(f"{start}*.env")]
    return [*RECIPE_OF.get(platform, ()), *sorted(own)]
