"""Copies of the checkout on machines that have only the tools, Pythons and container engines that a test gives them."""

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

from checkout import ROOT, copy_to

TOOLS = (
    *("bash", "cat", "chmod", "cp", "dirname", "env", "flock", "git", "grep", "id", "kill", "ls", "mkdir", "mktemp"),
    *(
        "mountpoint",
        "mv",
        "nproc",
        "paste",
        "printf",
        "readlink",
        "realpath",
        "rm",
        "sed",
        "sha256sum",
        "sleep",
        "sort",
    ),
    *("stat", "tail", "timeout", "touch", "tr", "uname", "xargs"),
)
LIMIT_SECONDS = 600
"""Time limit of any process here, generous for a busy machine; no test measures time with it."""
ENGINE = ROOT / "tests" / "shell" / "engines" / "engine"
GROUPS = {"video": 44, "render": 109}
ALL = "docker podman apptainer"
TOKEN = "hf_" + "Ab1" * 11 + "z"
"""Shaped like a token of the hub, but invalid."""
# Plays a Python of the machine, the one of an environment and its pip; writes every call into calls.txt.
STAND_IN = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$CALLS"
case "$*" in
  -V) echo "Python {version}" ;;
  *ensurepip*) exit {no_venv} ;;
  "-m venv"*) mkdir -p "${{@: -1}}/bin" && rm -f "${{@: -1}}"/.[!.]* && cp "$0" "${{@: -1}}/bin/python" ;;
  "-m pip"*) echo "Collecting a package"; sleep "${{PIP_SECONDS:-0}}"; [[ $* != *"${{PIP_FAILS_ON:-nothing}}"* ]] ;;
  *"torch_source.py machine"*) printf '%s' "${{FAKE_TORCH:-}}" ;;
  *"torch_source.py answers"*) exit "${{WHEELS_EXIT:-1}}" ;;
  *purelib*) dirname -- "$0" ;;
  *find_spec*) exit {no_framework} ;;
  *"import train.train_"* | *pretrain_gpt*)
    [[ -z ${{LACKS:-}} ]] || {{ echo "Error: No module named '$LACKS'" >&2; exit 1; }} ;;
  *m.version*) echo 0.3.1 ;;
esac
"""


def add_program(path: Path, text: str) -> Path:
    """Write an executable file, with the folders above it, in the place of a link to a real one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf8")
    path.chmod(0o755)
    return path


def link_tools(folder: Path, *names: str) -> None:
    """Make a folder that has these programs of this machine and can be a whole PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).symlink_to(str(shutil.which(name)))


def heed_signals() -> None:
    """Restore signals that a shell's background job, or nohup, made the tests ignore: a terminal ignores neither."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


class Sandbox:
    """A copy of some files below a folder with a difficult name, and a PATH of tools and stand-ins."""

    def __init__(self, folder: Path, *patterns: str, libraries: tuple[str, ...] = ("environment",)) -> None:
        self.folder, self.root, self.libraries = folder, folder / "my checkout, v2", libraries
        self.bin, self.home = folder / "bin", folder / "home of me"
        self.home.mkdir(parents=True)
        copy_to(self.root, *patterns, "utils/secret_forms.txt")
        link_tools(self.bin, *filter(shutil.which, TOOLS))
        self.environment = {"PATH": str(self.bin), "HOME": str(self.home), "PLATFORM": "cpu"}

    def add_tool(self, name: str, script: str) -> Path:
        """Put a bash script on the PATH."""
        return add_program(self.bin / name, f"#!/usr/bin/env bash\n{script}\n")

    def run(
        self, script: str, *arguments: str, given: str | None = None, **changes: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script of shell/ from elsewhere with changes to the environment; `given` is its input."""
        return self.execute(Path("/"), self.root / "shell" / script, *arguments, given=given, **changes)

    def sourced(self, commands: str, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run commands of bash after those of the libraries."""
        script = "".join(f"source shell/lib/{name}.sh; " for name in self.libraries) + commands
        return self.execute(self.root, "bash", "-Eeuo", "pipefail", "-c", script, "bash", *arguments, **changes)

    def execute(
        self, folder: Path, *command: str | Path, given: str | None = None, **changes: str
    ) -> subprocess.CompletedProcess[str]:
        """Run any command in a folder."""
        return subprocess.run(
            command,
            cwd=folder,
            env=self.environment | changes,
            input=given,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )

    def start(self, script: str, *arguments: str, **changes: str) -> subprocess.Popen[str]:
        """Start a script in its own session, with the signals of a terminal."""
        return subprocess.Popen(
            [self.root / "shell" / script, *arguments],
            env=self.environment | changes,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=heed_signals,
        )


class Checkout(Sandbox):
    """The files that a setup script reads, and Pythons that write down their calls: nothing is downloaded."""

    def __init__(self, folder: Path, script: str = "setup.sh", *first: str) -> None:
        read = ("shell/lib/environment.sh", "shell/lib/install.sh", "shell/platform.sh", "*-requirements.txt")
        super().__init__(folder, f"shell/{script}", *read)
        self.calls_file, self.pyenv, self.venv = folder / "calls.txt", folder / "pyenv", self.root / ".venv"
        self.command = (script, *first)
        self.environment |= {"PYENV_ROOT": str(self.pyenv), "CALLS": str(self.calls_file)}

    def add_python(
        self,
        name: str | Path = "python3",
        version: str = "3.11.7",
        *,
        has_venv: bool = True,
        has_framework: bool = False,
    ) -> Path:
        """Add a Python on PATH, or at a path."""
        codes = {"no_venv": int(not has_venv), "no_framework": int(not has_framework)}
        return add_program(self.bin / name, STAND_IN.format(version=version, **codes))

    def change(self, name: str) -> None:
        """Add a line to a file of requirements."""
        with (self.root / name).open("a", encoding="utf8") as file:
            file.write("# changed\n")

    def execute(self, *arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run any command, forgetting the calls of earlier ones."""
        self.calls_file.unlink(missing_ok=True)
        return super().execute(*arguments, **options)

    def setup(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run the setup script."""
        return self.run(*self.command, *arguments, **changes)

    def calls(self, containing: str = "-m pip") -> list[str]:
        """Return the calls of stand-ins in the last command that contain a text (default: those of pip)."""
        lines = self.calls_file.read_text(encoding="utf8").splitlines() if self.calls_file.exists() else []
        return [line for line in lines if containing in line]

    def stamps(self) -> set[str]:
        """Return the names of the stamps in .venv."""
        return {path.name for path in self.venv.glob(".stamp-*")}


class Container(dict[str, Any]):
    """A container as its stand-in wrote it down."""

    def options(self, name: str) -> list[str]:
        """Return the values of an option, in their order."""
        return [value for option, value in self["options"] if option == name]

    def targets(self) -> dict[str, tuple[str, str]]:
        """Return the source of each mount and how it may be used, by its place in the container."""
        return {mount["target"]: (mount["source"], "ro" if "ro" in mount else "rw") for mount in self["mounts"]}


class Machine(Sandbox):
    """Runs our scripts against stand-ins of the container engines."""

    def __init__(self, folder: Path, engines: str = ALL, *, faults: str = "", images: str = "cpu amd nvd") -> None:
        super().__init__(folder, "shell", "config*.env", libraries=("environment", "run"))
        self.sysroot, self.state = folder / "sysroot", folder / "state"
        self.log, self.out = folder / "log.jsonl", folder / "out.txt"
        for place in (self.state, self.sysroot / "dev", self.root / "output"):
            place.mkdir(parents=True)
        self.add_tool("python3", f'exec {shlex.quote(sys.executable)} -S "$@"')
        groups = "\n".join(f'[[ $2 == {name} ]] && {{ echo "{name}:x:{gid}:"; exit; }}' for name, gid in GROUPS.items())
        self.add_tool("getent", f"{groups}\nexit 2")
        self.add_tool("catatonit", "exit 0")
        for engine in engines.split():
            (self.bin / engine).symlink_to(ENGINE)
        self.environment |= {
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

    def add_images(self, *platforms: str) -> None:
        """Give every engine our images of these platforms, beside those that it has."""
        for platform in platforms:
            self.environment["STANDIN_IMAGES"] += f" tprimat:{platform} localhost/tprimat:{platform}"
            (self.root / f"tprimat_{platform}.sif").write_text("an image")

    def container(
        self, script: str, *arguments: str, engine: str = "docker", platform: str = "cpu", **changes: str
    ) -> Container:
        """Run a script, which must succeed, and return the one container that it started."""
        before = len(self.started)
        done = self.run(script, f"PLATFORM={platform}", *arguments, RUNTIME=engine, **changes)
        assert done.returncode == 0, done.stderr
        (container,) = self.started[before:]
        return container

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
