"""The command `tprimat` of an installed wheel: the commands that read results, by their names."""

from __future__ import annotations

import importlib
import sys

from utils.arguments import VERSION, Parser, run

COMMANDS = ("compare", "validate", "history", "trace")


def main() -> int:
    """Run the command that is named first with the arguments after it; return its exit code."""
    parser = Parser(
        {"command": {"choices": COMMANDS, "help": "its help: tprimat COMMAND --help"}},
        prog="tprimat",
        description=f"Read results of the suite, version {VERSION}; training needs a checkout.",
    )
    command = importlib.import_module(f"evaluate.{parser.parse_args(sys.argv[1:2]).command}")
    del sys.argv[1]
    return run(command.main)


if __name__ == "__main__":
    sys.exit(main())
