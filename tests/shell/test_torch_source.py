"""Where packages come from: torch_source.py with real Pythons and a local index, and the pins of the requirements."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from packaging.requirements import Requirement

SCRIPT = Path(__file__).parents[2] / "shell" / "lib" / "torch_source.py"


def ask(*arguments: str, packages: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script with only the packages in the folder."""
    # -S: without site-packages, where the real torch lies; -E is left out because PYTHONPATH brings the stand-ins
    command = [sys.executable, "-S", str(SCRIPT), *arguments]
    environment = {"PYTHONPATH": str(packages)} | environment if packages else environment
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def add_package(folder: Path, name: str, version: str, code: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(code, encoding="utf8")
    metadata = folder / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf8")


def add_torch(folder: Path, version: str, *, cuda: str | None = None, hip: str | None = None) -> None:
    code = f"class version:\n    cuda = {cuda!r}\n    hip = {hip!r}\n"
    add_package(folder, "torch", version, code)


BUILDS = {
    "nvd": {"version": "2.7.0a0+79aa174.nv25.4", "cuda": "12.9"},
    "amd": {"version": "2.9.0+rocm7.0", "hip": "7.0.51831"},
}


@pytest.mark.parametrize("platform", ["nvd", "amd"])
def test_a_torch_of_the_platform_is_pinned_with_its_numpy(tmp_path: Path, platform: str) -> None:
    add_torch(tmp_path, **BUILDS[platform])  # type: ignore[arg-type]
    add_package(tmp_path, "numpy", "1.26.4", "")
    done = ask("machine", platform, packages=tmp_path)
    assert done.stdout.splitlines() == [str(tmp_path), f"torch=={BUILDS[platform]['version']}", "numpy==1.26.4"]


@pytest.mark.parametrize("platform", ["nvd", "amd"])
def test_a_folder_of_packages_before_that_of_torch_stays_before_it(tmp_path: Path, platform: str) -> None:
    """NVIDIA's NeMo images have PyTorch in the system's folder and TransformerEngine in a virtual environment's."""
    own, system = tmp_path / "venv" / "site-packages", tmp_path / "system" / "dist-packages"
    for folder in (own, system):
        folder.mkdir(parents=True)
    add_torch(system, **BUILDS[platform])  # type: ignore[arg-type]
    add_package(own, "transformer_engine", "2.12.0", "")
    searched = f"{tmp_path}:{tmp_path / 'missing' / 'site-packages'}:{own}:{system}"
    done = ask("machine", platform, PYTHONPATH=searched)
    assert done.stdout.splitlines() == [str(own), str(system), f"torch=={BUILDS[platform]['version']}"]


@pytest.mark.parametrize("platform", BUILDS)
@pytest.mark.parametrize("there", ["none", "of the other vendor", "for a CPU", "cannot be imported"])
def test_any_other_torch_does_not_count(tmp_path: Path, platform: str, there: str) -> None:
    if there == "of the other vendor":
        add_torch(tmp_path, **BUILDS["amd" if platform == "nvd" else "nvd"])  # type: ignore[arg-type]
    elif there == "for a CPU":
        add_torch(tmp_path, "2.13.0+cpu")
    elif there == "cannot be imported":
        add_package(tmp_path, "torch", "2.9.0", "raise OSError('libamdhip64.so: cannot open shared object file')")
    done = ask("machine", platform, packages=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert ("libamdhip64.so" in done.stderr) == (there == "cannot be imported")


# The files of requirements: every package is pinned, once for each Python, and at one version in all environments.

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
