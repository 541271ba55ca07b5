"""The command `tprimat` of an installed wheel: the commands that read results, by their names."""

from __future__ import annotations

import importlib
import sys

from utils.arguments import VERSION, Parser, run

COMMANDS = ("compare", "validate", "history", "trace")


def main() -> int:
    """Run the command that is named first with the arguments after it; return its exit code."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        Parser(
            {"command": {"choices": COMMANDS, "help": "its help: tprimat COMMAND --help"}},
            prog="tprimat",
            description=f"Read results of the suite, version {VERSION}; training needs a checkout.",
        ).parse_args(sys.argv[1:])
    del sys.argv[1]
    command = importlib.import_module(f"evaluate.{name}")
    return run(command.main)


if __name__ == "__main__":
    sys.exit(main())
