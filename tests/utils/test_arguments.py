"""A command line with a secret in it ends before anything is made, with one line that does not repeat it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
from checkout import ROOT

from utils.arguments import Parser
from utils.errors import DataError, did_you_mean, quoted, shortened

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
        (["--password", "hunter2"], None),  # a secret that two arguments make is in an error only
    ],
)
def test_an_argument_with_a_secret_is_refused_and_not_repeated(arguments, place, capsys):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(arguments)
    said = capsys.readouterr()
    assert (ended.value.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert place is None or said.err.startswith(f"error: {place}: looks like a secret")
    assert not any(secret in said.err for secret in (TOKEN[:20], "pass@", "hunter2"))


def test_other_arguments_are_parsed():
    options = parser().parse_args(["MBS=2", "--output", "a@b/c", "LABEL=x"])
    assert (options.output, options.settings) == ("a@b/c", ["MBS=2", "LABEL=x"])


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


PROGRAMS = {  # `main` of a command, its environment, what it prints, and how it ends, without a traceback
    "a reader that goes away": ("print('x' * 10**7) or 0", {}, None, 128 + signal.SIGPIPE),
    "a character that the terminal cannot show": (
        *("print('\\u4e2d') or 3", {"PYTHONIOENCODING": "ascii"}),
        *(b"\\u4e2d\n", 3),
    ),
    "Ctrl-C": ("__import__('signal').raise_signal(2)", {}, b"", 128 + signal.SIGINT),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_command_ends_without_a_traceback(name) -> None:
    main, environ, printed, exit_code = PROGRAMS[name]
    program = f"import sys; from utils.arguments import run; sys.exit(run(lambda: {main}))"
    command, pipe = [sys.executable, "-c", program], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, env=os.environ | environ) as started:
        if printed is None:
            started.stdout.read(1)
            started.stdout.close()
        else:
            assert started.stdout.read() == printed
        assert started.stderr.read() == b""
    assert started.returncode == exit_code


# A quotation of bad input is short, whatever the input is, and never the end of a secret without its start.


def nested(depth: int) -> object:
    found: object = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    "value",
    ["x" * 10**7, ["x" * 1000] * 10**5, {str(number): "y" for number in range(10**5)}, nested(50_000), 10**4000],
)
def test_a_quotation_of_anything_is_short(value: object) -> None:
    assert len(quoted(value)) <= 203


@pytest.mark.parametrize("value", [None, True, 5, -1.5, "text", ["a", 1], {"a": None}, "5" * 64])
def test_a_short_value_and_a_digest_are_quoted_whole(value: object) -> None:
    assert quoted(value) == repr(value)


@pytest.mark.parametrize("before", [0, 15, 30])
def test_a_secret_that_is_cut_is_still_replaced(before: int) -> None:
    token = "hf_" + "Ab1" * 11 + "z"
    said = str(DataError(f"got {quoted('x ' * before + token + ' more' * 100)}"))
    assert token[:12] not in said or token[:30] not in said
    assert token[-12:] not in said


def test_the_start_of_a_long_text_is_kept() -> None:
    assert shortened("a" * 300) == "a" * 200 + "..." and shortened("abc", 3) == "abc"


# A word that is nearly a known one gets that one as a suggestion; any other word gets none.

KNOWN = ("MBS", "GBS", "TP", "TRAIN_ITERS", "WARMUP_ITERS", "--output", "--help", "llama", "qwen")


@pytest.mark.parametrize(
    ("got", "known", "meant"),
    [
        ("TRAIN_ITER", KNOWN, "TRAIN_ITERS"),
        ("TRIAN_ITERS", KNOWN, "TRAIN_ITERS"),
        ("mbs", KNOWN, "MBS"),
        ("train-iters", KNOWN, "TRAIN_ITERS"),
        ("GSB", KNOWN, "GBS"),
        ("tp", KNOWN, "TP"),
        ("lama", KNOWN, "llama"),
        ("Qwen", KNOWN, "qwen"),
        ("--hlep", KNOWN, "--help"),
        ("--ouput", KNOWN, "--output"),
        *((far, KNOWN, None) for far in ("", "XYZ", "zebra", "--zzz", "MBS")),
        ("MBS", [], None),
    ],
)
def test_a_slip_gets_the_known_word_and_any_other_word_none(got, known, meant) -> None:
    assert did_you_mean(got, known) == ("" if meant is None else f"; did you mean {meant}?")
