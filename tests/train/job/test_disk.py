"""A disk that refuses is the reason of a job in one sentence with folder and free bytes, not a line of a traceback."""

import errno
import os
import subprocess
import sys

import numpy as np
import pytest

from train.job import disk
from train.job.rank_output import RankOutput
from train.job.report import classify


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a disk of its own, with 4 KiB free."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    (folder / "filler").write_bytes(bytes((1 << 20) - 4096))
    yield folder
    subprocess.run(["umount", folder], check=True)


def raised(function, *arguments):
    with pytest.raises(OSError) as caught:
        function(*arguments)
    return caught.value


def save(path):
    np.save(path, np.zeros(100_000))


def write(path):
    path.write_bytes(bytes(100_000))


@pytest.mark.parametrize("writer", [save, write])
def test_full_disk_is_named_with_its_free_bytes(full_disk, tmp_path, writer):
    error = raised(writer, full_disk / "file")
    free = os.statvfs(full_disk).f_bavail * 4096
    assert classify(error, [tmp_path, full_disk]) == (
        "failed",
        f"the disk of {full_disk} is full ({free:,} bytes free)",
    )
    assert free <= 4096


def test_error_that_names_its_file_names_the_folder_and_one_that_another_error_hides_is_found(tmp_path):
    try:
        try:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(tmp_path / "gone" / "file"))
        except OSError as cause:
            raise RuntimeError("cannot save") from cause
    except RuntimeError as error:
        assert disk.reason(error, []) == f"the disk quota for {tmp_path / 'gone'} is used up"


def test_full_disk_of_a_folder_that_is_gone_is_that_of_the_folder_above(tmp_path):
    reason = disk.reason(OSError(errno.ENOSPC, "No space left on device"), [tmp_path / "gone"])
    assert reason.startswith(f"the disk of {tmp_path / 'gone'} is full (")


def test_limit_of_a_file_is_named(tmp_path):
    script = (
        "import resource, signal, sys; from pathlib import Path; from train.job import disk\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try:\n    Path(sys.argv[1], 'file').write_bytes(bytes(2000))\n"
        "except OSError as error:\n    print(disk.reason(error, [Path(sys.argv[1])]))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == f"a file in {tmp_path} is larger than allowed (ulimit -f)"


def test_other_errors_are_none_of_the_disk(tmp_path):
    error = raised((tmp_path / "missing").read_bytes)
    assert disk.reason(error, [tmp_path]) is None and disk.reason(KeyError("No space left"), [tmp_path]) is None
    assert classify(error, [tmp_path])[1].endswith(f"No such file or directory: '{tmp_path / 'missing'}'")


def test_log_on_a_full_disk_ends_with_the_same_sentence(full_disk):
    output = RankOutput(full_disk / "log")
    output.take("word " * 2000 + "\n")
    assert output.log_error is not None and output.log_error.startswith(f"the disk of {full_disk} is full (")
