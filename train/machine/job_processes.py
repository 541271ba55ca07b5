"""Processes of the suite's jobs, marked by TPRIMAT_JOB in their environment. Standard library only.

The value contains the launcher's PID namespace, process id and start time, which together are unique, then the job. A
marked process whose launcher is gone was left behind. /proc is read here, without psutil, because `shell/gpu.sh` runs
where nothing is installed. Source of the file formats: proc(5).
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARKER = "TPRIMAT_JOB"
PROC = Path("/proc")


@dataclass(frozen=True)
class SuiteProcess:
    """A process as /proc describes it."""

    process_id: int
    started: str
    """In clock ticks since boot; identifies the process together with its id."""
    user_id: int
    command: str
    """Command line, printable characters only."""
    marker: str | None
    """None if the process has no marker or its environment cannot be read."""

    @property
    def user(self) -> str:
        """Name of the user, or the user id if it has no name."""
        try:
            return pwd.getpwuid(self.user_id).pw_name
        except KeyError:
            return str(self.user_id)

    @property
    def job(self) -> str | None:
        """Name of the job that started the process."""
        if self.marker is None or self.marker.count(":") < 3:
            return None
        return self.marker.split(":", 3)[3]

    @property
    def is_left_behind(self) -> bool:
        """True if a job started it and its launcher is gone; False if the launcher is in another container."""
        if self.job is None or self.marker is None:
            return False
        namespace, launcher, started, _ = self.marker.split(":", 3)
        return namespace == _namespace() and launcher.isdecimal() and _started(int(launcher)) != started

    def is_alive(self) -> bool:
        """Check that the process still runs; another one that got its id since has another start time."""
        return _started(self.process_id) == self.started


def marker(job: str) -> str:
    """Return the value of TPRIMAT_JOB for processes that this process starts for `job`."""
    return f"{_namespace()}:{os.getpid()}:{_started(os.getpid())}:{job}"


def look_up(process_id: int) -> SuiteProcess | None:
    """Return a process by id; None if it is gone or not visible in this machine's /proc."""
    folder = PROC / str(process_id)
    started = _started(process_id)
    if started is None:
        return None
    try:
        user_id = folder.stat().st_uid
        words = (folder / "cmdline").read_bytes().decode(errors="replace").strip("\0").split("\0")
        name = (folder / "comm").read_text(errors="replace").strip()
    except OSError:
        return None
    # a thread of the kernel and a zombie have no command line
    command = " ".join(words) or f"[{name}]"
    # escape sequences in a name would reach the terminal
    printable = "".join(letter if letter.isprintable() else "?" for letter in command)
    return SuiteProcess(process_id, started, user_id, printable, _marker_of(folder))


def left_behind() -> Iterator[SuiteProcess]:
    """Yield this user's processes that jobs left behind, by process id."""
    for process_id in sorted(int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()):
        process = look_up(process_id)
        if process is not None and process.is_left_behind and process.user_id == os.getuid():
            yield process


def ancestors() -> set[int]:
    """Return the ids of this process and its ancestors."""
    process_ids: set[int] = set()
    process_id = os.getpid()
    while process_id and process_id not in process_ids:
        process_ids.add(process_id)
        fields = _stat(process_id)
        process_id = int(fields[1]) if fields else 0
    return process_ids


def _marker_of(folder: Path) -> str | None:
    try:
        environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None  # another user's process
    for entry in environment:
        name, _, value = entry.partition("=")
        if name == MARKER:
            return value
    return None


def _namespace() -> str:
    """Return the PID namespace of this process: process ids are unique only within one."""
    return str((PROC / "self" / "ns" / "pid").readlink()).strip("pid:[]")


def _started(process_id: int) -> str | None:
    """Return the start time, field 22 of stat; None if the process is gone or a zombie."""
    fields = _stat(process_id)
    if not fields or fields[0] in ("Z", "X"):
        return None
    return fields[19]


def _stat(process_id: int) -> list[str]:
    """Return the fields of stat from the third on. The command before them is in parentheses and may contain spaces."""
    try:
        return (PROC / str(process_id) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
