"""Check the settings and print them, or the part that a script needs.

    python -m utils.configure --platform cpu [--jobs | --get FIELD] [KEY=VALUE ...]

`--help` lists every setting with its meaning and the values it may take. Exits 0, or 2 for bad settings.

`--check` is for scripts: it checks what was typed after the name of one, before anything is installed, prepared or
started. The help of a script is its header, or the docstring of the module that the header names; the options in its
`Usage:` lines are the ones that it has.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from utils.arguments import Parser, no_option, refusing, run
from utils.errors import ConfigError, closest
from utils.hardware.detect import HardwareError, visible_device, visible_gpus
from utils.results.performance import RunsRule
from utils.results.store import result_name
from utils.settings.config import PLATFORMS, ROOT, RunConfig, load, require_writable, values_of
from utils.settings.keys import KEYS
from utils.settings.layers import ELSEWHERE, parse_values, warn_of_gone

METHODS = {"jobs", "spec", "asked"}
"""Public names of RunConfig that are not values."""


@refusing((ConfigError, HardwareError), (OSError,), interrupted="")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    table = "\n".join(f"  {key:18} {rule.meaning} [{rule.allowed}]" for key, rule in KEYS.items())
    # derived values are properties: `--get results_dir` works like `--get mbs`
    names = RunConfig.__annotations__.keys() | vars(RunConfig).keys()  # fields and properties
    fields = sorted(name for name in names - METHODS if not name.startswith("_"))
    parser = Parser(
        {
            "--platform": {"required": True, "choices": PLATFORMS},
            "--visible-gpus": {"type": int, "help": "GPUs of this machine (default: ask torch)"},
            "--jobs": {
                "action": "store_true",
                "help": "print `framework model run result`, one line for each job (RUNS=auto: for each that runs in "
                "any case); checks that results can be written",
            },
            "--get": {
                "metavar": "FIELD",
                "choices": fields,
                "help": "print one field of RunConfig, e.g. output_dir",
            },
            "--check": {
                "type": Path,
                "metavar": "SCRIPT",
                "help": "check only that this script takes the arguments after `--`, and that each value by itself is "
                "allowed",
            },
            "settings": {"nargs": "*", "metavar": "KEY=VALUE"},
        },
        prog="python -m utils.configure",
        description="Check the settings and print them, or the jobs they select.",
        epilog=f"settings:\n{table}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options = parser.parse_args(argv)
    if options.check:
        check(options.check, options.settings, options.platform)
        return 0
    # a plan for other machines (--visible-gpus) asks nothing of this one
    visible = options.visible_gpus or visible_gpus(options.platform)
    device = None if options.visible_gpus else visible_device(options.platform)
    config = load(options.platform, visible, arguments=options.settings, device=device)
    if options.jobs:
        require_writable(config.results_dir, "OUTPUT_DIR")
        # in order; of RUNS=auto the least
        for framework, model, number in config.jobs(RunsRule.of(config.runs).least):
            path = config.results_dir / result_name(config.platform, framework, model, number)
            print(framework, model, number, path)
    elif options.get:
        print(getattr(config, options.get))
    else:
        for field in config.__dataclass_fields__:
            print(f"{field}={getattr(config, field)}")
    return 0


ALMOST = 0.8
"""Least similarity of a variable to a setting that makes it a slip, for scripts that also take other variables."""


def check(script: Path, arguments: Sequence[str], platform: str) -> None:
    """Raise ConfigError for the first argument that a script does not take.

    A script that reads config.env takes its options and settings only, and the value of each setting is checked. Other
    scripts say themselves what they take; here only what is almost an option or a setting is refused.
    """
    help_text = re.split(r"(?m)^(?!#)", script.read_text(encoding="utf8"), maxsplit=1)[0]
    module = re.search(r" Help: (\S+)$", help_text, re.MULTILINE)
    if module:
        help_text = (ROOT / module[1]).read_text(encoding="utf8").split('"""')[1]
    options = ["--help", "-h"]
    usage = re.search(r"^(?:# )?Usage:(.*?)^(?:# )?Reads:", help_text, re.DOTALL | re.MULTILINE)
    if usage:
        options += re.findall(r"(?<![\w-])--[a-z][a-z-]*", usage[1])
    settings = [argument for argument in arguments if argument not in options]
    if "config.env" not in help_text:
        _refuse_almost_known(script.name, settings, options)
        return
    warn_of_gone(os.environ)
    for argument in settings:
        if argument.startswith("-"):
            raise ConfigError(f"{script.name}: {no_option(argument, options, KEYS)}; see --help")
    if "VALUE,VALUE" in help_text:  # the first value of each setting; train.sweep checks the others
        settings = [re.sub(r"(?s)(=[^,]*),.*", r"\1", setting) for setting in settings]
    parse_values(values_of(platform, settings))


def _refuse_almost_known(script: str, arguments: Sequence[str], options: Sequence[str]) -> None:
    for argument in arguments:
        name = argument.split("=", 1)[0]
        near = closest(name, (*KEYS, *ELSEWHERE, *options), ALMOST)
        if near is not None and near != name:
            meant = argument.replace(name, near, 1)
            raise ConfigError(f"{script}: got {argument}; did you mean {meant}?; see --help")


if __name__ == "__main__":
    sys.exit(run(main))
