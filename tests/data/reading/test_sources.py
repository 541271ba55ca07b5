"""A local source gives an unambiguous list of files in a fixed order; an ambiguous source is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.reading.sources import compression, find, kind
from utils.errors import UnusableError


def make(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return [folder / name for name in names]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jsonl", ("JSON lines", None)),
        ("c4-train.00000-of-01024.json.gz", ("JSON lines", ".gz")),
        ("a.v2.jsonl.zst", ("JSON lines", ".zst")),
        ("book.txt", ("plain text", None)),
        ("book.txt.gz", ("plain text", ".gz")),
        ("a.parquet", ("Parquet", None)),
        ("a.parquet.gz", (None, ".gz")),
        ("README.md", (None, None)),
        ("a.gz", (None, ".gz")),
        ("jsonl", (None, None)),
    ],
)
def test_the_ending_gives_the_kind_of_a_file(name: str, expected: tuple[str | None, str | None]) -> None:
    assert (kind(Path(name)), compression(Path(name))) == expected


def test_a_folder_is_all_its_files_by_path_without_hidden_and_foreign_ones(tmp_path: Path) -> None:
    make(tmp_path, "b.jsonl", "a/z.jsonl.gz", "a/1.jsonl", "README.md", ".cache/x.jsonl", ".hidden.jsonl", "a/card.png")
    assert [path.relative_to(tmp_path).as_posix() for path in find(tmp_path)] == [
        "a/1.jsonl",
        "a/z.jsonl.gz",
        "b.jsonl",
    ]


def test_a_glob_is_sorted_and_reaches_below_with_two_stars(tmp_path: Path) -> None:
    make(tmp_path, "3.jsonl", "1.jsonl", "deep/2.jsonl", "other.txt")
    assert [path.name for path in find(tmp_path / "*.jsonl")] == ["1.jsonl", "3.jsonl"]
    assert len(find(tmp_path / "**" / "*.jsonl")) == 3


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    path, _ = make(tmp_path, "a[1].jsonl", "a1.jsonl")
    assert find(path) == [path]


@pytest.mark.parametrize(
    ("names", "source", "message"),
    [
        ([], "gone.jsonl", "gone.jsonl: no such file or folder"),
        ([], "*.jsonl", r"\*.jsonl: contains no file"),
        (["README.md"], ".", "contains no file that can be read"),
        (["a.md"], "a.md", "a.md: unknown file ending"),
        (["a.md", "b.jsonl"], "*", "a.md: unknown file ending"),
        (
            ["a.jsonl", "README.txt"],
            ".",
            r"contains plain text \(README.txt\) and JSON lines \(a.jsonl\); choose one kind",
        ),
        (["a.jsonl", "a.jsonl.gz"], ".", "a.jsonl.gz: a.jsonl beside it would be read too"),
        (["a.jsonl", "a.jsonl.zst"], "*", "a.jsonl.zst: a.jsonl beside it would"),
    ],
)
def test_what_is_not_there_or_not_plain_is_refused(tmp_path: Path, names: list[str], source: str, message: str) -> None:
    make(tmp_path, *names)
    with pytest.raises(UnusableError, match=message):
        find(tmp_path / source)
