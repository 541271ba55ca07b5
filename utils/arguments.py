"""Command lines of this suite. Standard library only."""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from utils.errors import did_you_mean, in_one_line
from utils.redact import holds_secret, text

VERSION = "0.1.0"
"""Of the suite. shell/lib/environment.sh, pyproject.toml and every result take it from here."""
SETTINGS = Path(__file__).parents[1] / "config.env"
"""File of all settings, whose names an error may suggest."""
SETTING = "KEY=VALUE"
"""`metavar` of the settings of a command."""
BAD_PATH = (
    errno.ENOENT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,
)
"""Reasons for which another path helps."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSAL = "looks like a secret, which no argument may hold; see docs/secrets.md"
_KEY = re.compile(r"^([A-Z][A-Z0-9_]*)=", re.MULTILINE)
_NEGATIVE_NUMBER = re.compile(r"-\d*\.?\d+(e[+-]?\d+)?")


def run(main: Callable[[], int]) -> int:
    """Run the `main` of a command and return its exit code.

    A stream that the caller has closed is the null device. Characters that the terminal cannot show are printed as
    escapes. A reader that closes the pipe (`| head`) and Ctrl-C end the command without a traceback, with the exit
    codes of a shell: 141 and 130. A file that cannot be used ends it with one line, and with 2 if another path helps,
    else 1.
    """
    # first, because without a stderr nothing could be reported
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return main()
        finally:  # also after --help
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        _discard_output()
        report(error)
        return 2 if error.errno in BAD_PATH else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _open_closed_streams() -> None:
    """Open the null device in the place of a closed stdin, stdout or stderr, before a file gets its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, mode, encoding="utf8", closefd=False))  # noqa: PTH123, SIM115 a number


def first_line(docstring: str | None) -> str:
    """Return the summary of a command for its help; nothing under PYTHONOPTIMIZE=2, which removes docstrings."""
    return (docstring or "").partition("\n")[0]


def refusing(
    bad: tuple[type[Exception], ...], failed: tuple[type[Exception], ...] = (), *, interrupted: str | None = None
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make the `main` of a command end with one line, and with 2 for an error of `bad` and 1 for one of `failed`.

    With `interrupted`, Ctrl-C ends it with 130 and a line too, which ends with this text.
    """

    def decorated(main: Callable[..., int]) -> Callable[..., int]:
        @wraps(main)
        def command(*arguments: Any) -> int:
            try:
                return main(*arguments)
            except (*bad, *failed) as error:
                report(error, has_lines=isinstance(error, failed) and not isinstance(error, OSError))
                return 2 if isinstance(error, bad) else 1
            except KeyboardInterrupt:
                if interrupted is None:
                    raise
                print(f"error: interrupted{interrupted}", file=sys.stderr)
                return 128 + signal.SIGINT

        return command

    return decorated


def report(error: Exception, *, has_lines: bool = False) -> None:
    """Print one line about an error, without secrets; about a file that cannot be used, with the remedy.

    With `has_lines`, line feeds in its message stay, such as those of a traceback.
    """
    message = str(error)
    if isinstance(error, OSError) and error.errno is not None:  # not raised by a library or by us
        place = "" if error.filename is None else f"{error.filename}: "
        message = f"{place}cannot be read or written ({error.strerror or error}); {_remedy(error)}"
    message = text(message)
    if not has_lines:
        message = in_one_line(message)
    print(f"error: {message}", file=sys.stderr)


def _remedy(error: OSError) -> str:
    if error.errno in FULL:
        return "make room, or name a folder on another disk"
    if error.errno in BAD_PATH:
        return "name a path that exists and that you may use"
    return "check the file and its disk"


def _discard_output() -> None:
    """Send what is still to be printed nowhere: Python flushes once more when it ends."""
    with suppress(io.UnsupportedOperation):  # a stream in memory
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Parser(argparse.ArgumentParser):
    """Parser that reports bad input in one line, with the option that was meant, and repeats no secret.

    It refuses an argument with a secret in it, before anything is made: file names and settings stand in results,
    archives and lists of processes. An option must be spelled out: `--with-dat` must not delete data. Settings
    (KEY=VALUE) may stand before, between and after the options. `options` has the arguments of `add_argument` by name.
    Of a `module` (`evaluate.history`) the help is its docstring, with `Usage:` as far as `Example:`, and the options.
    """

    def __init__(self, options: Mapping[str, Mapping[str, Any]] | None = None, module: str = "", **given: Any) -> None:
        if module:
            source = (SETTINGS.parent / f"{module.replace('.', '/')}.py").read_text(encoding="utf8")
            given |= _help_of(source.split('"""')[1])
            given["prog"] = f"python -m {module}"
        # `--with-dat` would else delete data
        given.setdefault("allow_abbrev", False)
        super().__init__(**given)
        # argparse's own message for `type=int` is "invalid int value", without what was wanted
        self.register("type", int, _whole_number)
        self.add_argument("--version", action="version", version=f"tprimat {VERSION}")
        for name, terms in (options or {}).items():
            self.add_argument(name, **terms)

    def parse_first(self) -> None:
        """Exit for help, version or a bad argument: for a program that has not imported its packages yet."""

        def parse() -> int:
            self.parse_args()
            return 0

        code = run(parse)
        if code:
            sys.exit(code)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse the command line; exit 2 with one line for a secret, and for what is not known."""
        arguments = sys.argv[1:] if args is None else list(args)
        for before, argument in zip(["", *arguments], arguments, strict=False):
            # before argparse sees it, whose messages repeat arguments
            if holds_secret(argument):
                self.exit(2, f"error: {_place(before, argument)}: {REFUSAL}\n")
        self._refuse_unknown(arguments)
        parsed: argparse.Namespace
        parsed, rest = self.parse_known_args(arguments, namespace)
        if rest:  # settings after an option
            parsed = super().parse_intermixed_args(arguments, namespace)
        return parsed

    def error(self, message: str) -> Any:
        """Print the message in one line, without secrets, and exit 2."""
        message = message.removeprefix("argument ")
        missing = message.partition("the following arguments are required: ")[2]
        if missing:
            message = f"got no {missing}"
            action = self._option_string_actions.get(missing)
            if action and action.choices:
                message += f", wanted {', '.join(action.choices)}"
        # a type that is not `int` raises ValueError, for which argparse names only the function
        message = re.sub(r"invalid \w+ value: (.*)", r"got \1, wanted a number", message)
        self.exit(2, f"error: {in_one_line(text(message))}; see --help\n")

    def _refuse_unknown(self, arguments: Sequence[str]) -> None:
        """Exit 2 for the first option that this command does not have.

        argparse would complain about a missing argument first, where `--input` was misspelled.
        """
        known = self._option_string_actions
        for argument in arguments:
            if argument == "--":
                return
            name = argument.split("=", 1)[0]
            is_option = name.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(argument)
            if not is_option or name in known or name[:2] in known:  # `-h` with more behind it, which argparse reads
                continue
            keys: list[str] = []
            if any(action.metavar == SETTING for action in self._actions):
                with suppress(OSError, ValueError):
                    keys = _KEY.findall(SETTINGS.read_text("utf8"))
            self.error(no_option(argument, known, keys))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ArgumentError for a value that is none of the choices of an option, with the one that was meant."""
        if action.choices is None or value in action.choices:
            return
        allowed = [str(choice) for choice in action.choices]
        near = did_you_mean(str(value), allowed)
        wanted = ", ".join(allowed)
        # a list of that length would hide the suggestion
        if near and len(allowed) > 20:
            wanted = "another word"
        raise argparse.ArgumentError(action, f"got {value!r}, wanted {wanted}{near}")


def _whole_number(value: str) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"got {value!r}, wanted a whole number") from error


def _help_of(docstring: str) -> dict[str, Any]:
    """Return the arguments of argparse for a docstring: its `Usage:` in place of argparse's own, else its summary."""
    if "\nUsage:" not in docstring:
        return {"description": first_line(docstring)}
    up_to_example = re.match(r".*?^Example:[^\n]*", docstring, re.DOTALL | re.MULTILINE)
    return {
        "description": up_to_example[0] if up_to_example else docstring,
        "usage": argparse.SUPPRESS,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


def no_option(argument: str, options: Iterable[str], settings: Iterable[str]) -> str:
    """Return the message about an option that a command does not have, with the one that was meant."""
    keys = list(settings)
    if keys and re.fullmatch(r"-+[A-Z][A-Z0-9_]*=.*", argument, re.DOTALL):
        return f"got {argument}, wanted a setting without dashes; did you mean {argument.lstrip('-')}?"
    name = argument.split("=", 1)[0]
    return f"got {name}, which is no option{did_you_mean(name, [*options, *(f'{key}=...' for key in keys)])}"


def from_one(value: str) -> int:
    """Return the whole number in an argument, from 1; raise argparse.ArgumentTypeError for anything else."""
    if not re.fullmatch(r"[0-9]{1,18}", value) or not int(value):
        raise argparse.ArgumentTypeError(f"got {value!r}, wanted a whole number from 1")
    return int(value)


def _place(before: str, argument: str) -> str:
    """Return the name of the setting or the option that an argument belongs to."""
    named = re.match(r"(--[a-z][a-z-]*|[A-Z][A-Z0-9_]*)=", argument)
    if named and not holds_secret(named[1]):
        return named[1]
    return before if before.startswith("--") else "argument"
