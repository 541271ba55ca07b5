"""The check at the end of a test run that nothing is left outside the temporary folders of the tests.

The run gets a fresh folder as TMPDIR, in which every program under test makes its temporary files; pytest keeps its own
folders (`tmp_path`) where they always are. Everything is compared with the state before the run, so that other programs
of the machine are not blamed.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path

import psutil
import pytest
from checkout import ROOT

from train.job import temporary

MARK = "TPRIMAT_TEST_RUN"
"""Environment variable that every process of the run inherits."""
LIMIT_SECONDS = 5.0
"""Time for processes to end and to clean up."""
CACHES = re.compile(
    r"torchinductor_.*|\.hypothesis|\.pytest_cache|\.ruff_cache|\.mypy_cache|__pycache__|\.git|\.venv.*"
)
"""Names of caches that a program keeps on purpose."""
SOURCES = (".py", ".sh", ".md")
"""Endings of files in the checkout that a person may write during a test run."""
HOME_FOLDERS = (".triton", ".nv", ".keras", ".tprimat", ".cache/huggingface", ".cache/torch", ".cache/tprimat")
"""Folders that a library of the suite, or the suite, would make in the home folder."""
HELPERS = re.compile(r"exec\(eval\(sys\.stdin|multiprocessing")
"""In commands of processes that end with pytest: workers of pytest-xdist, multiprocessing's resource tracker."""
SHARED_MEMORY = re.compile(r"(torch_|psm_|pym-|sem\.|nccl-|__KMP_).*")
"""Names of segments in /dev/shm that PyTorch, multiprocessing, NCCL and OpenMP make."""


def pytest_configure(config: pytest.Config) -> None:
    """Check at the end of a run; the workers of pytest-xdist are parts of one."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Leftovers())


class Leftovers:
    """A plugin of pytest: notes the state before the tests, and prints what is left after them."""

    def __init__(self) -> None:
        self._before = set(_files())
        self._mark = os.environ[MARK] = uuid.uuid4().hex
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        self._temporary = Path(tempfile.mkdtemp(prefix="tprimat-tests-"))
        self._temporary.chmod(0o1777)  # as /tmp: some tests work as another user
        os.environ["TMPDIR"], tempfile.tempdir = str(self._temporary), None
        self._left: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Compare and clean up. What is left is reported and does not fail the run: a slow machine may be late."""
        temporary.remove_left_behind()  # of launchers that tests have killed, as the next job would
        deadline = time.monotonic() + LIMIT_SECONDS
        while (left := self._found()) and time.monotonic() < deadline:
            time.sleep(0.1)
        self._left = left
        # after multiprocessing has removed the folder of its sockets in it, which has priority -100
        Finalize(None, shutil.rmtree, (self._temporary, True), exitpriority=-200)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print a line for each thing that is left."""
        if self._left:
            terminalreporter.section("left behind by the tests", red=True)
            for line in self._left:
                terminalreporter.line(line)

    def _found(self) -> list[str]:
        return [
            *(f"process: {line}" for line in _marked(self._mark)),
            *(f"temporary file: {path}" for path in _entries(self._temporary) if str(path) != _sockets()),
            *sorted(str(path) for path in set(_files()) - self._before),
        ]


def _sockets() -> str | None:
    """Return the folder that multiprocessing removes when this process ends."""
    return multiprocessing.current_process()._config.get("tempdir")


def _marked(mark: str) -> Iterator[str]:
    """Yield each living process of the run by its number and command, without pytest and its helpers."""
    for process in psutil.process_iter(["cmdline", "environ", "ppid"]):
        command, environment = process.info["cmdline"] or [], process.info["environ"] or {}
        is_helper = process.info["ppid"] == os.getpid() and any(HELPERS.search(word) for word in command)
        if process.pid != os.getpid() and not is_helper and environment.get(MARK) == mark:
            yield f"{process.pid} {' '.join(command)}"


def _files() -> Iterator[Path]:
    """Yield everything outside TMPDIR that a test could leave: in the checkout, in shared memory and at home."""
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if not CACHES.fullmatch(name)]
        names = (name for name in (*folders, *files) if not CACHES.fullmatch(name))
        yield from (Path(folder, name) for name in names if not name.endswith(SOURCES))
    yield from (path for path in _entries(Path("/dev/shm")) if SHARED_MEMORY.fullmatch(path.name) and _is_unused(path))
    yield from (Path.home() / name for name in HOME_FOLDERS if (Path.home() / name).exists())


def _entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not CACHES.fullmatch(path.name)) if folder.is_dir() else []


def _is_unused(segment: Path) -> bool:
    """Return True for a segment of this user that no process has mapped: a running program may still remove its own."""
    try:
        if segment.stat().st_uid != os.getuid():
            return False
    except FileNotFoundError:
        return False
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if str(segment) in maps.read_text():
                return False
        except OSError:
            continue  # the process has just ended, or is another user's
    return True
