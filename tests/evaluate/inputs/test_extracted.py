"""A result that was made from a log is found in a folder under any name; other JSON files are left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkout import ROOT

from evaluate import extract, frame
from example import example_result

LOG = ROOT / "tests" / "utils" / "logs" / "samples" / "primus_a.log"


def found(*folders):
    return [Path(file).name for file in frame.load(*folders).file]


def test_a_result_of_a_log_is_found_under_any_name_and_once(tmp_path):
    (tmp_path / "deeper").mkdir()
    text = json.dumps(example_result(source="log"), indent=1)
    (tmp_path / "R.json").write_text(text)
    (tmp_path / "deeper" / "train_amd_mega_llama_run1.json").write_text(text)
    (tmp_path / "S.json").symlink_to(tmp_path / "R.json")
    assert sorted(found(tmp_path, tmp_path)) == ["R.json", "train_amd_mega_llama_run1.json"]


def test_other_files_are_left_alone(tmp_path):
    (tmp_path / "copy_of_a_result.json").write_text(json.dumps(example_result()))
    for name, text in (("a.json", "{"), ("b.json", "[]"), ("c.json", ""), ("d.json", json.dumps({"source": "log"}))):
        (tmp_path / name).write_text(text)
    for folder in ("folder.json", "superseded"):
        (tmp_path / folder).mkdir()
    (tmp_path / "nowhere.json").symlink_to(tmp_path / "missing")
    (tmp_path / "superseded" / "R.json").write_text(json.dumps(example_result(source="log"), indent=1))
    with pytest.raises(ValueError, match="no result|wanted"):
        found(tmp_path)


def test_what_extract_writes_under_any_name_is_found(tmp_path):
    sizes = ("--num-gpus", "8", "--global-batch-size", "64", "--sequence-length", "4096")
    path = tmp_path / "R.json"
    assert extract.main(["--log-file", str(LOG), "--model-name", "llama", *sizes, "--output", str(path)]) == 0
    assert list(frame.load(tmp_path).is_counted) == [True]
