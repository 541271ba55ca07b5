"""Variables of the vendors' base images: facts from their published Dockerfiles and layers, in `images/*.env`.

amd: rocm/primus v26.5.1 (AMD-AGI/Primus fd1eeab, .github/workflows/docker-release/Dockerfile.primus-v26.5.1, whose
argument UCX_VERSION is filled in). nvd: a published listing of the layers of nvcr.io/nvidia/pytorch:25.10, on which
NeMo's images stand, without versions of single libraries; the last two lines are those of Megatron-Bridge's own image
(NVIDIA-NeMo/Megatron-Bridge 067f987, docker/Dockerfile.ci).
"""

from __future__ import annotations

import re
from pathlib import Path

FILES = Path(__file__).parent / "images"
DEBIAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def lines(platform: str) -> list[tuple[str, str]]:
    """Return names and values as the Dockerfile has them, in its order."""
    text = (FILES / f"{platform}.env").read_text(encoding="utf8")
    return [(name, value) for name, _, value in (line.partition("=") for line in text.splitlines())]


def variables(platform: str) -> dict[str, str]:
    """Return what a process in the image gets: `$NAME` and `${NAME}` are expanded as in the ENV of a Dockerfile."""
    found = {"PATH": DEBIAN_PATH}
    for name, value in lines(platform):
        found[name] = re.sub(r"\$\{?(\w+)\}?", lambda match: found.get(match[1], ""), value)
    return found
