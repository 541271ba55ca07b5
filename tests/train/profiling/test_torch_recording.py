"""A trace has every profiled step under its own number; a file that cannot be written is a reason and no error."""

import errno
import gzip
import json
from pathlib import Path

import pytest
import torch

from evaluate.timing import breakdown
from train.profiling import torch_recording
from train.profiling.torch_recording import NO_ALLOCATOR, TorchRecording
from train.profiling.trace_file import TraceError, require_whole
from utils.provenance.digests import sha256_file
from utils.settings.profiling import Profile


def recorded(folder, rank=0, **options):
    """Record steps 11 to 13 of one product each."""
    recording = TorchRecording(Profile(11, 13, (0,), **options), folder, rank)
    matrix = torch.ones(64, 64)
    recording.start()
    for number in recording.steps:
        recording.begin_step(number)
        matrix @ matrix
        recording.end_step()
    recording.stop()
    return recording


def test_steps_are_marked_by_their_number_and_operators_have_shapes(tmp_path):
    recording = recorded(tmp_path / "new" / "folder")
    path = tmp_path / "new" / "folder" / "rank0.json.gz"
    assert [one.name for one in path.parent.iterdir()] == [path.name], "no temporary file is left"
    assert (recording.trace.file, recording.trace.sha256) == (path.name, sha256_file(path))
    assert recording.reasons == {}
    found = breakdown.of_file(path)
    assert found.steps == (11, 12, 13)
    (product,) = [row for row in found.operators if row.name == "aten::mm"]
    assert (product.count, product.work.sizes) == (1, "(64, 64) x (64, 64)")


def test_a_rank_that_is_not_recorded_writes_nothing(tmp_path):
    recording = recorded(tmp_path / "profile", rank=1)
    assert recording.trace is None and recording.reasons == {} and not (tmp_path / "profile").exists()


def test_with_memory_the_trace_of_a_cpu_has_the_allocations(tmp_path):
    plain, full = recorded(tmp_path / "plain"), recorded(tmp_path / "full", with_memory=True)
    names = [{event.get("name") for event in events(tmp_path / name)} for name in ("plain", "full")]
    assert ["[memory]" in one for one in names] == [False, True]
    assert plain.reasons == {} and full.reasons == {"rank0_memory": NO_ALLOCATOR}


def events(folder):
    return json.loads(gzip.decompress((folder / "rank0.json.gz").read_bytes()))["traceEvents"]


def test_a_full_disk_is_a_reason_and_leaves_no_file(tmp_path, monkeypatch, capsys):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("train.profiling.trace_file.compress", full)
    recording = recorded(tmp_path)
    assert recording.trace is None and "is full" in recording.reasons["rank0"]
    assert list(tmp_path.iterdir()) == []
    assert "warning: profile: rank0: the disk of" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_a_reason(tmp_path):
    (tmp_path / "file").write_text("of a user")
    recording = recorded(tmp_path / "file" / "profile")
    assert recording.trace is None and "rank0" in recording.reasons
    assert (tmp_path / "file").read_text() == "of a user"


def test_a_profiler_that_cannot_start_is_a_reason_and_the_steps_go_on(tmp_path, monkeypatch):
    def refuse(**options):
        raise RuntimeError("Can't disable Kineto profiler when it's not running")

    monkeypatch.setattr(torch_recording, "_profiler", refuse)
    recording = recorded(tmp_path / "profile")
    assert "torch.profiler cannot start" in recording.reasons["rank0"] and recording.trace is None


def test_a_trace_that_is_cut_off_is_refused_and_a_whole_one_is_not(tmp_path):
    recorded(tmp_path)
    whole = gzip.decompress((tmp_path / "rank0.json.gz").read_bytes())
    path = tmp_path / "trace.json"
    path.write_bytes(whole)
    require_whole(path)
    last_event = whole.rindex(b"}", 0, whole.rindex(b'"traceName"'))
    for length in (0, 1, len(whole) // 2, last_event + 1, len(whole) - 3):
        path.write_bytes(whole[:length])
        with pytest.raises(TraceError, match="no complete trace"):
            require_whole(path)
    with pytest.raises(TraceError, match="0 bytes"):
        require_whole(Path(tmp_path / "missing"))
