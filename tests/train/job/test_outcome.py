"""However a job ends, it leaves one result with the status, the reason and the exit code that belong to its end.

Stand-in ranks end in a chosen way under the real launcher. No process and no temporary folder outlives its job, not
even one in a session of its own or of a killed launcher.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from signal import SIGABRT, SIGKILL, SIGSEGV
from unittest.mock import Mock

import psutil
import pytest
from processes import wait_until_gone

from tests.support.launching import Launcher

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a disk needs root")
# printed by torchrun of torch 2.13 when rank 1 of two was killed and rank 0 then lost its connection
REPORT = """\
[rank0]: RuntimeError: Connection closed by peer [127.0.0.1]:2246
W1121 10:11:26.100000 18609 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 18623 closing signal SIGTERM
E1121 10:11:26.155000 18609 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) local_rank: 1 (pid: 18624) of binary: python
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 18623)
Root Cause (first observed failure):
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 18624)
"""  # noqa: E501
FORCED = "W1121 10:11:56.1 1 api.py:9] Unable to shutdown process 18624 via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL\n"  # noqa: E501
FAILED = "result(status='failed', reason='Traceback\\nRuntimeError: Connection closed by peer'); "
OOM, INTERRUPT = "result(status='oom', reason='out of memory'); ", "os.kill(os.getppid(), 2); time.sleep(60)"
TERMINATE = "os.kill(os.getppid(), 15); time.sleep(60)"


def torchrun(code: int, said: str = "") -> str:
    """Return the code that prints torchrun's report of a rank that ended with `code`, and ends as torchrun does."""
    return f"print({said + REPORT.format(code=code)!r}); sys.exit(1)"


ENDS = {
    "ok": ("result()", (), 0, "ok", None),
    "the trainer's own failure": ("step(3); " + FAILED + "sys.exit(1)", (), 1, "failed", "^Traceback\nRuntimeError: C"),
    "oom outranks the signals that follow": (OOM + torchrun(-SIGKILL), (), 1, "oom", "^out of memory$"),
    "an abort follows from another's error": (FAILED + torchrun(-SIGABRT), (), 1, "failed", "^Traceback\nRuntimeError"),
    "interrupted when all was written": ("result(); " + INTERRUPT, (), 130, "ok", None),
    "interrupted": ("step(3); " + INTERRUPT, (), 130, "failed", "^interrupted by SIGINT after step 3 of 6 "),
    "interrupted, the neighbour wrote first": (FAILED + INTERRUPT, (), 130, "failed", "^interrupted by SIGINT before"),
    "the first of two signals counts": (
        *("signal.signal(15, lambda *_: [os.kill(os.getppid(), 2), os._exit(0)]); " + TERMINATE, ()),
        *(143, "failed", "^interrupted by SIGTERM before"),
    ),
    "hangs between steps": (
        *("step(3); " + FAILED + "time.sleep(60)", ("STEP_TIMEOUT_SECONDS=1",), 124, "timeout"),
        r"nothing was finished in the \d+ s after step 3 of 6 .*\(STEP_TIMEOUT_SECONDS=1\)",
    ),
    "slow between steps, as is allowed": (  # a busy machine needs seconds to start the stand-in
        *("step(3); time.sleep(9); result()", ("START_TIMEOUT_SECONDS=8", "STEP_TIMEOUT_SECONDS=60"), 0, "ok", None),
    ),
    "hangs before the first step": (
        *("time.sleep(60)", ("START_TIMEOUT_SECONDS=1",), 124, "timeout"),
        r"^no step was finished in \d+ s \(START_TIMEOUT_SECONDS=1\)",
    ),
    "hangs after the last step": (
        *("step(6); result(); time.sleep(60)", ("START_TIMEOUT_SECONDS=8",), 124, "timeout"),
        r"^the result was written, but the ranks did not end; .*\(START_TIMEOUT_SECONDS=8\)",
    ),
    "the end takes as long as the start may": (
        *("step(6); time.sleep(1.5); result()", ("START_TIMEOUT_SECONDS=60", "STEP_TIMEOUT_SECONDS=1"), 0, "ok", None),
    ),
    "a rank is killed": (
        *("step(3); " + torchrun(-SIGKILL), (), 1, "failed"),
        r"^rank 1 was ended by SIGKILL after step 3 of 6 \(loss 7.2500, 0.4 GB\); not by this suite",
    ),
    "a rank crashes, the neighbour wrote of it": (
        *(FAILED + torchrun(-SIGSEGV), (), 1, "failed"),
        "^rank 1 was ended by SIGSEGV .*the other ranks then ended with: RuntimeError: Connection closed by peer$",
    ),
    "a kill by torchrun is no cause": (
        torchrun(-SIGKILL, FORCED),
        (),
        1,
        "failed",
        "^the trainer ended with exit code 1",
    ),
    "an exit code of a rank is no signal": (torchrun(1), (), 1, "failed", "^the trainer ended with exit code 1 before"),
    "the last words": (
        *("step(1); print('before'); print(); step(2); " + torchrun(1), (), 1, "failed"),
        r"step 2 of 6 .* last lines of its log:\nbefore\n\[rank0\]: RuntimeError: Connection closed by peer \S+$",
    ),
    "exit 0 without a result": ("step(3)", (), 1, "failed", "exit code 0 after step 3 of 6 .*and left no result"),
    "exit 3": ("print('last words'); sys.exit(3)", (), 3, "failed", "exit code 3 .*\nlast words$"),
    "the launcher of the ranks is killed": (
        "os.kill(os.getpid(), 9)",
        (),
        1,
        "failed",
        "of the ranks was ended by SIGK",
    ),
    "an error at the very end": (
        *("step(6); result(); sys.exit(6)", (), 6, "failed"),
        "^the result was complete, then the trainer ended with exit code 6",
    ),
    "the log is deleted": (
        *("[log.unlink() for log in output.glob('logs/*.log')]; result()", (), 1, "failed"),
        "^the result was complete, but not its log\n.*attempt1.log was deleted, moved or replaced while the job ran$",
    ),
    "the data are deleted": (
        *("import shutil; result(); shutil.rmtree(data)", (), 1, "failed"),
        "^the result was complete, but the data were deleted or damaged while the job ran: ",
    ),
    "the data are replaced": (
        *("from toydata import write_toy_data; result(); write_toy_data(data / 'text', seed=1)", (), 1, "failed"),
        "^the result was complete, but the data were replaced while the job ran$",
    ),
}


@pytest.fixture
def job(tmp_path, monkeypatch):
    return Launcher(tmp_path, monkeypatch)


LONG = dict.fromkeys(
    ("slow between steps, as is allowed", "hangs after the last step"),
    pytest.mark.full("ends of jobs that wait, about 9 s each"),
)


@pytest.mark.parametrize("end", [pytest.param(end, marks=LONG.get(end, ())) for end in ENDS])
def test_every_end_has_its_status_reason_and_exit_code(end, job):
    ranks, settings, code, status, reason = ENDS[end]
    ended = job.run("LABEL=one", *settings, ranks=ranks)
    result = ended.result
    assert (ended.code, result["status"]) == (code, status), ended.err
    assert (reason is None) == (result["reason"] is None)
    assert reason is None or re.search(reason, result["reason"], re.DOTALL), result["reason"]
    assert bool(result["steps"]) == ("result(" in ranks), "what was measured is kept"
    assert status == "ok" or f"train_cpu_mega_llama_run1: {status}: {result['reason']}" in ended.err
    assert [one.name for one in ended.output.glob("one/.*")] == []


def test_kill_of_the_kernel_for_want_of_memory_is_oom_with_advice(job, monkeypatch):
    read, kills = Path.read_text, itertools.count()
    fake = {"/proc/vmstat": lambda: f"pgfault 7\noom_kill {next(kills)}\n"}
    monkeypatch.setattr(
        Path, "read_text", lambda path, *more, **named: (fake.get(str(path)) or (lambda: read(path, *more, **named)))()
    )
    result = job.run(ranks="step(3); " + torchrun(-SIGKILL)).result
    assert result["status"] == "oom"
    assert "the kernel ended 1 process(es) for want of memory" in result["reason"]
    assert "by the estimate" in result["reason"]


GONE = {
    "renamed": "output.rename(str(output) + '_renamed')",
    "deleted": "import shutil; shutil.rmtree(output)",
}


@pytest.mark.parametrize("fault", GONE)
def test_output_folder_that_is_gone_is_not_made_anew(fault, job):
    ended = job.run(ranks="result(); " + GONE[fault])
    assert ended.code == 1 and "was deleted or renamed while the job ran" in ended.err
    assert "Traceback" not in ended.err and not ended.output.exists()


@needs_root
def test_disk_that_can_only_be_read_is_named(job):
    results = job.output / "one"
    mount = "for how in ('bind', 'remount,bind,ro'): subprocess.run(['mount', '-o', how, *[path.parent] * 2])"
    try:
        ended = job.run("LABEL=one", ranks=mount)
    finally:
        subprocess.run(["umount", results], check=True)
    assert ended.code == 1 and f"no result could be written: the disk of {results} can only be read" in ended.err


@needs_root
def test_log_on_a_full_disk_ends_with_the_free_bytes_and_the_job_is_watched_on(job):
    logs = job.output / "logs"
    logs.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", logs], check=True)
    try:
        result = job.run(ranks="print('word ' * 9000); step(3); sys.exit(7)").result
    finally:
        subprocess.run(["umount", logs], check=True)
    free = re.search(rf"the log is incomplete: the disk of {logs} is full \(([\d,]+) bytes free\)", result["reason"])
    assert free and int(free[1].replace(",", "")) <= 8192
    assert "exit code 7 after step 3 of 6" in result["reason"]


def test_raw_samples_are_in_the_log_only(job):
    raw = "from utils.results import raw_samples; from example import example_result\n"
    ended = job.run(ranks=raw + "print('end', *raw_samples.lines(example_result()), sep='\\n'); sys.exit(1)")
    assert "raw: " not in ended.out and ended.result["reason"].endswith("\nend")
    assert next((ended.output / "logs").glob("*.log")).read_text().count("raw: ") == 16


def test_room_for_the_result_is_reserved_while_the_job_runs_and_only_its_own_leftovers_go(job):
    job.output.mkdir()
    kept = [job.output / f".train_cpu_mega_llama_run{name}" for name in ("10.json.abc", "1.jsonx")]
    left = job.output / ".train_cpu_mega_llama_run1.json.x3k"
    for path in (*kept, left):
        path.write_text("half")
    look = "print('reserved', os.stat(path.with_name(f'.{path.name}.reserve')).st_blocks * 512); result()"
    ended = job.run(ranks=look)
    # a result with 500 steps takes 60 KB
    assert ended.code == 0 and int(re.search(r"reserved (\d+)", ended.out)[1]) > 60_000
    assert sorted(path.name for path in job.output.glob(".train*")) == sorted(path.name for path in kept)


def test_job_is_not_started_where_its_result_has_no_room(job, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    ended = job.run(ranks="print('started')")
    assert ended.code == 2 and "make room" in ended.err and "started" not in ended.out
    assert list(job.output.glob("*.json")) + list(job.output.glob(".train*")) == []


# Processes and temporary folders

LEAVES = """
sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_DFL); print(1, flush=True); time.sleep(600)"
orphan = subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True, stdout=subprocess.PIPE)
orphan.stdout.readline()
temporary = Path(os.environ["TMPDIR"])
(temporary / "torchelastic_1").mkdir()
print("started", orphan.pid, os.getpid(), temporary, flush=True)
"""
"""Ranks that leave a process behind, in a session of its own, and a folder."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The temporary folder of the machine."""
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A function that starts a launcher whose ranks hang; returns it, a rank, and the folder of the ranks."""
    running = []

    def start(name, **options):
        process = Launcher(tmp_path / name, monkeypatch).start(ranks=LEAVES + "time.sleep(600)", **options)
        line = next(line for line in process.stdout if line.startswith("started "))
        _, orphan, rank, folder = line.split()
        running.extend(psutil.Process(int(pid)) for pid in (process.pid, orphan))
        return process, psutil.Process(int(rank)), folder

    yield start
    for process in running:
        with suppress(psutil.NoSuchProcess):
            process.kill()


deaf = pytest.param(
    LEAVES.replace("SIG_DFL", "SIG_IGN"),
    marks=pytest.mark.full("an orphan that is deaf to SIGTERM gets 10 s, about 12 s"),
)


@pytest.mark.parametrize("ranks", [LEAVES, deaf], ids=("orphan", "deaf orphan"))
def test_what_the_ranks_left_is_ended_and_their_folder_goes(ranks, place, tmp_path, monkeypatch):
    ended = Launcher(tmp_path / "job", monkeypatch).run(ranks=ranks + "result()")
    _, orphan, _, folder = next(line for line in ended.out.splitlines() if line.startswith("started ")).split()
    assert ended.code == 0
    wait_until_gone([one for one in psutil.process_iter() if one.pid == int(orphan)])
    assert folder.startswith(f"{place}/") and list(place.glob("tprimat_*")) == []


def test_killed_launcher_takes_its_ranks_along_and_the_next_one_removes_its_folder_alone(
    place, started, tmp_path, monkeypatch
):
    killed, rank, left = started("killed")
    killed.kill()
    killed.wait()
    wait_until_gone([rank])
    assert os.path.isdir(left)  # noqa: PTH112
    running, _, used = started("running", preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert not os.path.isdir(left) and os.path.isdir(used)  # noqa: PTH112
    (place / "tprimat_file").touch()
    (place / "tprimat_results").mkdir()
    (place / "kept").mkdir()
    lock = next(path for path in place.glob("tprimat_*/.*") if path.is_file())
    (place / "kept" / lock.name).touch()
    (place / "tprimat_link").symlink_to(place / "kept")
    if os.geteuid() == 0:  # only root can give a folder to another user
        (place / "tprimat_theirs").mkdir()
        (place / "tprimat_theirs" / lock.name).touch()
        os.chown(place / "tprimat_theirs" / lock.name, 12345, 12345)
    before = sorted(place.rglob("*"))
    third = Launcher(tmp_path / "third", monkeypatch).start(ranks="result()")
    assert third.communicate(timeout=600) and third.returncode == 0
    assert [path for path in before if not path.exists()] == [], "of a running launcher, of a user, no launcher's"
    running.send_signal(signal.SIGHUP)  # ignored, as under nohup
    time.sleep(0.5)
    assert running.poll() is None
    running.send_signal(signal.SIGTERM)
    said = running.communicate(timeout=600)[0]
    assert running.returncode == 128 + signal.SIGTERM and "interrupted by SIGTERM" in said
    assert not os.path.isdir(used)  # noqa: PTH112
