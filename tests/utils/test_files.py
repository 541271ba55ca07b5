"""Files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from utils.files import written_whole


def test_files_get_their_names_only_at_the_end(tmp_path: Path) -> None:
    first, second = tmp_path / "deep" / "a.bin", tmp_path / "deep" / "a.idx"
    with written_whole(first, second) as (one, two):
        one.write_text("1")
        two.write_text("2")
        assert not first.exists() and not second.exists()
    assert (first.read_text(), second.read_text()) == ("1", "2")
    assert len(list(first.parent.iterdir())) == 2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_after_an_error_nothing_is_left_and_what_was_there_stays(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.bin"
    path.write_text("before")
    with pytest.raises(error), written_whole(path, tmp_path / "a.idx") as (one, _):
        one.write_text("half")
        raise error
    assert [found.name for found in tmp_path.iterdir()] == ["a.bin"]
    assert path.read_text() == "before"


def test_a_file_that_was_not_written_names_none_of_them(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), written_whole(tmp_path / "a", tmp_path / "b") as (one, _):
        one.write_text("1")
    assert not list(tmp_path.iterdir())
