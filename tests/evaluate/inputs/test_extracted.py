"""A result that was made from a log is found in a folder under any name; other JSON files are left alone."""

from __future__ import annotations

import json

from evaluate import extract
from evaluate.checks.entries import load_results
from evaluate.inputs import extracted
from tests.support.example import example_result
from utils.results import store
from utils.settings.config import ROOT

LOG = ROOT / "tests" / "utils" / "logs" / "samples" / "primus_a.log"


def test_a_result_of_a_log_is_found_under_any_name_and_once(tmp_path):
    folder = tmp_path / "results"
    result = example_result(source="log")
    store.write(result, folder / "R.json")
    store.write(result, folder / "deeper" / "train_amd_mega_llama_run1.json")
    (folder / "S.json").symlink_to(folder / "R.json")
    found = list(extracted.find([folder, folder / "R.json", folder]))
    assert [path.name for path in found] == ["R.json"]
    assert len(load_results([folder]).entries) == 2


def test_other_files_are_left_alone(tmp_path):
    store.write(example_result(), tmp_path / "copy_of_a_result.json")
    for name, text in (("a.json", "{"), ("b.json", "[]"), ("c.json", ""), ("d.json", json.dumps({"source": "log"}))):
        (tmp_path / name).write_text(text)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "nowhere.json").symlink_to(tmp_path / "missing")
    store.write(example_result(source="log"), tmp_path / store.SUPERSEDED / "R.json")
    assert list(extracted.find([tmp_path])) == []


def test_what_extract_writes_under_any_name_is_found(tmp_path):
    sizes = ("--num-gpus", "8", "--global-batch-size", "64", "--sequence-length", "4096")
    path = tmp_path / "R.json"
    assert extract.main(["--log-file", str(LOG), "--model-name", "llama", *sizes, "--output", str(path)]) == 0
    assert list(extracted.find([tmp_path])) == [path]
    (entry,) = load_results([tmp_path]).entries
    assert entry.is_counted
