"""Stand-ins for the base images of the Dockerfiles: a Debian made here, with a PyTorch under a vendor's name.

Nothing of a vendor is in them. What they prove is that the instructions and the requirement files install on an image
with a Python and a PyTorch of its own, and leave both as they were.

NVIDIA's is laid out as NeMo's images are since 25.09 (docker/Dockerfile.ci of Megatron-Bridge 0.3.1, which is in
26.02): PyTorch in the system's folder of packages, and on PATH a virtual environment that sees it and holds
TransformerEngine. Below it, NVIDIA's PyTorch images pin their own packages for every pip (docs/get-started/install.md
of Megatron-LM).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

from podman_engine import Podman

ROOT = Path(__file__).parents[2]
PLATFORMS = ("cpu", "nvd", "amd")
DEBOOTSTRAP = ("--variant=minbase", "--include=python3,python3-venv,ca-certificates")
DEBIAN = "localhost/stand-in:debian"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
PACKAGES = "/usr/local/lib/python3.11/dist-packages"
"""Folder of administrator-installed packages of Debian 12's own Python."""
NUMPY = "numpy==1.26.4"
"""NeMo 2 requires numpy 1: packages that require numpy 2 (pyarrow from 26.0 on) must not be installed."""
BASE_PACKAGES = "/opt/venv/lib/python3.11/site-packages"
"""Folder of packages of the virtual environment in NVIDIA's image."""
ENGINE = "stand_in_engine"
"""Takes TransformerEngine's place in both folders: half of a TransformerEngine would stop megatron-core's import."""
CLAIMS = {"nvd": ("cuda", "12.8"), "amd": ("hip", "7.0.51831")}
CONTAINERFILE = f"""
FROM {DEBIAN}
COPY torch {PACKAGES}
RUN sed -i 's/^{{claim}}: .*/{{claim}} = "{{version}}"/' {PACKAGES}/torch/version.py
{{more}}LABEL stand-in="{{platform}}: the CPU build of PyTorch under a vendor's name"
ENTRYPOINT ["/bin/echo", "a banner of the base image"]
"""
LAYOUT = {
    "amd": "",
    "nvd": f"""
RUN python3 -m venv --system-site-packages /opt/venv \\
    && for folder in {PACKAGES} {BASE_PACKAGES}; do \\
        mkdir $folder/{ENGINE} && touch $folder/{ENGINE}/__init__.py; \\
    done \\
    && mkdir /etc/pip && echo 'xxhash==0.0.1' >/etc/pip/constraint.txt
ENV PATH=/opt/venv/bin:$PATH PIP_CONSTRAINT=/etc/pip/constraint.txt
""",
}
"""Instructions that lay a base out as the vendor's, by platform."""


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
    podman.ask("import", archive, DEBIAN)
    _succeed(["rm", "-r", "--one-file-system", str(folder), str(archive)])
    podman.ask("tag", DEBIAN, base_name("cpu"))


def make_vendors(podman: Podman) -> None:
    """Make the two bases with a PyTorch in them, under the names of the vendors' images."""
    context = podman.folder / "context"
    (torch,) = re.findall(r"^torch==.+$", (ROOT / "cpu-requirements.txt").read_text(), re.MULTILINE)
    source = [sys.executable, str(ROOT / "shell" / "lib" / "torch_source.py"), "answers", f"{CPU_WHEELS}/torch/"]
    extra = [] if subprocess.run(source, timeout=60).returncode else ["--extra-index-url", CPU_WHEELS]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "--python-version=3.11", *extra]
    _succeed([*pip, f"--target={context / 'torch'}", torch, NUMPY])
    for platform, (claim, version) in CLAIMS.items():
        containerfile = context / f"{platform}.Containerfile"
        text = CONTAINERFILE.format(claim=claim, version=version, platform=platform, more=LAYOUT[platform])
        containerfile.write_text(text, encoding="utf8")
        podman.ask("build", "--quiet", "--tag", base_name(platform), "--file", containerfile, context)
    _succeed(["rm", "-r", str(context)])


def _succeed(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{command[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
