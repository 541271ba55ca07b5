"""The files of requirements: every package is pinned, once for each Python, and at one version in all environments."""

from __future__ import annotations

import re

import pytest
from checkout import ROOT
from packaging.requirements import Requirement

FILES = sorted(path.name.removesuffix("-requirements.txt") for path in ROOT.glob("*-requirements.txt"))
PYTHONS = {"bridge": ("3.12",), "nemo": ("3.11",)}
"""Of the frameworks that take one version only."""
EVERY_PYTHON = ("3.10", "3.11", "3.12", "3.13")
EXPECTED = {
    "bridge": {"megatron-bridge": "==0.6.2", "megatron-core": "==0.19.2"},
    "nemo": {"nemo_toolkit": "==2.3.3", "megatron-core": "==0.12.3"},
    "titan": {"torchtitan": "==0.2.2"},
}
"""The releases of docs/frameworks.md, and the megatron-core that two of them require."""


def pins(name: str, python: str) -> dict[str, str]:
    """Return the versions that a file pins for one Python; fail if two lines pin one package."""
    found: dict[str, str] = {}
    for line in (ROOT / f"{name}-requirements.txt").read_text(encoding="utf8").splitlines():
        if not line or line.startswith("#"):
            continue
        asked = Requirement(line)
        assert re.fullmatch(r"==\d+(\.\d+)*(\.post\d+)?", str(asked.specifier)), line
        if asked.marker is None or asked.marker.evaluate({"python_version": python}):
            assert asked.name not in found, f"{asked.name} twice on Python {python}"
            found[asked.name] = str(asked.specifier)
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_package_is_pinned_for_every_python(name: str) -> None:
    found = [pins(name, python) for python in PYTHONS.get(name, EVERY_PYTHON)]
    assert found[0] and all(set(one) == set(found[0]) for one in found)
    assert found[0].items() >= EXPECTED.get(name, {}).items()


@pytest.mark.parametrize("python", EVERY_PYTHON)
def test_all_platforms_and_the_environment_for_reading_have_the_same_versions(python: str) -> None:
    cpu, reading = pins("cpu", python), pins("evaluate", python)
    assert reading == {name: cpu[name] for name in reading}
    assert "pyarrow" in cpu, "shell/inside/setup_framework.sh takes its version from there"
    for name in ("torch", "numpy", "pandas"):  # a machine with GPUs keeps its own versions of these
        cpu.pop(name)
    assert pins("amd", python) == pins("nvd", python) == cpu


def test_torchtitan_keeps_the_torch_of_the_suite() -> None:
    assert not pins("titan", "3.11").keys() & {"torch", "triton", "numpy", "nvidia-nccl-cu12"}
