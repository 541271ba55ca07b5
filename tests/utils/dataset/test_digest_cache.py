"""A data file is read for its digest once, by whichever process comes first, and again only when it has changed."""

import hashlib
import json
import os

import pytest
from settings_of import settings_of
from toydata import write_toy_data

from data import prepare
from train.runner import plan
from utils.dataset import digest_cache, gpt_dataset, indexed

bin_path, describe = indexed.bin_path, gpt_dataset.describe

SHORT = ("TRAIN_ITERS=1", "WARMUP_ITERS=0", "GBS=16")


@pytest.fixture
def reads(monkeypatch):
    """Names of the files that were read whole for their digest."""
    found = []

    def counted(path):
        found.append(path.name)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    for module in (digest_cache, gpt_dataset):
        monkeypatch.setattr(module, "sha256_file", counted)
    return found


@pytest.fixture
def prefix(tmp_path):
    return write_toy_data(tmp_path / "pair" / "text", documents=30)


def test_matrix_launcher_and_eight_ranks_read_a_pair_once(prefix, tmp_path, reads):
    config = settings_of(f"DATASET={prefix}", f"DATA_DIR={tmp_path / 'cache'}", *SHORT)
    prepare.prepare_all(config)
    digests = plan.data_digests(config)
    ranks = [describe(prefix, config.data_dir)["bin_sha256"] for _ in range(1 + 8)]
    assert reads == ["text.bin", "text.idx"]
    assert {*digests.values(), *ranks} == {hashlib.sha256(bin_path(prefix).read_bytes()).hexdigest()}
    assert {path.name for path in prefix.parent.iterdir()} == {"text.bin", "text.idx"}  # a user's folder stays as it is


def test_pair_that_was_made_here_is_not_read_again_after_it_was_verified(tmp_path, reads):
    config = settings_of("DATASET=synth", f"DATA_DIR={tmp_path}", *SHORT)
    ((prefix, manifest),) = prepare.prepare_all(config)
    assert reads == [] and manifest == indexed.load_manifest(prefix)


@pytest.mark.parametrize("change", ["new time", "old time", "another file"])
def test_file_of_the_same_size_that_has_changed_is_read_again(change, prefix, tmp_path):
    before = describe(prefix, tmp_path)["bin_sha256"]
    path, status = bin_path(prefix), bin_path(prefix).stat()
    target = path.with_name("other") if change == "another file" else path
    target.write_bytes(path.read_bytes()[::-1])
    if change != "new time":
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    target.replace(path)
    after = describe(prefix, tmp_path)["bin_sha256"]
    assert after == hashlib.sha256(path.read_bytes()).hexdigest() != before


@pytest.mark.parametrize("content", ["", "[]", '{"%s": 1}', '{"%s": {"sha256": "0"}}'])
def test_damaged_record_costs_another_read(content, prefix, tmp_path, reads):
    (tmp_path / digest_cache.NAME).write_text(content.replace("%s", str(bin_path(prefix))))
    assert describe(prefix, tmp_path) == describe(prefix)
    assert json.loads((tmp_path / digest_cache.NAME).read_text()).keys() == {
        str(bin_path(prefix)),
        str(prefix.with_suffix(".idx")),
    }


def test_nothing_is_recorded_where_nothing_may_be_written(prefix, tmp_path):
    describe(prefix, tmp_path / "new", is_recorded=False)
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").touch()
    assert describe(prefix, tmp_path / "file" / "data") == describe(prefix)
