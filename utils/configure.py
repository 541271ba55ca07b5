"""Check the settings and print them, or the part that a script needs.

    python -m utils.configure --platform cpu [--jobs | --get FIELD] [KEY=VALUE ...]

`--help` lists every setting with its meaning and the values it may take. Exits 0, or 2 for bad settings.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from utils.arguments import Parser, exit_code, run
from utils.errors import ConfigError
from utils.hardware.detect import HardwareError, visible_device, visible_gpus
from utils.results.precision import RunsRule
from utils.results.store import result_name
from utils.settings.config import PLATFORMS, RunConfig, load, require_writable
from utils.settings.keys import KEYS
from utils.settings.typed import check

METHODS = {"jobs", "spec", "asked"}
"""Public names of RunConfig that are not values."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    table = "\n".join(f"  {key:18} {rule.meaning} [{rule.allowed}]" for key, rule in KEYS.items())
    fields = {name for name in (*RunConfig.__annotations__, *vars(RunConfig)) if not name.startswith("_")} - METHODS
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
                "choices": sorted(fields),
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

    def work() -> None:
        if options.check:
            check(options.check, options.settings, options.platform)
            return
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

    return exit_code(work, (ConfigError, HardwareError))


if __name__ == "__main__":
    sys.exit(run(main))
