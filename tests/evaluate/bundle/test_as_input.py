"""An output.zip is compared as the folder that it was packed from, unless something in it was changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from evaluate import compare
from tests.support import bundles
from utils.housekeeping import footprint

SECONDS = {"nvd": 1.0, "amd": 0.9}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def machines(tmp_path):
    """Folders of two machines, by platform, each beside its archive."""
    found = {}
    for platform, seconds in SECONDS.items():
        folder = tmp_path / platform
        footprint.mark(folder, footprint.OUTPUT)
        for result in bundles.sides({platform: seconds}, runs=3):
            bundles.write_run(folder, result)
        shutil.move(bundles.pack(folder), tmp_path / f"{platform}.zip")
        found[platform] = folder
    return found


def verdict_of(folder: Path) -> dict[str, object]:
    """Return the verdict without the names of files, which are those in an archive or in a folder."""
    text = (folder / "compare.json").read_text().replace(".zip/", "/")
    (verdict,) = json.loads(text)["verdicts"]
    return verdict


def archives(machines: dict[str, Path]) -> list[str]:
    return [f"{folder}.zip" for folder in machines.values()]


def test_two_archives_have_the_verdict_of_their_folders_in_a_folder_of_its_own(here, machines):
    assert compare.main([*map(str, machines.values()), "--output", "of_folders"]) == 0
    before = {path: path.read_bytes() for path in map(Path, archives(machines))}
    assert compare.main(archives(machines)) == 0
    zipped, plain = verdict_of(here / "comparison"), verdict_of(here / "of_folders")
    assert zipped == plain
    assert zipped["verdict"] == "faster"
    assert {path: path.read_bytes() for path in before} == before
    assert sorted(path.name for path in here.iterdir()) == ["comparison", "of_folders"]


def test_an_archive_and_a_folder_are_compared_with_each_other(here, machines):
    assert compare.main([f"{machines['amd']}.zip", str(machines["nvd"]), "--format", "json"]) == 0
    assert verdict_of(here / "comparison")["verdict"] == "faster"
    assert not list(machines["nvd"].glob("compare.*")), "no input is changed"


def test_an_archive_named_twice_counts_once(here, machines):
    twice = f"{machines['amd']}.zip"
    link = here / "again.zip"
    link.symlink_to(twice)
    assert compare.main([*archives(machines), twice, str(link), "--format", "json"]) == 0
    assert [len(files) for files in verdict_of(here / "comparison")["files"]] == [3, 3]


def test_a_changed_archive_is_not_compared_and_an_earlier_report_stays(here, machines, capsys):
    def faster(files):
        (name, *_) = (name for name in files if name.startswith("train_amd"))
        files[name] = files[name].replace(b'"model": "llama"', b'"model": "qwen"')

    assert compare.main([*archives(machines), "--format", "json"]) == 0
    earlier = (here / "comparison" / "compare.json").read_bytes()
    bundles.packed_again(Path(f"{machines['amd']}.zip"), faster, is_listed=False)
    capsys.readouterr()
    assert compare.main([*archives(machines), "--format", "json"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and "amd.zip" in line and "was changed" in line and "evaluate.validate" in line
    assert (here / "comparison" / "compare.json").read_bytes() == earlier


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04"])
def test_a_file_that_is_no_archive_is_one_line(here, content, capsys):
    (here / "amd.zip").write_bytes(content)
    assert compare.main(["amd.zip"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: amd.zip: ")
    assert not (here / "comparison").exists()


def test_a_comparison_without_a_valid_result_keeps_the_earlier_report(here, machines, capsys):
    folder = machines["amd"]
    assert compare.main([str(folder), "--format", "json"]) == 3
    earlier = (folder / "compare.json").read_bytes()
    for path in folder.glob("train_*.json"):
        result = json.loads(path.read_text())
        path.write_text(json.dumps(result | {"status": "failed", "reason": "a rank was ended by SIGKILL"}))
    capsys.readouterr()
    assert compare.main([str(folder), "--format", "json"]) == 1
    assert "kept the earlier" in capsys.readouterr().err
    assert (folder / "compare.json").read_bytes() == earlier
