"""Encoded pairs have the bytes of megatron-core however the work is divided; a failed run leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from housekeeping import tree
from standins import MARK, changed, write_jsonl
from toydata import TEXTS, assert_same_pair, megatron_pair

from data import encode
from utils.settings.layers import GONE

GOOD = b'{"text": "fine"}\n'
RARE = " \U00010940"
"""A letter that is newer than the tables of the library `tokenizers`."""
LONG = "a line beyond any buffer " * 4000
MANY = [*TEXTS, "<|end|> <|begin|>", RARE, LONG, f"{LONG}{RARE}"]
MANY += [f"{number} words" for number in range(150)]
MANY += [f"{number}{RARE}" for number in range(70)]
MANY += [*["", "fine"] * 20, f"the last{RARE}"]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory, tokenizers: dict[str, Path]) -> dict[str, Path]:
    """Prefixes of the pairs that megatron-core writes, by tokenizer."""
    prefixes = {}
    for name, tokenizer in tokenizers.items():
        prefixes[name] = tmp_path_factory.mktemp("theirs") / name
        megatron_pair(prefixes[name], MANY, tokenizer)
    return prefixes


WAYS = [
    (1, 50, "plain"),
    (1, 50, "of DOS"),
    (1, 1 << 22, "without a last end"),
    (2, 50, "with marks"),
    (3, 2000, "two files"),
]


@pytest.mark.parametrize("kind", ["plain", "bos", "large"])
@pytest.mark.parametrize(("workers", "size", "form"), WAYS)
def test_pair_is_the_one_that_megatron_writes(
    tmp_path, tokenizers, theirs, encoded, part_bytes, kind, workers, size, form
) -> None:
    """The forms of the input hold the same documents."""
    part_bytes(size)
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in MANY]
    if form == "of DOS":
        lines = [line.replace(b"\n", b"\r\n") for line in lines]
    if form == "without a last end":
        lines[-1] = lines[-1].rstrip()
    contents = [b"".join(lines)]
    if form in ("two files", "with marks"):
        contents = [b"".join(lines[:100]), b"".join(lines[100:])]
    if form == "with marks":
        contents = [MARK + contents[0], MARK + contents[1], MARK]
    paths = []
    for number, content in enumerate(contents):
        paths.append(tmp_path / f"{9 - number}.jsonl")  # the order is that of the arguments, not of the names
        paths[-1].write_bytes(content)
    manifest = encoded(paths, tokenizers[kind], tmp_path / "ours", "--workers", workers)
    assert_same_pair(tmp_path / "ours", theirs[kind])
    files = [{"name": path.name, "sha256": sha256(path), "bytes": path.stat().st_size} for path in paths]
    assert manifest["input"].get("files", [manifest["input"]]) == files
    assert manifest["input"]["bytes"] == sum(len(content) for content in contents)
    assert manifest["bytes_of_text"] == sum(len(text.encode()) for text in MANY)


@pytest.mark.parametrize("kind", ["plain", "bos", "large"])
def test_manifest_tells_what_went_in_and_came_out(tmp_path: Path, tokenizers, theirs, encoded, kind: str) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    made = encoded(write_jsonl(tmp_path / "in.jsonl", MANY), tokenizers[kind], tmp_path / "new" / "out.v1")
    index = IndexedDataset(str(theirs[kind])).index
    size, eod = {"plain": (600, 0), "bos": (602, 601), "large": (65_500, 65_499)}[kind]
    data = theirs[kind].with_suffix(".bin")
    wanted = {
        "dtype": index.dtype.__name__,
        "documents": len(MANY),
        "tokens": sum(index.sequence_lengths),
        # an empty text is an empty document, unless the tokenizer begins every text with a token
        "sequences": len(MANY) if kind == "bos" else len(MANY) - MANY.count(""),
        "bin_sha256": sha256(data),
        "idx_sha256": sha256(theirs[kind].with_suffix(".idx")),
        "bin_bytes": data.stat().st_size,
        "vocab_size": size,
        "eod_token_id": eod,
        "append_eod": True,
    }
    assert made.items() >= wanted.items() and made["dtype"] == ("int32" if kind == "large" else "uint16")
    digests = "".join(f"{sha256(path)} {path.name}\n" for path in sorted(tokenizers[kind].iterdir()))
    assert made["tokenizer"]["sha256"] == hashlib.sha256(digests.encode()).hexdigest()
    assert str(tmp_path) not in json.dumps(made)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["out.v1.bin", "out.v1.idx", "out.v1.json"]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_lines_that_are_skipped_are_counted_and_the_first_is_said(
    tmp_path, plain_tokenizer, encoded, part_bytes, commands
) -> None:
    part_bytes(2000)
    bad = {150: b"oops\n", 300: b"\n", 301: b'{"content": null}\n'}
    good = [json.dumps({"content": f"line {number}"}).encode() + b"\n" for number in range(500)]
    (tmp_path / "in.jsonl").write_bytes(b"".join(bad.get(number, line) for number, line in enumerate(good)))
    megatron_pair(tmp_path / "theirs", [f"line {n}" for n in range(500) if n not in bad], plain_tokenizer)
    more = ("--workers", "2", "--on-bad-line", "skip", "--text-key", "content")
    said = commands.run(encode.main, *arguments(tmp_path, plain_tokenizer, *more))
    assert (json.loads(said.out)["bad_lines"], json.loads(said.out)["documents"]) == (3, 497)
    assert "3 bad lines skipped, the first: " in said.err and "in.jsonl:151: got invalid JSON, 'oops'" in said.err
    assert_same_pair(tmp_path / "out", tmp_path / "theirs")


BAD_LINES = {
    "a mark that does not start a file": (MARK + GOOD, "in.jsonl:1001: "),
    "nesting": (b'{"deep": ' + b"[" * 100_000 + b"]" * 100_000 + b', "text": "a"}\n', "in.jsonl:1001: "),
    "no text": (b'{"text": null}\n' + GOOD * 1000, "in.jsonl:1001: "),
}


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_exit_1_with_its_number_and_the_earlier_pair_stays(
    tmp_path, plain_tokenizer, encoded, part_bytes, commands, name, workers
) -> None:
    line, message = BAD_LINES[name]
    encoded(write_jsonl(tmp_path / "earlier", TEXTS), plain_tokenizer, tmp_path / "out")
    (tmp_path / "in.jsonl").write_bytes(GOOD * 1000 + line)
    before = tree(tmp_path)
    part_bytes(100)
    given = arguments(tmp_path, plain_tokenizer, "--workers", workers)
    error = commands.error(encode.main, *given)
    assert message in error and len(error) < 700
    assert tree(tmp_path) == before
    assert multiprocessing.active_children() == []


REFUSED = [
    (b"", (), "documents contain no token", 1),
    (b'{"text": ""}\n' * 3, (), "documents contain no token", 1),
    (GOOD, ("--engine", "hf"), f"--engine: {GONE['ENCODER']}", 2),
]


@pytest.mark.parametrize(("content", "more", "message", "code"), REFUSED)
def test_an_input_without_a_token_and_the_option_of_an_earlier_version_are_refused(
    tmp_path: Path, plain_tokenizer, commands, content: bytes, more: tuple[str, ...], message: str, code: int
) -> None:
    (tmp_path / "in.jsonl").write_bytes(content)
    given = arguments(tmp_path, plain_tokenizer, *more)
    assert message in commands.error(encode.main, *given, wanted=code)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_the_setting_of_an_earlier_version_in_the_environment_is_a_warning(
    tmp_path: Path, plain_tokenizer, commands, monkeypatch
) -> None:
    (tmp_path / "in.jsonl").write_bytes(GOOD)
    monkeypatch.setenv("ENCODER", "gigatoken")
    said = commands.run(encode.main, *arguments(tmp_path, plain_tokenizer))
    assert said.err == f"warning: environment: ENCODER is ignored: {GONE['ENCODER']}\n"


def test_ids_with_gaps_are_refused_because_an_embedding_ends_at_their_number(
    tmp_path: Path, plain_tokenizer, commands
) -> None:
    def add(_: Any, content: Any) -> None:
        content["added_tokens"].append(content["added_tokens"][0] | {"id": 70_000, "content": "<|far|>"})
        content["model"]["vocab"]["<|far|>"] = 70_000

    folder = changed(plain_tokenizer, tmp_path / "gaps", add)
    write_jsonl(tmp_path / "in.jsonl", ["a <|far|>"])
    assert "produces id 70000, but has 601 entries" in commands.error(encode.main, *arguments(tmp_path, folder))


# the file with the text, the prefix ({up} is another way there), and a link to the file
TAKEN: dict[str, tuple[str, str, tuple[str, str] | None]] = {
    "manifest": ("corpus.json", "corpus", None),
    "idx by another path": ("corpus.idx", "{up}/corpus", None),
    "hard link": ("in.jsonl", "out", ("out.json", "hardlink_to")),
    "input is a link": ("out.bin", "out", ("in.jsonl", "symlink_to")),
    "in the parts": (".out.parts/000000.json", "out", None),
    "tokenizer": ("in.jsonl", "tok/tokenizer", None),
    "tokenizer file that is not there": ("in.jsonl", "tok/special_tokens_map", None),
    "hard link to the tokenizer": ("in.jsonl", "own/x", None),
}


@pytest.mark.parametrize("name", TAKEN)
def test_an_output_that_is_an_input_or_of_the_tokenizer_is_refused_before_anything_is_written(
    tmp_path: Path, plain_tokenizer: Path, commands, name: str
) -> None:
    file, prefix, link = TAKEN[name]
    tokenizer = Path(shutil.copytree(plain_tokenizer, tmp_path / "tok"))
    for folder in ("own", ".out.parts"):
        (tmp_path / folder).mkdir()
    (tmp_path / "own" / "x.idx").hardlink_to(tokenizer / "tokenizer.json")
    source = write_jsonl(tmp_path / file, TEXTS)
    if link is not None:
        getattr(tmp_path / link[0], link[1])(source)
    before = tree(tmp_path)
    read = tmp_path / "in.jsonl" if (tmp_path / "in.jsonl").exists() else source
    output = tmp_path / prefix.format(up=f"../{tmp_path.name}")
    given = ("--input", read, "--tokenizer", tokenizer, "--output-prefix", output)
    assert "would be written, and is also an input" in commands.error(encode.main, *given, wanted=2)
    assert tree(tmp_path) == before


def arguments(folder: Path, tokenizer: Path, *more: str) -> list[object]:
    return ["--input", folder / "in.jsonl", "--tokenizer", tokenizer, "--output-prefix", folder / "out", *more]


# File names and streams that are unusual work, or are refused in one line that cannot control a terminal.

COMMANDS = ("data.encode", "data.clean", "data.prepare", "data.verify", "utils.configure", "evaluate.validate")
SETTINGS = ("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=6", "WARMUP_ITERS=2", "MODEL=llama", "ALLOW_REPEAT=true")
NAMES = {
    "not UTF-8": os.fsdecode(b"\xff\xfe.jsonl"),
    "with an escape": "a\x1b[2J.jsonl",
    "with a line break": "a\nb.jsonl",
    "with a space": "a b.jsonl",
}


def run(module: str, *arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command as on a machine without a GPU, with none of this process' variables."""
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **environ}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("what", ["not UTF-8", "with a line break"])
@pytest.mark.parametrize("command", ["data.clean", "data.encode"])
def test_a_text_of_an_odd_name_is_cleaned_and_encoded_and_shows_no_control_character(
    what: str, command: str, tmp_path: Path, plain_tokenizer: Path
) -> None:
    source = write_jsonl(tmp_path / NAMES[what], ["w1 w2"] * 3)
    given = [source, "--output", tmp_path / "out.jsonl"]
    if command == "data.encode":
        given = ["--input", source, "--tokenizer", plain_tokenizer, "--output-prefix", tmp_path / "pair"]
    ran = run(command, *given)
    assert (ran.returncode, ran.stderr) == (0, ""), ran
    source.write_text("{")
    ran = run(command, *given)
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1), ran
    assert ran.stderr.strip("\n").isprintable()


def test_a_data_set_of_an_odd_name_is_prepared_or_refused_in_one_line(tmp_path: Path, plain_tokenizer: Path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    for name in NAMES.values():
        write_jsonl(folder / name, ["w1 w2 " * 50] * 60)
    places = (f"DATA_DIR={tmp_path}/data", f"OUTPUT_DIR={tmp_path}/output", f"TOKENIZER={plain_tokenizer}")
    # as one file of a folder its name does not matter
    for name in (*NAMES.values(), "*.jsonl"):
        ran = run("data.prepare", "--platform", "cpu", f"DATASET={folder / name}", *places, *SETTINGS)
        if name in ("*.jsonl", NAMES["with a space"]):
            assert ran.returncode == 0, ran
        else:
            assert ran.returncode == 2 and ran.stderr.count("\n") == 1, ran
            assert ran.stderr.strip("\n").isprintable()


@pytest.mark.parametrize("module", COMMANDS)
def test_without_docstrings_or_with_closed_streams_a_command_works(module: str) -> None:
    ran = run(module, "--help", PYTHONOPTIMIZE="2")
    assert (ran.returncode, ran.stderr) == (0, "") and "sage:" in ran.stdout
    for closed in (">&-", "<&- >&-", "2>&-"):
        line = f"exec {sys.executable} -m {module} --help {closed}"
        ran = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert (ran.returncode, ran.stderr) == (0, ""), (closed, ran)
