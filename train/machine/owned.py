"""Which processes are the suite's own: each job's processes carry TPRIMAT_JOB in their environment. Standard library.

Its value names the launcher: PID namespace, process id and start time, which together no later process has, then the
job. A process that carries it while its launcher is gone was left behind. Source of the files: proc(5).
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
class Owned:
    """What /proc tells of a process."""

    process_id: int
    started: str
    """In clock ticks since the machine was started; with the process id it names one process."""
    user_id: int
    command: str
    """Printable characters only, on one line."""
    marker: str | None
    """None where it has none, and where its environment may not be read."""

    @property
    def user(self) -> str:
        """Name of the user, or his number."""
        try:
            return pwd.getpwuid(self.user_id).pw_name
        except KeyError:
            return str(self.user_id)

    @property
    def job(self) -> str | None:
        """The job that it was started for."""
        return self.marker.split(":", 3)[3] if self.marker and self.marker.count(":") >= 3 else None

    @property
    def is_left_behind(self) -> bool:
        """Whether it is the suite's and its launcher is gone; False where the launcher lives in another container."""
        if self.job is None or self.marker is None:
            return False
        namespace, launcher, started, _ = self.marker.split(":", 3)
        return namespace == _namespace() and launcher.isdecimal() and _started(int(launcher)) != started


def marker(job: str) -> str:
    """Return the value of TPRIMAT_JOB for what this process starts on behalf of `job`."""
    return f"{_namespace()}:{os.getpid()}:{_started(os.getpid())}:{job}"


def look_up(process_id: int) -> Owned | None:
    """Return what is known of a process; None where it is gone, or lives where this machine's /proc does not see it."""
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
    command = " ".join(words) or f"[{name}]"
    printable = "".join(letter if letter.isprintable() else "?" for letter in command)
    return Owned(process_id, started, user_id, printable, _marker_of(folder))


def left_behind() -> Iterator[Owned]:
    """Yield what the suite has left behind of this user's processes, by process id."""
    for process_id in sorted(int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal()):
        found = look_up(process_id)
        if found and found.is_left_behind and found.user_id == os.getuid():
            yield found


def ancestors() -> set[int]:
    """Return the ids of this process and of all that it descends from."""
    found: set[int] = set()
    process_id = os.getpid()
    while process_id and process_id not in found:
        found.add(process_id)
        fields = _stat(process_id)
        process_id = int(fields[1]) if fields else 0
    return found


def _marker_of(folder: Path) -> str | None:
    try:
        environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None  # another user's
    return next((entry.partition("=")[2] for entry in environment if entry.startswith(f"{MARKER}=")), None)


def _namespace() -> str:
    """A process id means something in its PID namespace only: containers have their own."""
    return str((PROC / "self" / "ns" / "pid").readlink()).strip("pid:[]")


def _started(process_id: int) -> str | None:
    """Return field 22 of stat; None for a zombie as well."""
    fields = _stat(process_id)
    return None if not fields or fields[0] in ("Z", "X") else fields[19]


def _stat(process_id: int) -> list[str]:
    """Return stat from field 3 on; the command before it stands in parentheses and may hold spaces."""
    try:
        return (PROC / str(process_id) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
