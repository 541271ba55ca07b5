"""shell/lib/torch_source.py with real Pythons and a real local server as the index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
