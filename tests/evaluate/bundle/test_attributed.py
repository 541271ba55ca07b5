"""An archive whose comparison has a gap by kind, or an attribution of an earlier suite: neither is recalculated."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundles import edited, pack, packed_again, write_run
from profiles import write_profile
from sides import run

from evaluate import compare
from evaluate.bundle.check import check
from utils.housekeeping import footprint


def archive(folder: Path, *, with_profile: bool) -> Path:
    folder.mkdir()
    footprint.mark(folder, footprint.OUTPUT)
    for platform, seconds in (("nvd", 1.0), ("amd", 1.1)):
        results = [run(platform, number, seconds) for number in (1, 2, 3)]
        for result in results:
            write_run(folder, result)
        if with_profile:
            write_profile(folder, results[0])
    assert compare.main([str(folder)]) == 0
    return pack(folder)


OF_AN_EARLIER_SUITE = {"a": None, "b": None, "hardware": {"value": 0.9, "low": None, "high": None}, "refused": ""}


@pytest.mark.parametrize(
    ("with_profile", "earlier", "count"), [(True, None, 1), (False, OF_AN_EARLIER_SUITE, 1), (False, None, 0)]
)
def test_why_is_not_recalculated_and_a_note_says_so(
    tmp_path: Path, with_profile: bool, earlier: object, count: int
) -> None:
    path = archive(tmp_path / "output", with_profile=with_profile)

    def change(files: dict[str, bytes]) -> None:
        if earlier:
            with edited(files, "compare.json") as content:
                content["verdicts"][0]["why"] = earlier

    checked = check(packed_again(path, change, is_listed=True))
    assert checked.faults == ()
    assert len([note for note in checked.notes if "rests on profiles, which no archive holds" in note]) == count


def test_the_comparison_of_an_earlier_version_without_the_key_has_no_fault_for_it(tmp_path: Path) -> None:
    path = archive(tmp_path / "output", with_profile=False)

    def change(files: dict[str, bytes]) -> None:
        with edited(files, "compare.json") as content:
            for verdict in content["verdicts"]:
                del verdict["why"]

    assert check(packed_again(path, change, is_listed=True)).faults == ()
