"""The files of a comparison: why.png is written with the others, only if a pair has an attribution."""

from __future__ import annotations

import pytest
from explained import attributed, comparison, refused

from evaluate.comparing import writing
from utils.errors import ForeignFileError
from utils.own_files import is_png

NAMES = ["compare.html", "compare.json", "compare.md", "compare.png"]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(autouse=True)
def without_the_large_picture(monkeypatch):
    """Replace compare.png, which takes seconds, by one pixel's worth of bytes."""
    monkeypatch.setattr("evaluate.report.plots.png", lambda _: b"\x89PNG tEXtSoftware\0tprimat")


def test_the_picture_is_written_with_the_others(tmp_path):
    writing.write(comparison(attributed()), tmp_path)
    assert names(tmp_path) == [*NAMES, "why.png"]
    assert is_png(tmp_path / "why.png")
    writing.write(comparison(attributed()), tmp_path)  # ours is replaced


@pytest.mark.parametrize("why", [None, refused("no probe")])
def test_without_an_attribution_there_is_no_picture_and_an_earlier_one_goes(tmp_path, why):
    writing.write(comparison(why), tmp_path)
    assert names(tmp_path) == NAMES
    writing.write(comparison(attributed()), tmp_path)
    writing.write(comparison(why), tmp_path, ("md",))
    assert "why.png" in names(tmp_path), "another format does not touch it"
    writing.write(comparison(why), tmp_path)
    assert names(tmp_path) == NAMES


def test_formats_without_png_write_no_picture(tmp_path):
    writing.write(comparison(attributed()), tmp_path, ("md", "html"))
    assert names(tmp_path) == ["compare.html", "compare.md"]


def test_a_picture_of_a_user_stays(tmp_path):
    (tmp_path / "why.png").write_bytes(b"\x89PNG of a user")
    with pytest.raises(ForeignFileError, match="why.png"):
        writing.check_picture(comparison(attributed()), tmp_path)
    with pytest.raises(ForeignFileError, match="why.png"):
        writing.write(comparison(attributed()), tmp_path)
    writing.check_picture(comparison(None), tmp_path)
    writing.check_picture(comparison(attributed()), tmp_path, ("md",))
    writing.write(comparison(None), tmp_path)
    assert names(tmp_path) == [*NAMES, "why.png"]
    assert (tmp_path / "why.png").read_bytes() == b"\x89PNG of a user"
