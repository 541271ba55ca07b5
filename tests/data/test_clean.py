"""Cleaning drops and changes what its level defines, counts all of it, and always gives the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from checkout import ROOT
from housekeeping import tree
from hypothesis import given, settings, strategies as st
from standins import write_jsonl
from transformers import AutoTokenizer

from data import clean, encode, synth


@pytest.fixture
def cleaned(commands, tmp_path: Path) -> Callable[..., tuple[list[str], dict[str, int], list[str]]]:
    """Return what cleans texts; it gives back the documents, the counts and the lines about dropped records."""

    def run(texts: list[str], *more: object) -> tuple[list[str], dict[str, int], list[str]]:
        source, output = write_jsonl(tmp_path / "f.jsonl", texts), tmp_path / "out.jsonl"
        said = commands.run(clean.main, source, "--output", output, *more)
        lines = output.read_text(encoding="utf8").split("\n")[:-1]
        dropped = said.err.replace(f"{source}:", "").splitlines()
        return [json.loads(line)["text"] for line in lines], json.loads(said.out)["counts"], dropped

    return run


# Worked by hand: what each level makes of the same eight records.
TEXTS = ["same", "ctrl\x07", "", "same", " \n", "cafe\u0301", "fÃ¼r", "copyright 2012 by jane"]
LIGHT = {"too short": 2, "duplicate": 1}
ROWS = ["a .", "a .", "", "b .\n", "a .", "b .", "a .", "b .", "c ."]
BOOK = ["he ran .", "copyright 2012 by jane", "title\nisbn 123\ntext"]
LENGTHS = ["1234", "  123  ", "123456", "\u6771\u4eac\u6771\u4eac", "1234567"]
LEVELS: list[tuple[str, list[str], list[str], dict[str, int], dict[str, int]]] = [
    ("--clean none", TEXTS, TEXTS, {}, {}),
    ("", TEXTS, ["same", "ctrl", *TEXTS[5:]], LIGHT, {"control characters": 1}),
    (
        "--clean full",
        TEXTS,
        ["same", "ctrl", "café", "für", TEXTS[7]],
        LIGHT,
        {"control characters": 1, "ftfy": 1, "NFC": 1},
    ),
    ("", BOOK, BOOK, {}, {}),
    ("--clean none --front-matter", BOOK, BOOK, {}, {}),
    ("--front-matter", BOOK, ["he ran .", "title\ntext"], {"front matter": 1}, {"front matter": 1}),
    # lengths are counted in characters without white space around
    ("--clean none --min-chars 4", LENGTHS, [LENGTHS[0], *LENGTHS[2:]], {"too short": 1}, {}),
    ("--clean none --max-chars 6", LENGTHS, [LENGTHS[0], *LENGTHS[2:4]], {"too long": 2}, {}),
    # rows are joined before lengths and copies are looked at
    ("--group-rows 2", ROWS, ["a . a .", "b . a .", "b . c ."], {"empty row": 1, "duplicate": 1}, {}),
    ("--clean none --group-rows 2", ["a", "b", "c"], ["a b", "c"], {}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "texts", "wanted", "dropped", "changed"), LEVELS)
def test_a_level_does_what_it_says_and_counts_it(cleaned, options, texts, wanted, dropped, changed) -> None:
    counts = {"records": len(texts), "documents": len(wanted)}
    counts |= {f"dropped: {key}": count for key, count in dropped.items()}
    counts |= {f"changed: {key}": count for key, count in changed.items()}
    assert cleaned(texts, *options.split())[:2] == (wanted, counts)


# The examples of ftfy's own documentation and of the Unicode standard's definition of mojibake, decoded by hand.
CONTROLS = [
    ("plain\ttext\r\nwith lines\n", "plain\ttext\r\nwith lines\n"),
    ("a\x00b\x07c\x1bd\x7fe", "abcde"),
    ("page one\x0cpage two\x0bline\x85end", "page one\npage two\nline\nend"),
    ("\u00a0\u00bb\u00e9\u0080\u009f\u00c2", "\u00a0\u00bb\u00e9\u00c2"),
    ("zero\u200bwidth \ufeffmark \u2028 soft\u00adhyphen", "zero\u200bwidth \ufeffmark \u2028 soft\u00adhyphen"),
]
REPAIRS = [
    ("schÃ¶n und fÃ¼r", "schön und für"),
    ("the more you know â€” really", "the more you know — really"),
    ("caf\u00e9 stays", "caf\u00e9 stays"),
    ("AT&amp;T", "AT&T"),
    ("<p>AT&amp;T</p>", "<p>AT&amp;T</p>"),
    ("\x1b[36mcolour\x1b[0m", "colour"),
    ("\u201cquotes\u201d, \u2019, \ufb01 and \uff21 stay", "\u201cquotes\u201d, \u2019, \ufb01 and \uff21 stay"),
    ("cafe\u0301 \u1100\u1161 \u212b compose", "caf\u00e9 \uac00 \u00c5 compose"),
    ("dos\r\nline", "dos\r\nline"),
    ("half a pair &#xD800;", "half a pair \ufffd"),
]
IMPRINT = [
    "isbn : 978-0-306-40615-7",
    "ISBN 0306406152",
    "ISBN13: 9780306406157",
    "copyright 2012 by jane roe",
    "Copyright (c) Jane Roe",
    "copyright â© 2011 jane roe .",
    "copyrighted by the author",
    "\u00a9 jane roe , 2013",
    "all rights reserved .",
    "The moral right of the author is asserted. All rights reserved.",
]
NOVEL = [
    "he lost the lawsuit about the copyright .",
    "she had reserved all rights of way",
    "two\n\nparagraphs",
    "a disbnfall and copyrights in general",
    "\u00e9 \u00ae 2012",
]


@pytest.mark.parametrize(("level", "pairs"), [("light", CONTROLS), ("full", REPAIRS)])
def test_a_step_changes_its_own_targets_and_nothing_else(cleaned, level: str, pairs) -> None:
    assert cleaned([before for before, _ in pairs], "--clean", level)[0] == [after for _, after in pairs]


def test_imprint_lines_go_and_a_novel_that_mentions_rights_stays(cleaned) -> None:
    pages = [f"title {number}\n{line}\nchapter" for number, line in enumerate(IMPRINT)]
    wanted = [f"title {number}\nchapter" for number in range(len(IMPRINT))]
    assert cleaned([*IMPRINT, *pages, *NOVEL], "--front-matter")[0] == [*wanted, *NOVEL]


def test_control_characters_are_those_that_unicode_calls_so(cleaned) -> None:
    pick = random.Random(5)
    points = [*range(0x400), *pick.sample(range(0x400, 0xD800), 2000), *range(0x1F300, 0x1F400)]
    texts, wanted = [], []
    for point in points:
        kept = chr(point)
        if kept in "\v\f\x85":
            kept = "\n"
        elif unicodedata.category(kept) == "Cc" and kept not in "\t\n\r":
            kept = ""
        texts.append(f"{point} {chr(point)} a")
        wanted.append(f"{point} {kept} a")
    assert cleaned(texts)[0] == wanted


def test_the_first_dropped_records_of_each_reason_are_shown_a_group_by_its_first_row_without_a_secret(cleaned) -> None:
    token = "hf_" + "aB3" * 11 + "x"
    said = cleaned(["x"] * 9 + [""] * 9 + [f"login {token} please "], "--max-chars", "20", "--show-dropped", "2")[2]
    shown = ["2: duplicate: 'x'", "3: duplicate: 'x'", "10: too short: ''", "11: too short: ''"]
    assert said == [*shown, "19: too long: 'login *** please '"]
    said = cleaned(["a", "b", "", "a", "b"], "--group-rows", "2", "--show-dropped", "2")[2]
    assert said == ["3: empty row: ''", "4: duplicate: 'a b'"]


any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.mark.parametrize("edited", [True, False])
def test_a_cleaned_file_that_was_corrected_by_hand_is_not_replaced(tmp_path: Path, commands, edited: bool) -> None:
    source, output = write_jsonl(tmp_path / "a.jsonl", ["the text"]), tmp_path / "out.jsonl"
    commands.run(clean.main, source, "--output", output)
    if edited:
        output.write_text(output.read_text().replace("text", "word"))
    before = output.read_text()
    commands.run(clean.main, source, "--output", output, wanted=2 if edited else 0)
    assert output.read_text() == before


def test_every_record_is_accounted_for_and_cleaning_what_is_clean_changes_nothing(tmp_path: Path, capfd) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"

    @settings(max_examples=80, deadline=None)
    @given(st.lists(any_text), st.sampled_from(["none", "light", "full"]), st.integers(1, 3), st.booleans())
    def check(texts: list[str], level: str, rows: int, is_book: bool) -> None:
        write_jsonl(source, [*texts, "a last one"])
        more = ["--clean", level, "--group-rows", str(rows), *["--front-matter"] * is_book]
        assert clean.main([str(source), "--output", str(output), *more]) == 0
        counts = json.loads(capfd.readouterr().out)["counts"]
        lines = output.read_bytes().decode("utf8").split("\n")[:-1]
        documents = [json.loads(line)["text"] for line in lines]
        assert lines == [json.dumps({"text": text}, ensure_ascii=False, separators=(",", ":")) for text in documents]
        assert (counts["records"], counts["documents"]) == (len(texts) + 1, len(documents))
        lost = {reason: counts.get(f"dropped: {reason}", 0) for reason in ("empty row", "front matter", "too short")}
        groups = -(-(len(texts) + 1 - lost["empty row"] - lost["front matter"]) // rows)
        assert groups == len(documents) + lost["too short"] + counts.get("dropped: duplicate", 0)
        if level == "none" and rows == 1:
            assert documents == [*texts, "a last one"]
        if level == "light":
            assert len(set(documents)) == len(documents) and all(document.strip() for document in documents)
            write_jsonl(source, documents)
            assert clean.main([str(source), "--output", str(output), *more[:2], *more[4:]]) == 0
            assert set(json.loads(capfd.readouterr().out)["counts"]) == {"records", "documents"}

    check()


def test_every_one_of_many_is_known_again(cleaned) -> None:
    texts = [str(number) for number in range(200_000)]  # three for each value of the first two bytes of their digest
    assert cleaned(texts * 2)[0] == texts


@pytest.mark.parametrize("output", ["in.jsonl", "../{folder}/in.jsonl", "symlink_to", "hardlink_to"])
def test_an_output_that_is_the_input_is_exit_2(tmp_path: Path, commands, output: str) -> None:
    source, path = write_jsonl(tmp_path / "in.jsonl", ["a"]), tmp_path / output.format(folder=tmp_path.name)
    if "link" in output:
        getattr(path, output)(source)
    before = tree(tmp_path)
    commands.error(clean.main, source, "--output", path, wanted=2)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("second", ["a.jsonl", "sub/../a.jsonl", "link.jsonl", "hard.jsonl", "a.jsonl.gz"])
def test_a_file_under_two_names_is_refused_and_not_read_twice(tmp_path: Path, commands, second: str) -> None:
    (tmp_path / "sub").mkdir()
    first = write_jsonl(tmp_path / "a.jsonl", ["a"])
    twin = Path(shutil.copy(first, tmp_path / "twin.jsonl"))  # another file with the same content
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(first.read_bytes()))
    (tmp_path / "link.jsonl").symlink_to(first)
    (tmp_path / "hard.jsonl").hardlink_to(first)
    both, output = (first, tmp_path / second), ("--clean", "none", "--output", tmp_path / "out.jsonl")
    encoding = ("--input", *both, "--tokenizer", tmp_path / "none", "--output-prefix", tmp_path / "out")
    name = Path(second).name
    assert f"{name}: " in commands.error(encode.main, *encoding, wanted=2)
    assert f"{name}: " in commands.error(clean.main, *both, *output, wanted=2)
    commands.run(clean.main, first, twin, *output)


# Generated text and its tokenizer: the same bytes everywhere, however much is asked for.


@pytest.mark.parametrize(
    ("seed", "digest"),
    [
        (42, "e8c30a77a48f2eb768e675e0d1376e8bc3aad4067c695a303a7e3231b174b5d0"),
        (7, "8544908c7d785d685591abb8c14ccff461ec6e406dca7c8679e90fd14a8000b8"),
    ],
)
def test_bytes_are_the_same_on_every_machine(tmp_path: Path, seed: int, digest: str) -> None:
    """The one number here that is our own output: pinned, so that another numpy, processor or edit cannot change the
    data of a comparison unnoticed. A deliberate change of the language changes it, and every data set made before."""
    synth.write_documents(tmp_path / "text.jsonl", seed=seed, documents=300)
    assert hashlib.sha256((tmp_path / "text.jsonl").read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("asked", [1, 10, 256, 257])
def test_the_first_documents_do_not_depend_on_how_many_are_asked_for(tmp_path: Path, asked: int) -> None:
    for name, count in (("few", asked), ("many", 600)):
        synth.write_documents(tmp_path / name, seed=3, documents=count)
    few = (tmp_path / "few").read_bytes()
    assert few.count(b"\n") == asked and (tmp_path / "many").read_bytes().startswith(few)


@pytest.mark.parametrize("asked", [1, 500, 60_000])
def test_words_end_with_the_document_that_reaches_them(tmp_path: Path, commands, asked: int) -> None:
    said = commands.run(synth.main, "--output", tmp_path / "text.jsonl", "--seed", "3", "--words", asked)
    written = [json.loads(line)["text"] for line in (tmp_path / "text.jsonl").open(encoding="utf8")]
    found = [len(text.split()) for text in written]
    assert sum(found) >= asked > sum(found[:-1])
    size = sum(len(text.encode()) for text in written)
    assert json.loads(said.out) == {"documents": len(found), "words": sum(found), "bytes": size}


FILES = ["tokenizer.json", "tokenizer_config.json"]


def trained(commands, folder: Path, *more: object, wanted: int = 0) -> Path:
    given = ("--output", folder / "text.jsonl", "--words=9", "--seed=5", "--tokenizer-output", folder / "tokenizer")
    commands.run(synth.main, *given, *more, wanted=wanted)
    return folder / "tokenizer"


def test_processes_train_the_same_bytes_with_exactly_the_asked_size(tmp_path: Path, commands) -> None:
    here = trained(commands, tmp_path)
    # hash seeds and thread counts are what could make two trainings differ
    environment = {**os.environ, "PYTHONHASHSEED": "7", "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "data.synth", "--output", tmp_path / "more.jsonl", "--words", "20000"]
    command += ["--seed", "5", "--tokenizer-output", tmp_path / "there"]
    subprocess.run(command, check=True, cwd=ROOT, env=environment, capture_output=True)
    for file in FILES:  # the amount of text does not matter
        assert (here / file).read_bytes() == (tmp_path / "there" / file).read_bytes()
    assert sorted(AutoTokenizer.from_pretrained(here).get_vocab().values()) == list(range(4096))


def test_it_has_an_end_of_text_and_neither_padding_nor_beginning_and_text_comes_back(plain_tokenizer: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(plain_tokenizer)
    assert loaded.eos_token == "<|endoftext|>"
    assert loaded.bos_token is loaded.pad_token is loaded.unk_token is None
    for text in ("", "The pot fled.", " two  spaces\n\n", "Grüße, 東京 🙂 \u0000", "a ?! b , c"):
        assert loaded.decode(loaded(text).input_ids) == text


def test_an_earlier_tokenizer_is_replaced_and_anything_else_is_left_alone(tmp_path: Path, commands) -> None:
    for size in ("300", "310"):
        folder = trained(commands, tmp_path, "--vocabulary-size", size)
    assert len(AutoTokenizer.from_pretrained(folder)) == 310
    (folder / "weights").write_text("precious")
    trained(commands, tmp_path, "--vocabulary-size", "300", wanted=2)
    assert (folder / "weights").read_text() == "precious" and len(AutoTokenizer.from_pretrained(folder)) == 310


@pytest.mark.parametrize(("size", "code"), [("256", 2), ("10000000", 1)])
def test_a_vocabulary_that_bytes_or_text_cannot_fill_is_refused_and_leaves_nothing(
    tmp_path: Path, commands, size: str, code: int
) -> None:
    assert not trained(commands, tmp_path, "--vocabulary-size", size, wanted=code).exists()
