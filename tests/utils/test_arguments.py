"""A command line with a secret in it ends before anything is made, with one line that does not repeat it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from utils.arguments import Parser
from utils.settings.config import ROOT

TOKEN = "hf_" + "aB3dE5gH7jK9" * 3


def parser() -> Parser:
    made = Parser(prog="x")
    made.add_argument("--output")
    made.add_argument("--runs", type=int)
    made.add_argument("settings", nargs="*")
    return made


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["--output", f"a/{TOKEN}.json"], "--output"),
        ([f"--output={TOKEN}"], "--output"),
        (["--runs", TOKEN], "--runs"),
        (["LABEL=mine", f"LABEL={TOKEN}"], "LABEL"),
        (["TOKENIZER=https://ann:pass@host/x"], "TOKENIZER"),
        (["NCCL_PW=hunter2"], "NCCL_PW"),
        ([TOKEN], "argument"),
        ([f"{TOKEN}=1"], "argument"),
    ],
)
@pytest.mark.parametrize("parse", ["parse_args", "parse_intermixed_args"])
def test_an_argument_with_a_secret_is_refused_and_not_repeated(arguments, place, parse, capsys):
    with pytest.raises(SystemExit) as ended:
        getattr(parser(), parse)(arguments)
    said = capsys.readouterr()
    assert (ended.value.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith(f"error: {place}: looks like a secret")
    assert not any(secret in said.err for secret in (TOKEN[:20], "pass@", "hunter2"))


def test_other_arguments_are_parsed():
    options = parser().parse_intermixed_args(["MBS=2", "--output", "a@b/c", "LABEL=x"])
    assert (options.output, options.settings) == ("a@b/c", ["MBS=2", "LABEL=x"])


def test_a_value_in_an_error_is_shown_without_the_secret_that_two_arguments_make(capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["--password", "hunter2"])
    assert "hunter2" not in capsys.readouterr().err


def test_every_command_has_this_parser():
    files = [
        path for room in ("utils", "data", "train", "evaluate", "benchmarks") for path in (ROOT / room).rglob("*.py")
    ]
    other = [
        path
        for path in files
        if re.search(r"argparse\.ArgumentParser\b|import ArgumentParser", path.read_text(encoding="utf8"))
    ]
    assert other == [ROOT / "utils" / "arguments.py"]


def command(main: str, **environ: str) -> subprocess.Popen[bytes]:
    """Start a command whose `main` is this expression."""
    program = f"import sys; from utils.arguments import run; sys.exit(run(lambda: {main}))"
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=pipe, stderr=pipe, env=os.environ | environ
    )


def test_a_reader_that_goes_away_ends_a_command_without_a_traceback() -> None:
    with command("print('x' * 10**7) or 0") as started:
        assert started.stdout and started.stderr
        started.stdout.read(1)
        started.stdout.close()
        assert started.stderr.read() == b""
    assert started.returncode == 128 + signal.SIGPIPE


def test_a_character_that_the_terminal_cannot_show_is_an_escape() -> None:
    with command("print('\\u4e2d') or 3", PYTHONIOENCODING="ascii") as started:
        assert started.communicate() == (b"\\u4e2d\n", b"")
    assert started.returncode == 3


def test_ctrl_c_ends_a_command_without_a_traceback() -> None:
    with command("__import__('signal').raise_signal(2)") as started:
        assert started.communicate() == (b"", b"")
    assert started.returncode == 128 + signal.SIGINT
