"""Work in several processes: results in order, no endless waiting, no process left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data.encoding import workers
from data.encoding.workers import Deferred, WorkerError, in_order
from utils.settings.config import ROOT

PATIENCE_SECONDS = 60


def slow_for_early_parts(part: int) -> tuple[int, int]:
    time.sleep(0.02 if part % 3 == 0 else 0.0)
    return part, os.getpid()


def fail_from_five(part: int) -> int:
    if part == 5:
        time.sleep(0.1)  # so that the later failures are ready first
    if part >= 5:
        raise ValueError(f"part {part}")
    return part


def die_at_four(part: int) -> int:
    if part == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return part


def be_interrupted(part: int) -> int:
    os.kill(os.getpid(), signal.SIGINT)
    return part


class OddsLater:
    """A function with a second half for odd parts, which tells who made it."""

    def __call__(self, part: int) -> Any:
        return Deferred(part, 1) if part % 2 else (part, None)

    def finish(self, part: int) -> tuple[int, int]:
        if part == 9:
            raise ValueError("part 9")
        time.sleep(0.01)
        return part, os.getpid()


def sleep_long(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(10 * PATIENCE_SECONDS)


def is_running(pid: int) -> bool:
    try:
        # a process whose parent has not asked for its end yet is still listed, as a zombie
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, f"still running: {pids}"
        time.sleep(0.05)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_come_in_order_and_workers_end(count: int) -> None:
    results = list(in_order(slow_for_early_parts, range(40), count))
    assert [part for part, _ in results] == list(range(40))
    others = sorted({pid for _, pid in results} - {os.getpid()})
    assert bool(others) == (count > 1)
    wait_until_gone(others)


@pytest.mark.parametrize("count", [1, 3])
def test_the_earliest_error_is_the_one_that_is_raised(count: int) -> None:
    with pytest.raises(ValueError, match="part 5"):
        list(in_order(fail_from_five, range(40), count))
    assert multiprocessing.active_children() == []


def test_a_killed_worker_ends_the_work_instead_of_being_waited_for() -> None:
    with pytest.raises(WorkerError, match=r"one of 2 was killed.*fewer"):
        list(in_order(die_at_four, range(40), 2))
    assert multiprocessing.active_children() == []


def test_workers_leave_an_interrupt_to_their_parent() -> None:
    assert list(in_order(be_interrupted, range(8), 2)) == list(range(8))


def test_parts_are_taken_as_results_are_and_not_all_at_once() -> None:
    taken = []

    def parts() -> Iterator[int]:
        for part in range(1000):
            taken.append(part)
            yield part

    results = in_order(slow_for_early_parts, parts(), 2)
    for _ in range(5):
        next(results)
    results.close()
    assert len(taken) <= 5 + 2 * workers.PARTS_AHEAD


@pytest.mark.parametrize("count", [1, 2, 3])
def test_second_halves_come_in_order_from_one_process(count: int) -> None:
    found = list(in_order(OddsLater(), range(20, 60), count))
    assert [part for part, _ in found] == list(range(20, 60))
    makers = {pid for part, pid in found if part % 2}
    assert len(makers) == 1 and (os.getpid() in makers) == (count == 1)


def test_another_worker_helps_with_second_halves_when_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "DEFERRED_BYTES", 2)
    makers = {pid for part, pid in in_order(OddsLater(), range(20, 60), 2) if part % 2}
    assert len(makers) == 2


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_of_a_second_half_is_raised_in_its_place(count: int) -> None:
    found: list[tuple[int, int]] = []
    with pytest.raises(ValueError, match="part 9"):
        found.extend(in_order(OddsLater(), range(40), count))
    assert [part for part, _ in found] == list(range(9))
    assert multiprocessing.active_children() == []


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder with a short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)


def test_workers_and_the_folder_of_their_server_go_when_their_parent_is_killed(tmp_path: Path, temporary: Path) -> None:
    code = (
        "import sys; sys.path[:0] = ['tests/data/encoding']; from test_workers import sleep_long\n"
        "from pathlib import Path; from data.encoding.workers import in_order, start_workers\n"
        "if __name__ == '__main__':\n"
        "    start_workers(Path('unused'), 'hf')\n"
        "    list(in_order(sleep_long, [sys.argv[1]] * 2, 2))\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(code)
    (tmp_path / "pids").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path / "pids")], cwd=ROOT, env=environment)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(list((tmp_path / "pids").iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    assert len(pids) == 2 and list(temporary.iterdir())
    parent.kill()
    parent.wait()
    wait_until_gone(pids)
    while list(temporary.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(temporary.iterdir()) == []
