"""Check of what was typed after the name of a script, before anything is installed, prepared or started.

The help of a script is its header, or the docstring of the module that the header names; the options in its `Usage:`
lines are the ones that it has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from utils.arguments import no_option
from utils.errors import ConfigError
from utils.settings.config import ROOT, values_of
from utils.settings.keys import KEYS
from utils.settings.layers import ELSEWHERE, parse_values
from utils.suggestions import closest

ALMOST = 0.8
"""Least similarity of a variable to a setting that makes it a slip, for scripts that also take other variables."""


def check(script: Path, arguments: Sequence[str], platform: str) -> None:
    """Raise ConfigError for the first argument that a script does not take.

    A script that reads config.env takes its options and settings only, and the value of each setting is checked. Other
    scripts say themselves what they take; here only what is almost an option or a setting is refused.
    """
    text = re.split(r"(?m)^(?!#)", script.read_text(encoding="utf8"), maxsplit=1)[0]
    if module := re.search(r" Help: (\S+)$", text, re.MULTILINE):
        text = (ROOT / module[1]).read_text(encoding="utf8").split('"""')[1]
    usage = re.search(r"^(?:# )?Usage:(.*?)^(?:# )?Reads:", text, re.DOTALL | re.MULTILINE)
    options = ["--help", "-h", *re.findall(r"(?<![\w-])--[a-z][a-z-]*", usage[1] if usage else "")]
    settings = [argument for argument in arguments if argument not in options]
    if "config.env" in text:
        for argument in settings:
            if argument.startswith("-"):
                raise ConfigError(f"{script.name}: {no_option(argument, options, KEYS)}; see --help")
        is_sweep = "VALUE,VALUE" in text  # train.sweep checks the other values of a setting
        parse_values(
            values_of(platform, [re.sub(r"(?s)(=[^,]*),.*", r"\1", one) for one in settings] if is_sweep else settings)
        )
    else:
        for argument in settings:
            name = argument.split("=", 1)[0]
            near = closest(name, (*KEYS, *ELSEWHERE, *options), ALMOST)
            if near is not None and near != name:
                meant = argument.replace(name, near, 1)
                raise ConfigError(f"{script.name}: got {argument}; did you mean {meant}?; see --help")
