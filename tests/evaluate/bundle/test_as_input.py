"""An output.zip is compared as the folder that it was packed from, unless something in it was changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from bundles import faults, pack, packed_again, sides, written
from checkout import ROOT
from housekeeping import write_result
from reports import refused
from sides import both, put, run, summarise

from evaluate import compare


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


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
    (verdict,) = json.loads((folder / "compare.json").read_text().replace(".zip/", "/"))["verdicts"]
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


# A result of Primus against the log that Primus itself wrote.


def test_a_result_of_primus_is_checked_against_the_log_of_primus(tmp_path):
    """The log has six iterations on 8 GPUs, with 64 sequences of 4096 tokens."""
    folder = written(tmp_path / "output", [])
    result = run("amd", framework="prim", **both(max_steps=6, sequence_length=4096))
    result |= {"steps": [1, 2, 3, 4, 5, 6], "step_times": [20.0, 4.096, 4.0, 2.0, 3.2, 2.56]}
    result |= {"loss_values": [11.75, 11.5, 11.25, 11.0, 10.75, 10.5], "grad_norms": [8.5, 7.25, 6.125, 5.5, 4.75, 4.0]}
    result |= {"data_wait_seconds": [0.0] * 6, "learning_rates": [0.0] * 6}
    summarise(result)
    log = folder / "logs" / "train_amd_prim_llama_run1_attempt1.primus.log"
    log.parent.mkdir()
    shutil.copy(ROOT / "tests" / "utils" / "logs" / "samples" / "primus_a.log", log)

    def found(**changes):
        write_result(folder, put(result, changes))
        return " ".join(faults(pack(folder)))

    assert found() == ""
    wrong, name = {"loss_values": [11.75, 11.5, 11.25, 11.0, 10.75, 10.0]}, "train_amd_prim_llama_run1.json: "
    assert f"{name}loss_values: step 6: the result has 10.0, the log 10.5" in found(**wrong)
    half = f"{name}training_config.global_batch_size: the result has 32, the log 64"
    assert half in found(training_config__global_batch_size=32)
    log.unlink()
    assert f"{name}logs/{log.name}: is missing" in found()
