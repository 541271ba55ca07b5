"""The tests' own Podman: its images, containers and settings are in one folder, apart from this machine's."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import image_variables
import real_primus
from checkout import ROOT, python_of

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
volumes = ["{folder}/store:{store}:ro"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
tmp_dir = "{folder}/engine"
"""


NEEDED_BYTES = 16e9
"""Both vendors' images and what their build needs for a time: 13.1 GB seen."""


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
        timeout=600,
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

    def run(self, *command: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run any command, whatever its exit code."""
        return subprocess.run(
            self.wrapped(*command),
            env={**self.environment, **changes},
            cwd=self.folder,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=3600,
        )

    def ask(self, *arguments: str | Path) -> str:
        """Run podman, which must succeed, and return its output."""
        done = self.run("podman", *arguments)
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
    for name in ("images", "run", "engine", "tmp", "store"):
        (folder / name).mkdir(parents=True)
    (folder / "containers.conf").write_text(CONTAINERS.format(folder=folder, store=STORE), encoding="utf8")
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
    for name in ("images", "run", "engine", "tmp", "store", "home"):
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
    podman: Podman, checkout: Path, name: str, *arguments: str, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run one of the user's commands with the token only in secrets.env."""
    command = [checkout / "shell" / name, "PLATFORM=cpu", *arguments]
    return podman.run(*command, **{"RUNTIME": "podman", "HF_TOKEN_PATH": "", **changes})


# Stand-ins for the base images of the Dockerfiles: a Debian made here, laid out as the vendors' images are.

PLATFORMS = ("cpu", "nvd", "amd")
DEBOOTSTRAP = ("--variant=minbase", "--include=python3,python3-venv,ca-certificates,g++,make")
DEBIAN = "localhost/stand-in:debian"
STORE = "/usr/share/stand-in"
"""Folder with PyPI's PyTorch, a stand-in for those of both vendors. It is mounted into every container: in an image,
it would need three times its 5 GB on the disk during the build."""
BASE_PACKAGES = "/opt/venv/lib/python3.12/site-packages"
"""Folder of packages of the virtual environment on PATH in both images."""
PACKAGES = {"amd": BASE_PACKAGES, "nvd": "/usr/local/lib/python3.12/dist-packages"}
"""Folder with PyTorch."""
NUMPY = {"amd": "1.26.4", "nvd": "2.4.6"}
"""AMD's packages of that age require numpy 1: packages that require numpy 2 must not be installed beside it."""
ENGINE = "stand_in_engine"
"""Takes TransformerEngine's place in both folders: half of a TransformerEngine would stop megatron-core's import."""
CLAIMS = {"nvd": ("cuda", "13.0"), "amd": ("hip", "7.15.26300")}
PRIMUS = "primus-fd1eeab"
OF_PRIMUS = (
    # versions of Dockerfile.primus-v26.5.1 where it has them
    *("datasets==3.6.0", "transformers==4.55.0", "pyarrow==21.0.0", "pandas==2.3.3", "matplotlib==3.10.9"),
    *(
        "pybind11==3.0.4",
        "PyYAML==6.0.3",
        "tqdm==4.67.3",
        "nltk==3.10.4",
        "loguru==0.7.3",
        "psutil==7.2.2",
        "pydantic==2.13.4",
    ),
)
"""Packages that Primus imports, beside PyTorch and numpy."""
NOT_COPIED = ("test", "idlelib", "tkinter", "turtledemo", "config-*", "site-packages", "__pycache__", "*.a")
COMMON = f"""
FROM {DEBIAN}
COPY python /usr/local
RUN ldconfig
"""
AMD = f"""
RUN python3 -m venv /opt/venv && cp -rs {STORE}/. {BASE_PACKAGES}/ \\
    && printf '#!/bin/sh\\nexec /opt/venv/bin/python -m torch.distributed.run "$@"\\n' >/opt/venv/bin/torchrun \\
    && chmod +x /opt/venv/bin/torchrun
COPY amd {BASE_PACKAGES}
RUN cd {BASE_PACKAGES} && rm torch/version.py && sed -e 's/^cuda: .*/cuda = None/' \\
        -e 's/^hip: .*/hip = "{CLAIMS["amd"][1]}"/' {STORE}/torch/version.py >torch/version.py \\
    && mkdir -p _rocm_sdk_devel/bin _rocm_sdk_devel/lib \\
    && printf '#!/bin/sh\\n' >_rocm_sdk_devel/bin/rocprofv3 && chmod +x _rocm_sdk_devel/bin/rocprofv3
COPY Primus /workspace/Primus
"""
NVD = f"""
RUN cd /usr/local/lib/python3.12 && mkdir -p {PACKAGES["nvd"]} site-packages \\
    && echo {PACKAGES["nvd"]} >site-packages/dist-packages.pth \\
    && cp -rs {STORE}/. {PACKAGES["nvd"]}/ && python3 -m venv --system-site-packages /opt/venv
COPY dist {PACKAGES["nvd"]}
COPY bridge {BASE_PACKAGES}
RUN for folder in {PACKAGES["nvd"]} {BASE_PACKAGES}; do \\
        mkdir $folder/{ENGINE} && touch $folder/{ENGINE}/__init__.py; \\
    done \\
    && mkdir -p /etc/pip /workspace /opt/nvidia && chmod 777 /workspace && touch /etc/shinit_v2 \\
    && echo 'xxhash==0.0.1' >/etc/pip/constraint.txt && cd /opt/nvidia \\
    && printf '#!/bin/bash\\necho "a banner"\\nexec "$@"\\n' >nvidia_entrypoint.sh && chmod +x nvidia_entrypoint.sh
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]
"""


def base_name(platform: str) -> str:
    """Return the image that the platform's Dockerfile starts from."""
    (name,) = re.findall(r"^ARG BASE_IMAGE=(.+)$", (ROOT / f"{platform}.Dockerfile").read_text(), re.MULTILINE)
    return name


def make_debian(podman: Podman) -> None:
    """Make Debian 12 with its Python 3.11, the version of the CPU image, under the name of that base image."""
    folder = podman.folder / "debian"
    _succeed(["debootstrap", *DEBOOTSTRAP, "bookworm", str(folder)])
    archive = podman.folder / "debian.tar"
    with tarfile.open(archive, "w") as packed:
        packed.add(folder, ".")
    podman.ask("import", "--change", f"ENV PATH={image_variables.DEBIAN_PATH}", archive, DEBIAN)
    _succeed(["rm", "-r", "--one-file-system", str(folder), str(archive)])
    podman.ask("tag", DEBIAN, base_name("cpu"))


def python_312() -> Path | None:
    """Return the folder of a Python 3.12 of this machine that can be copied as a whole; None if there is none."""
    found = python_of("3.12")
    base = found and subprocess.run([found, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True)
    return Path(base.stdout.strip()) if base and base.stdout.strip() != "/usr" else None


def make_vendors(podman: Podman, python: Path) -> None:
    """Make both bases under the names of the vendors' images, with the Python of that folder."""
    context = podman.folder / "context"
    shutil.copytree(python, context / "python", symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    for path in (context / "python" / "bin").iterdir():
        if path.name not in ("python3.12", "python3.12-config"):
            path.unlink()
    for name in ("python3", "python3-config"):
        (context / "python" / "bin" / name).symlink_to(name.replace("3", "3.12"))
    (torch,) = re.findall(r"^torch==.+$", (ROOT / "cpu-requirements.txt").read_text(), re.MULTILINE)
    _install(python, podman.folder / "store", torch)
    _install(python, context / "amd", *OF_PRIMUS, f"numpy=={NUMPY['amd']}")
    _install(python, context / "dist", f"numpy=={NUMPY['nvd']}")
    pins = [line for line in (ROOT / "bridge-requirements.txt").read_text().splitlines() if re.match(r"[^#\s]", line)]
    _install(python, context / "bridge", "--no-deps", *(pin for pin in pins if not re.match("(torch|numpy)==", pin)))
    (context / "Primus").mkdir()
    if real_primus.TREES.is_dir():  # AMD's tree with its Megatron-LM
        real_primus.unpack(PRIMUS, context).replace(context / "Primus")
    for platform, text in (("amd", AMD), ("nvd", NVD)):
        # the build expands them as it expanded the vendor's
        lines = (f"ENV {name}={json.dumps(value)}\n" for name, value in image_variables.lines(platform))
        _build(podman, base_name(platform), COMMON + text + "".join(lines))
    _succeed(["rm", "-r", str(context)])


def _install(python: Path, target: Path, *packages: str) -> None:
    program = str(python / "bin" / "python3.12")
    _succeed([program, "-m", "pip", "install", "--quiet", "--no-compile", f"--target={target}", *packages])


def _build(podman: Podman, name: str, text: str) -> None:
    containerfile = podman.folder / "context" / "Containerfile"
    containerfile.write_text(text, encoding="utf8")
    podman.ask("build", "--quiet", "--layers=false", "--tag", name, "--file", containerfile, containerfile.parent)


def _succeed(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
