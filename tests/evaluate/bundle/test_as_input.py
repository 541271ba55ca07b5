"""An output.zip is compared as the folder that it was packed from, unless something in it was changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from bundles import pack, packed_again, sides, written
from reports import refused

from evaluate import compare


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
    for platform, seconds in (("nvd", 1.0), ("amd", 0.9)):
        found[platform] = written(tmp_path / platform, sides({platform: seconds}, runs=3))
        shutil.move(pack(found[platform]), tmp_path / f"{platform}.zip")
    return found


def verdict_of(folder: Path) -> dict[str, object]:
    """Return the verdict without the names of files, which are those in an archive or in a folder."""
    text = (folder / "compare.json").read_text().replace(".zip/", "/")
    (verdict,) = json.loads(text)["verdicts"]
    return verdict


def archives(machines: dict[str, Path]) -> list[str]:
    return [f"{folder}.zip" for folder in machines.values()]


def test_two_archives_have_the_verdict_of_their_folders_in_a_folder_of_its_own(here, machines):
    before = {path: Path(path).read_bytes() for path in archives(machines)}
    assert compare.main([*map(str, machines.values()), "--output", "of_folders", "--format", "json"]) == 0
    assert compare.main([*archives(machines), "--format", "json"]) == 0
    assert verdict_of(here / "comparison") == verdict_of(here / "of_folders")
    assert {path: Path(path).read_bytes() for path in before} == before
    assert sorted(path.name for path in here.iterdir()) == ["comparison", "of_folders"]


def test_an_archive_and_a_folder_are_compared_and_one_named_twice_counts_once(here, machines):
    twice = f"{machines['amd']}.zip"
    (here / "again.zip").symlink_to(twice)
    assert compare.main([twice, str(machines["nvd"]), twice, str(here / "again.zip"), "--format", "json"]) == 0
    verdict = verdict_of(here / "comparison")
    assert (verdict["verdict"], [len(files) for files in verdict["files"]]) == ("faster", [3, 3])
    assert not list(machines["nvd"].glob("compare.*")), "no input is changed"


def test_a_changed_archive_is_not_compared_and_an_earlier_report_stays(here, machines):
    def other_model(files):
        (name, *_) = (name for name in files if name.startswith("train_amd"))
        files[name] = files[name].replace(b'"model": "llama"', b'"model": "qwen"')

    assert compare.main([*archives(machines), "--format", "json"]) == 0
    earlier = (here / "comparison" / "compare.json").read_bytes()
    packed_again(Path(f"{machines['amd']}.zip"), other_model, is_listed=False)
    line = refused(compare.main, *archives(machines), "--format", "json")
    assert "amd.zip" in line and "was changed" in line and "evaluate.validate" in line
    assert (here / "comparison" / "compare.json").read_bytes() == earlier


def test_a_comparison_without_a_valid_result_keeps_the_earlier_report(machines, capsys):
    folder = machines["amd"]
    assert compare.main([str(folder), "--format", "json"]) == 3
    earlier = (folder / "compare.json").read_bytes()
    for path in folder.glob("train_*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "failed", "reason": "ended by SIGKILL"}))
    assert compare.main([str(folder), "--format", "json"]) == 1
    assert "kept the earlier" in capsys.readouterr().err
    assert (folder / "compare.json").read_bytes() == earlier
