"""A checkout with a difficult name, on a machine that has only the engines, devices and tools that a test gives it."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.setups import ROOT, add_program, copy_to, link_tools

ENGINE = ROOT / "tests" / "shell" / "engines" / "engine"
TOOLS = (
    *("bash", "env", "cat", "grep", "sed", "timeout", "realpath", "mkdir", "id", "uname", "sort", "stat"),
    *("xargs", "printf", "dirname", "readlink", "mountpoint", "nproc", "sha256sum", "sleep", "rm", "git"),
    *("mktemp", "chmod", "tail"),
)
GROUPS = {"video": 44, "render": 109}
ALL = "docker podman apptainer"
PLATFORMS = ("amd", "nvd", "cpu")
TOKEN = "hf_" + "Ab1" * 11 + "z"
LIMIT_SECONDS = 60
"""Time limit of any process here, generous for a busy machine; no test measures time with it."""


class Container(dict[str, Any]):
    """A container as its stand-in wrote it down."""

    def options(self, name: str) -> list[str]:
        """Return the values of an option, in their order."""
        return [value for option, value in self["options"] if option == name]

    def targets(self) -> dict[str, tuple[str, str]]:
        """Return the source of each mount and how it may be used, by its place in the container."""
        return {mount["target"]: (mount["source"], "ro" if "ro" in mount else "rw") for mount in self["mounts"]}


class Machine:
    """Runs our scripts against the stand-ins."""

    def __init__(self, folder: Path, engines: str = ALL, *, faults: str = "", images: str = "cpu amd nvd") -> None:
        self.folder = folder
        self.checkout = folder / "my checkout, v2"
        self.bin, self.sysroot, self.home = folder / "bin", folder / "sysroot", folder / "home of me"
        tools = folder / "tools"  # links to the real ones: nothing is written there
        self.state, self.log, self.out = folder / "state", folder / "log.jsonl", folder / "out.txt"
        for place in (self.bin, self.state, self.sysroot / "dev", self.home):
            place.mkdir(parents=True)
        copy_to(self.checkout, "shell", "config*.env")
        (self.checkout / "output").mkdir()
        link_tools(tools, *filter(shutil.which, TOOLS))
        self.add_tool("python3", f'exec {shlex.quote(sys.executable)} -S "$@"')
        groups = "\n".join(f'[[ $2 == {name} ]] && {{ echo "{name}:x:{gid}:"; exit; }}' for name, gid in GROUPS.items())
        self.add_tool("getent", f"{groups}\nexit 2")
        for engine in engines.split():
            (self.bin / engine).symlink_to(ENGINE)
        self.add_tool("catatonit", "exit 0")
        self.environment = {
            "PATH": f"{self.bin}:{tools}",
            "HOME": str(self.home),
            "TPRIMAT_SYSROOT": str(self.sysroot),
            "TPRIMAT_HOME": str(folder / "home inside"),
            "STANDIN_STATE": str(self.state),
            "STANDIN_LOG": str(self.log),
            "STANDIN_OUT": str(self.out),
            "STANDIN_FAULTS": faults,
            "STANDIN_IMAGES": "",
            "DATA_DIR": str(folder / "prepared"),
        }
        self.add_images(*images.split())

    def add_tool(self, name: str, script: str) -> None:
        """Put an executable on the PATH before the real ones; replace a link instead of writing through it."""
        (self.bin / name).unlink(missing_ok=True)
        add_program(self.bin / name, f"#!/usr/bin/env bash\n{script}\n")

    def add_images(self, *platforms: str) -> None:
        """Give every engine our images of these platforms, beside those that it has."""
        for platform in platforms:
            self.environment["STANDIN_IMAGES"] += f" tprimat:{platform} localhost/tprimat:{platform}"
            (self.checkout / f"tprimat_{platform}.sif").write_text("an image")

    def container(
        self, script: str, *arguments: str, engine: str = "docker", platform: str = "cpu", **changes: Any
    ) -> Container:
        """Run a script, which must succeed, and return the one container that it started."""
        before = len(self.started)
        done = self.run(script, f"PLATFORM={platform}", *arguments, RUNTIME=engine, **changes)
        assert done.returncode == 0, done.stderr
        (container,) = self.started[before:]
        return container

    def run(self, script: str, *arguments: str, **changes: Any) -> subprocess.CompletedProcess[str]:
        """Run a script of the checkout; `changes` are to the environment, or options of subprocess in `popen`."""
        options = changes.pop("popen", {})
        return subprocess.run(
            [self.checkout / "shell" / script, *arguments],
            env=self.environment | changes,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            **options,
        )

    def start(self, script: str, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        """Start a script in its own session, with the signals of a terminal."""
        return subprocess.Popen(
            [self.checkout / "shell" / script, *arguments],
            env=self.environment | changes,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=heed_signals,
        )

    def sourced(self, commands: str, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run commands after sourcing the libraries of the run scripts."""
        script = f"set -Eeuo pipefail; source shell/lib/environment.sh; source shell/lib/run.sh; {commands}"
        return subprocess.run(
            ["bash", "-c", script, "bash", *arguments],
            env=self.environment | changes,
            cwd=self.checkout,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )

    @property
    def started(self) -> list[Container]:
        """All containers that stand-ins have run."""
        return [Container(json.loads(line)) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def wait_for(self, text: str) -> None:
        """Wait until the job in the container has written `text`."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not self.out.exists() or text not in self.out.read_text():
            assert time.monotonic() < deadline, f"no {text!r} in time"
            time.sleep(0.02)


def heed_signals() -> None:
    """Restore signals that a shell's background job, or nohup, made the tests ignore."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
