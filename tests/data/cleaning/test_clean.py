"""Cleaning drops and changes what its level defines, counts all of it, and always gives the same bytes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from housekeeping import tree
from hypothesis import given
from hypothesis import strategies as st
from megatron_reference import TEXTS as MEGATRON_TEXTS
from megatron_reference import megatron_pair

from data.clean import main
from data.cleaning.documents import CleanRules, clean, described, level, rules_of, write_documents
from data.encoding.pair import encode
from data.reading.records import Dropped, Record
from utils.errors import DataError
from utils.settings.config import ROOT, load

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def as_records(texts: list[str]) -> list[Record]:
    return [Record(f"f:{number}", text) for number, text in enumerate(texts, 1)]


def cleaned(
    texts: list[str], rules: CleanRules, sample: list[Dropped] | None = None
) -> tuple[list[str], dict[str, int]]:
    counts: Counter[str] = Counter()
    return list(clean(as_records(texts), rules, counts, sample)), dict(counts)


def write_jsonl(path: Path, texts: list[Any]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf8")
    return path


# Worked by hand: what each level makes of the same eight records.
TEXTS = ["same", "ctrl\x07", "", "same", " \n", "cafe\u0301", "fÃ¼r", "copyright 2012 by jane"]


@pytest.mark.parametrize(
    ("name", "expected", "counts"),
    [
        ("none", TEXTS, {"records": 8, "documents": 8}),
        (
            "light",
            ["same", "ctrl", "cafe\u0301", "fÃ¼r", "copyright 2012 by jane"],
            {
                "records": 8,
                "documents": 5,
                "dropped: too short": 2,
                "dropped: duplicate": 1,
                "changed: control characters": 1,
            },
        ),
        (
            "full",
            ["same", "ctrl", "café", "für", "copyright 2012 by jane"],
            {
                "records": 8,
                "documents": 5,
                "dropped: too short": 2,
                "dropped: duplicate": 1,
                "changed: control characters": 1,
                "changed: ftfy": 1,
                "changed: NFC": 1,
            },
        ),
    ],
)
def test_a_level_does_what_it_says(name: str, expected: list[str], counts: dict[str, int]) -> None:
    assert cleaned(TEXTS, level(name)) == (expected, counts)


def test_imprint_is_removed_from_bookcorpus_only_and_never_with_none() -> None:
    texts = ["he ran .", "copyright 2012 by jane", "title\nisbn 123\ntext"]
    assert cleaned(texts, level("light"))[0] == texts
    assert cleaned(texts, level("none", is_bookcorpus=True))[0] == texts
    assert cleaned(texts, level("light", is_bookcorpus=True)) == (
        ["he ran .", "title\ntext"],
        {"records": 3, "documents": 2, "dropped: front matter": 1, "changed: front matter": 1},
    )


def test_length_is_counted_in_characters_without_white_space_around(tmp_path: Path) -> None:
    texts = ["1234", "  123  ", "123456", "\u6771\u4eac\u6771\u4eac", "1234567"]
    rules = level("none", min_characters=4, max_characters=6)
    assert cleaned(texts, rules) == (
        ["1234", "123456", "\u6771\u4eac\u6771\u4eac"],
        {"records": 5, "documents": 3, "dropped: too short": 1, "dropped: too long": 1},
    )


def test_rows_are_joined_before_lengths_and_copies_are_looked_at() -> None:
    rows = ["a .", "a .", "", "b .\n", "a .", "b .", "a .", "b .", "c ."]
    assert cleaned(rows, level("light", group_rows=2)) == (
        ["a . a .", "b . a .", "b . c ."],
        {"records": 9, "documents": 3, "dropped: empty row": 1, "dropped: duplicate": 1},
    )
    assert cleaned(["a", "b", "c"], level("none", group_rows=2))[0] == ["a b", "c"]


def test_a_group_is_named_by_its_first_row() -> None:
    sample: list[Dropped] = []
    cleaned(["a", "b", "", "a", "b"], level("light", group_rows=2), sample)
    assert sample == [Dropped("f:3", "empty row", ""), Dropped("f:4", "duplicate", "a b")]


def test_the_sample_has_the_first_few_of_each_reason() -> None:
    sample: list[Dropped] = []
    counts: Counter[str] = Counter()
    texts = ["x"] * 10 + [""] * 10 + ["long " * 100]
    list(clean(as_records(texts), level("light", max_characters=100), counts, sample, sample_size=2))
    assert [(dropped.where, dropped.reason) for dropped in sample] == [
        ("f:2", "duplicate"),
        ("f:3", "duplicate"),
        ("f:11", "too short"),
        ("f:12", "too short"),
        ("f:21", "too long"),
    ]
    assert len(sample[-1].excerpt) == 200
    assert counts["dropped: duplicate"] == 9


def test_counts_are_right_whenever_reading_stops() -> None:
    counts: Counter[str] = Counter()
    documents = clean(as_records(["a", "a", "b", "c"]), level("light"), counts)
    assert [next(documents), next(documents)] == ["a", "b"]
    assert counts == {"records": 3, "documents": 2, "dropped: duplicate": 1}


@given(st.lists(any_text), st.sampled_from(["none", "light", "full"]), st.integers(1, 3), st.booleans())
def test_every_record_is_accounted_for(texts: list[str], name: str, group_rows: int, is_bookcorpus: bool) -> None:
    rules = level(name, group_rows=group_rows, is_bookcorpus=is_bookcorpus)
    documents, counts = cleaned(texts, rules)
    assert counts.get("records", 0) == len(texts) and counts.get("documents", 0) == len(documents)
    of_rows = counts.get("dropped: empty row", 0) + counts.get("dropped: front matter", 0)
    groups = -(-(len(texts) - of_rows) // group_rows)
    of_documents = counts.get("dropped: too short", 0) + counts.get("dropped: duplicate", 0)
    assert groups == len(documents) + of_documents
    for document in documents:
        document.encode("utf8")
    if name != "none":
        assert len(set(documents)) == len(documents) and all(document.strip() for document in documents)


@given(st.lists(any_text))
def test_cleaning_what_is_clean_changes_nothing(texts: list[str]) -> None:
    once, _ = cleaned(texts, level("light", is_bookcorpus=True))
    again, counts = cleaned(once, level("light", is_bookcorpus=True))
    assert again == once
    assert set(counts) <= {"records", "documents"}


@given(st.lists(any_text))
def test_the_level_none_keeps_every_record_as_it_is(texts: list[str]) -> None:
    assert cleaned(texts, level("none"))[0] == texts


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((), CleanRules(controls=True, duplicates=True, min_characters=1)),
        (("CLEAN=none",), CleanRules()),
        (("CLEAN=none", "MIN_CHARS=20", "GROUP_ROWS=8"), CleanRules(min_characters=20, group_rows=8)),
        (("MIN_CHARS=0", "MAX_CHARS=9"), CleanRules(controls=True, duplicates=True, max_characters=9)),
        (("CLEAN=full",), CleanRules(True, True, True, False, True, 1)),
        (("DATASET=bc",), CleanRules(controls=True, front_matter=True, duplicates=True, min_characters=1)),
        (("DATASET=bc", "CLEAN=none"), CleanRules()),
    ],
)
def test_settings_choose_the_rules(settings: tuple[str, ...], expected: CleanRules) -> None:
    assert rules_of(load("cpu", arguments=settings, environ={})) == expected


def test_the_manifest_tells_rules_counts_and_the_versions_that_change_text() -> None:
    counts = Counter({"records": 2, "documents": 1, "dropped: duplicate": 1})
    told = described(level("full", max_characters=9), counts)
    assert json.loads(json.dumps(told)) == told
    assert told["rules"]["max_characters"] == 9 and told["rules"]["nfc"] is True
    assert told["counts"] == {"documents": 1, "dropped: duplicate": 1, "records": 2}
    assert set(told["versions"]) == {"ftfy", "unicode"}
    assert described(level("light"), counts)["versions"] == {}


@given(st.lists(any_text, min_size=1))
def test_written_lines_are_json_with_the_text_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.jsonl"
    write_documents(texts, path)
    expected = [json.dumps({"text": text}, ensure_ascii=False, separators=(",", ":")) for text in texts]
    assert path.read_bytes() == "".join(line + "\n" for line in expected).encode("utf8")


def test_the_level_none_trains_on_the_documents_that_megatron_makes(tmp_path: Path, plain_tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", MEGATRON_TEXTS)
    assert main([str(source), "--output", str(tmp_path / "clean.jsonl"), "--clean", "none"]) == 0
    encode(tmp_path / "clean.jsonl", plain_tokenizer, tmp_path / "ours")
    megatron_pair(tmp_path / "theirs", MEGATRON_TEXTS, plain_tokenizer)
    for ending in ("bin", "idx"):
        assert (tmp_path / f"ours.{ending}").read_bytes() == (tmp_path / f"theirs.{ending}").read_bytes()


def test_a_file_without_a_document_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"out\.jsonl: no document is left"):
        write_documents([], tmp_path / "out.jsonl")
    assert not list(tmp_path.iterdir())


def test_the_command_cleans_a_folder_and_prints_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_jsonl(folder / "2.jsonl", ["b", "a"])
    (folder / "1.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a\\u0007"}\n{"text": ""}\n'))
    assert main([str(folder), "--output", str(tmp_path / "out.jsonl"), "--show-dropped", "3"]) == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b'{"text":"a"}\n{"text":"b"}\n'
    said = capsys.readouterr()
    counts = json.loads(said.out)["counts"]
    assert (counts["records"], counts["documents"], counts["dropped: duplicate"]) == (4, 2, 1)
    assert f"{folder}/2.jsonl:2: duplicate: 'a'" in said.err and "1.jsonl.gz:2: too short: ''" in said.err


def test_the_same_input_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [f"text {number % 7} \x00 {number % 11}" for number in range(200)])
    outputs = []
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "data.clean", source, "--output", tmp_path / seed, "--clean", "full"]
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True)
        outputs.append((tmp_path / seed).read_bytes())
    assert outputs[0] == outputs[1] and outputs[0].count(b"\n") == 77


def test_a_bad_record_is_exit_1_and_leaves_nothing_or_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = write_jsonl(tmp_path / "in.jsonl", ["a", None, "b"]), tmp_path / "out.jsonl"
    assert main([str(source), "--output", str(output)]) == 1
    said = capsys.readouterr()
    assert said.out == "" and "in.jsonl:2: got text = None" in said.err and said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [source]
    assert main([str(source), "--output", str(output), "--on-bad", "skip", "--show-dropped", "1"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["counts"]["unreadable: no text in the column"] == 1
    assert "in.jsonl:2: unreadable: no text in the column" in said.err


@pytest.mark.parametrize(
    "fault",
    [
        *("gone", "output is input", "output is input by another path", "empty folder"),
        *("output is a symbolic link to the input", "output is a hard link to the input"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    source, output = tmp_path / "gone.jsonl", tmp_path / "out.jsonl"
    if fault == "output is input":
        source = output = write_jsonl(tmp_path / "in.jsonl", ["a"])
    if "link to the input" in fault:
        source = write_jsonl(tmp_path / "in.jsonl", ["a"])
        getattr(output, "symlink_to" if "symbolic" in fault else "hardlink_to")(source)
    if fault == "output is input by another path":
        source = write_jsonl(tmp_path / "in.jsonl", ["a"])
        output = tmp_path / ".." / tmp_path.name / "in.jsonl"
    if fault == "empty folder":
        source = tmp_path
    before = tree(tmp_path)
    assert main([str(source), "--output", str(output)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1
    assert tree(tmp_path) == before
