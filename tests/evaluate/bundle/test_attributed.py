"""An archive whose comparison has a gap by kind, or an attribution of an earlier suite: neither is recalculated."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundles import edited, pack, packed_again, written
from changes import Change, nothing, of
from profiles import write_profile
from sides import runs

from evaluate import compare, validate


def archive(folder: Path, *, with_profile: bool) -> Path:
    for platform, seconds in (("nvd", 1.0), ("amd", 1.1)):
        results = runs(platform, seconds)
        written(folder, results)
        if with_profile:
            write_profile(folder, results[0])
    assert compare.main([str(folder)]) == 0
    return pack(folder)


OF_AN_EARLIER_SUITE = {"a": None, "b": None, "hardware": {"value": 0.9, "low": None, "high": None}, "refused": ""}


@pytest.mark.parametrize(
    ("with_profile", "change", "count"),
    [
        (True, nothing, 1),
        (False, of(why=OF_AN_EARLIER_SUITE), 1),
        (False, nothing, 0),
        (False, lambda verdict: verdict.pop("why"), 0),  # an earlier version without the key
    ],
)
def test_why_is_not_recalculated_and_a_note_says_so(
    tmp_path: Path, with_profile: bool, change: Change, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = archive(tmp_path / "output", with_profile=with_profile)

    def change_verdict(files: dict[str, bytes]) -> None:
        with edited(files, "compare.json") as content:
            change(content["verdicts"][0])

    assert validate.main(["--bundle", str(packed_again(path, change_verdict, is_listed=True))]) == 0
    assert capsys.readouterr().err.count("rests on profiles, which no archive holds") == count
