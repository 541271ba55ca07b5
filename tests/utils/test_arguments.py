"""A command line with a secret in it ends before anything is made, with one line that does not repeat it."""

from __future__ import annotations

import re

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
    files = [path for room in ("utils", "data", "train", "evaluate") for path in (ROOT / room).rglob("*.py")]
    other = [
        path
        for path in files
        if re.search(r"argparse\.ArgumentParser\b|import ArgumentParser", path.read_text(encoding="utf8"))
    ]
    assert other == [ROOT / "utils" / "arguments.py"]
