"""Command lines of this suite. Standard library only."""

from __future__ import annotations

import argparse
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from utils.redact import holds_secret, text

REFUSAL = "looks like a secret, which no argument may hold; see docs/secrets.md"


def run(main: Callable[[], int]) -> int:
    """Run the `main` of a command and return its exit code.

    Characters that the terminal cannot show are printed as escapes. A reader that closes the pipe (`| head`) and Ctrl-C
    end the command without a traceback, with the exit codes of a shell: 141 and 130.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return code


class Parser(argparse.ArgumentParser):
    """Parser that refuses an argument with a secret in it, before anything is made, and repeats no secret.

    File names and settings stand in results, archives and lists of processes.
    """

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse the command line; exit 2 with one line for an argument that holds a secret."""
        arguments = sys.argv[1:] if args is None else list(args)
        for before, argument in zip(["", *arguments], arguments, strict=False):
            if holds_secret(argument):
                self.exit(2, f"error: {_place(before, argument)}: {REFUSAL}\n")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> Any:
        """Print usage and message without secrets, and exit 2."""
        super().error(text(message))


def _place(before: str, argument: str) -> str:
    """Return the name of the setting or the option that an argument belongs to."""
    named = re.match(r"(--[a-z][a-z-]*|[A-Z][A-Z0-9_]*)=", argument)
    if named and not holds_secret(named[1]):
        return named[1]
    return before if before.startswith("--") else "argument"
