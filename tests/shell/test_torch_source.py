"""Where packages come from: torch_source.py with real Pythons and a local index, and the pins of the requirements."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from packaging.requirements import Requirement

SCRIPT = ROOT / "shell" / "lib" / "torch_source.py"
BUILDS = {
    "nvd": ("2.7.0a0+79aa174.nv25.4", "class version:\n    cuda, hip = '12.9', None\n"),
    "amd": ("2.9.0+rocm7.0", "class version:\n    cuda, hip = None, '7.0.51831'\n"),
}
FOR_A_CPU = ("2.13.0+cpu", "class version:\n    cuda, hip = None, None\n")
BROKEN = ("2.9.0", "raise OSError('libamdhip64.so: cannot open shared object file')")


def ask(platform: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    """Ask for the torch of this machine, which has only the packages in these folders."""
    # -S: without site-packages, where the real torch lies; -E is left out because PYTHONPATH brings the stand-ins
    command = [sys.executable, "-S", str(SCRIPT), "machine", platform]
    environment = {"PYTHONPATH": ":".join(map(str, folders))}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def add_package(folder: Path, name: str, version: str, code: str = "") -> None:
    files = {
        f"{name}/__init__.py": code,
        f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(text, encoding="utf8")


@pytest.mark.parametrize("platform", BUILDS)
def test_a_torch_of_the_platform_is_pinned_with_its_numpy_and_folders_keep_their_order(
    tmp_path: Path, platform: str
) -> None:
    """NVIDIA's NeMo images have PyTorch in the system's folder and TransformerEngine in a virtual environment's."""
    own, system = tmp_path / "venv" / "site-packages", tmp_path / "system" / "dist-packages"
    add_package(system, "torch", *BUILDS[platform])
    add_package(system, "numpy", "1.26.4")
    add_package(own, "transformer_engine", "2.12.0")
    done = ask(platform, tmp_path, tmp_path / "missing" / "site-packages", own, system)
    assert done.stdout.splitlines() == [str(own), str(system), f"torch=={BUILDS[platform][0]}", "numpy==1.26.4"]


@pytest.mark.parametrize(
    ("platform", "there"),
    [
        *(("nvd", BUILDS["amd"]), ("amd", BUILDS["nvd"])),
        *((platform, there) for platform in BUILDS for there in (None, FOR_A_CPU, BROKEN)),
    ],
)
def test_any_other_torch_does_not_count(tmp_path: Path, platform: str, there: tuple[str, str] | None) -> None:
    if there:
        add_package(tmp_path, "torch", *there)
    done = ask(platform, tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert ("libamdhip64.so" in done.stderr) == (there == BROKEN)


# The files of requirements: every package is pinned, once for each Python, and at one version in all environments.

FILES = sorted(path.name.removesuffix("-requirements.txt") for path in ROOT.glob("*-requirements.txt"))
PYTHONS = {"bridge": ("3.12",), "nemo": ("3.11",)}
"""Of the frameworks that take one version only."""
EVERY_PYTHON = ("3.10", "3.11", "3.12", "3.13")
EXPECTED = {
    "bridge": {"megatron-bridge": "==0.6.2", "megatron-core": "==0.19.2"},
    "nemo": {"nemo_toolkit": "==2.3.3", "megatron-core": "==0.12.3"},
    "titan": {"torchtitan": "==0.3.0"},
}
"""The releases of docs/frameworks.md, and the megatron-core that two of them require."""


def pins(name: str, python: str) -> dict[str, str]:
    """Return the versions that a file pins for one Python; fail if two lines pin one package."""
    lines = (ROOT / f"{name}-requirements.txt").read_text(encoding="utf8").splitlines()
    asked = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert [one for one in asked if not re.fullmatch(r"==\d+(\.\d+)*(\.post\d+)?", str(one.specifier))] == []
    here = [one for one in asked if one.marker is None or one.marker.evaluate({"python_version": python})]
    found = {one.name: str(one.specifier) for one in here}
    assert len(found) == len(here), f"a package twice on Python {python}"
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
