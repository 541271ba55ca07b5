"""A job can write its result on a full disk, and the files of a killed writer are removed."""

import errno
import os

import pytest

from train.job.job import RESERVE_BYTES, release_reserve, remove_leftovers, reserve


def test_reserve_takes_real_room_and_gives_it_back(tmp_path):
    path = tmp_path / "train_cpu_hf_llama_run1.json"
    reserve(path)
    (taken,) = tmp_path.iterdir()
    assert taken.stat().st_blocks * 512 >= RESERVE_BYTES
    release_reserve(path)
    assert list(tmp_path.iterdir()) == []


def test_no_reserve_is_left_where_the_disk_has_no_room(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        reserve(tmp_path / "train_cpu_hf_llama_run1.json")
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_this_result_alone_are_removed(tmp_path):
    mine = tmp_path / "train_cpu_hf_llama_run1.json"
    kept = [mine, tmp_path / ".train_cpu_hf_llama_run10.json.abc", tmp_path / "train_cpu_hf_llama_run1.json.abc"]
    for path in [*kept, tmp_path / ".train_cpu_hf_llama_run1.json.x3k"]:
        path.write_text("half")
    reserve(mine)
    remove_leftovers(mine)
    assert sorted(tmp_path.iterdir()) == sorted(kept)
