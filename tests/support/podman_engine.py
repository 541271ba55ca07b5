"""The tests' own Podman: its images, containers and settings are in one folder, apart from this machine's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = {**{name: name for name in ("podman", "buildah", "crun", "debootstrap")}, "newuidmap": "uidmap"}
"""Debian package by program."""
# crun refuses a kernel with cgroups of both versions. It starts in its own mount namespace without the second version.
# The mounts of a command end with it.
OWN_MOUNTS = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'
USER = 65534
"""User id of `nobody` on every Debian: the ordinary user of the tests."""
ANYBODY = "12345:23456"
"""User and group of a process in a container, for which no image has an entry."""
# User ids for the processes of that user's containers; this machine's own lists are not changed.
USERS_MOUNTS = """
umount /sys/fs/cgroup/unified 2>/dev/null
mount --bind {folder}/numbers /etc/subuid && mount --bind {folder}/numbers /etc/subgid && mount --make-rshared / || exit
exec setpriv --reuid={user} --regid={user} --clear-groups "$@"
"""
STORAGE = """
[storage]
driver = "{driver}"
graphroot = "{folder}/images"
runroot = "{folder}/run"
"""
CONTAINERS = """
[containers]
cgroups = "disabled"
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
netns = "host"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{folder}/engine"
"""


NEEDED_BYTES = 16e9
"""Both vendors' images and what their build needs for a time: 12.5 GB seen."""


def why_not() -> str | None:
    """Return the reason why no container of the tests can be started here, None if one can."""
    absent = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if absent:
        return f"not installed: {', '.join(absent)} (apt-get install {' '.join(absent)})"
    if (free := shutil.disk_usage("/tmp").free) < NEEDED_BYTES:
        return f"/tmp has {free / 1e9:.0f} GB free, the images need {NEEDED_BYTES / 1e9:.0f}"
    return "debootstrap wants root" if os.geteuid() != 0 else _kernel_forbids()


def _kernel_forbids() -> str | None:
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt && mknod /mnt/node c 1 3"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    return f"the kernel forbids mounts and devices here: {done.stderr.strip()}" if done.returncode else None


@dataclass(frozen=True)
class Podman:
    """Commands run with its settings in their environment."""

    folder: Path
    environment: Mapping[str, str]
    mounts: str = OWN_MOUNTS

    def wrapped(self, *command: str | Path) -> list[str]:
        """Return the command wrapped for this machine; its process is the command itself, so signals reach it."""
        return ["unshare", "--mount", "bash", "-c", self.mounts, "-", *map(str, command)]

    def run(
        self, *command: str | Path, cwd: Path | None = None, timeout: float = 600, **changes: str
    ) -> subprocess.CompletedProcess[str]:
        """Run any command, whatever its exit code."""
        return subprocess.run(
            self.wrapped(*command),
            env={**self.environment, **changes},
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
        )

    def ask(self, *arguments: str | Path, timeout: float = 600) -> str:
        """Run podman, which must succeed, and return its output."""
        done = self.run("podman", *arguments, timeout=timeout)
        assert done.returncode == 0, f"podman {arguments[0]}: {done.stderr[-3000:]}"
        return done.stdout.strip()

    def containers(self) -> list[str]:
        """Return the names of all containers, running or not."""
        return self.ask("ps", "--all", "--format", "{{.Names}}").split()

    def remove(self) -> None:
        """Remove containers, images and the folder."""
        self.run("podman", "rm", "--all", "--force")
        self.run("podman", "rmi", "--all", "--force")
        self.run("podman", "system", "migrate")  # ends the process that holds an ordinary user's namespace
        shutil.rmtree(self.folder, ignore_errors=True)


def make(folder: Path) -> Podman:
    """Return a Podman without images, with all its files in `folder`."""
    for name in ("images", "run", "engine", "tmp"):
        (folder / name).mkdir(parents=True)
    (folder / "containers.conf").write_text(CONTAINERS.format(folder=folder), encoding="utf8")
    (folder / "storage.conf").write_text(STORAGE.format(folder=folder, driver="overlay"), encoding="utf8")
    environment = {
        **os.environ,
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "BUILDAH_ISOLATION": "chroot",
        "TMPDIR": str(folder / "tmp"),
        # the scripts search for a Python and must not find that of the tests
        "PATH": os.pathsep.join(
            p for p in os.environ["PATH"].split(os.pathsep) if p != str(Path(sys.executable).parent)
        ),
    }
    podman = Podman(folder, environment)
    # overlay on overlay is not possible; plain copies are
    if podman.run("podman", "info").returncode:
        shutil.rmtree(folder / "images")
        (folder / "storage.conf").write_text(STORAGE.format(folder=folder, driver="vfs"), encoding="utf8")
        environment["BUILD_ARGS"] = "--layers=false"  # each layer is a copy of all that is below it
        podman.ask("info")
    return podman


def of_user(podman: Podman, folder: Path) -> Podman:
    """Return the Podman of an ordinary user, without images; the user can write to `folder`, all others can read it."""
    for name in ("images", "run", "engine", "tmp", "home"):
        (folder / name).mkdir(parents=True)
        os.chown(folder / name, USER, USER)
    (folder / "numbers").write_text("nobody:200000:65536\n", encoding="utf8")
    for name in ("containers.conf", "storage.conf"):
        text = (podman.folder / name).read_text(encoding="utf8")
        (folder / name).write_text(text.replace(str(podman.folder), str(folder)), encoding="utf8")
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "TMPDIR": str(folder / "tmp"),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    return Podman(folder, environment, USERS_MOUNTS.format(folder=folder, user=USER))


def run_script(
    podman: Podman, checkout: Path, name: str, *arguments: str, timeout: float = 900, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run one of the user's commands with the token only in secrets.env."""
    command = [checkout / "shell" / name, "PLATFORM=cpu", *arguments]
    return podman.run(*command, timeout=timeout, **{"RUNTIME": "podman", "HF_TOKEN_PATH": "", **changes})
