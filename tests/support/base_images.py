"""Stand-ins for the base images of the Dockerfiles: a Debian made here, laid out as the vendors' images are.

They have what is public about those images: every variable (image_variables.py), Python 3.12, the places and the owners
of the packages, AMD's real Primus with its hooks and its Megatron-LM, NVIDIA's real Megatron-Bridge, its pins for every
pip, and an entry point that prints. They lack what needs a GPU: TransformerEngine, Apex and ROCm. Both have the PyTorch
of PyPI, on a machine without a GPU one for the CPU; in AMD's its version is that of a build for ROCm.

Sources: docker-release/Dockerfile.primus-v26.5.1 of AMD-AGI/Primus; docker/Dockerfile.ci of Megatron-Bridge (PyTorch in
the system's folder of packages, and on PATH a virtual environment that sees it); docs/get-started/install.md of
Megatron-LM (pins of NVIDIA's PyTorch images for every pip).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import fresh_machine
import image_variables
import real_primus
from checkout import ROOT
from podman_engine import Podman

PLATFORMS = ("cpu", "nvd", "amd")
DEBOOTSTRAP = ("--variant=minbase", "--include=python3,python3-venv,ca-certificates,g++,make")
DEBIAN = "localhost/stand-in:debian"
PYTHON_312 = "localhost/stand-in:python3.12"
"""The Debian with Python 3.12, and the PyTorch of both vendors in STORE."""
STORE = "/usr/share/stand-in"
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
UNUSED = ("libcudnn_*", "libcusolver*", "libnvrtc.alt*", "libnvrtc-builtins*")
"""Libraries of CUDA, 800 MB, that PyTorch opens only to compute on a GPU."""
NOT_COPIED = ("test", "idlelib", "tkinter", "turtledemo", "config-*", "site-packages", "__pycache__")
COMMON = f"""
FROM {DEBIAN}
COPY python /usr/local
RUN ldconfig
COPY torch {STORE}
"""
AMD = f"""
FROM {PYTHON_312}
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
FROM {PYTHON_312}
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
    found = fresh_machine.python_of("3.12")
    base = found and subprocess.run([found, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True)
    return Path(base.stdout.strip()) if base and base.stdout.strip() != "/usr" else None


def make_vendors(podman: Podman, python: Path) -> None:
    """Make both bases under the names of the vendors' images, with the Python of that folder."""
    context = podman.folder / "context"
    shutil.copytree(
        python, context / "python", symlinks=True, ignore=lambda folder, names: _not_copied(python, folder, names)
    )
    for name in ("python3", "python3-config"):
        (context / "python" / "bin" / name).symlink_to(name.replace("3", "3.12"))
    (torch,) = re.findall(r"^torch==.+$", (ROOT / "cpu-requirements.txt").read_text(), re.MULTILINE)
    _install(python, context / "torch", torch)
    for pattern in UNUSED:
        for path in (context / "torch" / "nvidia").rglob(pattern):
            path.unlink()
    _install(python, context / "amd", *OF_PRIMUS, f"numpy=={NUMPY['amd']}")
    _install(python, context / "dist", f"numpy=={NUMPY['nvd']}")
    pins = [line for line in (ROOT / "bridge-requirements.txt").read_text().splitlines() if re.match(r"[^#\s]", line)]
    _install(python, context / "bridge", "--no-deps", *(pin for pin in pins if not re.match("(torch|numpy)==", pin)))
    _unpack_primus(context / "Primus")
    _build(podman, PYTHON_312, COMMON)
    for platform, text in (("amd", AMD), ("nvd", NVD)):
        _build(podman, base_name(platform), text + _environment(platform))
    _succeed(["rm", "-r", str(context)])


def _not_copied(python: Path, folder: str, names: list[str]) -> set[str]:
    if Path(folder) == python / "bin":
        return {name for name in names if name not in ("python3.12", "python3.12-config")}
    return set(shutil.ignore_patterns(*NOT_COPIED, "*.a")(folder, names))


def _install(python: Path, target: Path, *packages: str) -> None:
    program = str(python / "bin" / "python3.12")
    _succeed([program, "-m", "pip", "install", "--quiet", "--no-compile", f"--target={target}", *packages])


def _unpack_primus(folder: Path) -> None:
    """Unpack AMD's tree with its Megatron-LM; an empty folder where the trees are not beside the repository."""
    folder.mkdir()
    if real_primus.TREES.is_dir():
        real_primus.unpack(PRIMUS, folder.parent).replace(folder)


def _environment(platform: str) -> str:
    """Return the ENV lines, which the build expands as it expanded the vendor's."""
    return "".join(f"ENV {name}={json.dumps(value)}\n" for name, value in image_variables.lines(platform))


def _build(podman: Podman, name: str, text: str) -> None:
    containerfile = podman.folder / "context" / "Containerfile"
    containerfile.write_text(text, encoding="utf8")
    podman.ask("build", "--quiet", "--layers=false", "--tag", name, "--file", containerfile, containerfile.parent)


def _succeed(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
