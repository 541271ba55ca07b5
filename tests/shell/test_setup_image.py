"""shell/inside/setup_image.sh with stand-ins for all programs: nothing of this machine is changed."""

from __future__ import annotations

import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.setups import add_program, copy_to, link_tools

MEGATRON = "Primus/third_party/Megatron-LM/megatron/core/datasets"
Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return what runs the script for a platform; its programs are in `programs`, the base's packages in `packages`."""
    copy_to(tmp_path, "shell/inside/setup_image.sh", "shell/lib", "shell/platform.sh")
    programs = tmp_path / "programs"
    link_tools(programs, "bash", "env", "dirname", "readlink", "cat", "mkdir", "chmod")
    made = {
        programs / "rm": "",
        programs / "apt-get": f'echo "$*" >>"{tmp_path}/apt"',
        programs / "make": f'[[ $3 == */{MEGATRON} ]] && : >"$3/helper"',
        programs / "python3": f'[[ $2 != *purelib* ]] || echo "{tmp_path}/packages"',
        tmp_path / "shell" / "setup.sh": 'echo "${PIP_CONSTRAINT-none} $PIP_INDEX_URL"',
    }
    for path, text in made.items():
        add_program(path, f"#!/bin/bash\n{text}\n")

    def start(platform: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(programs), "PLATFORM": platform, "TPRIMAT_VENV": str(tmp_path / "venv")}
        environment |= {"PIP_CONSTRAINT": "/etc/pip/constraint.txt", "PIP_INDEX_URL": "kept"}
        environment["PRIMUS_PATH"] = str(tmp_path / "Primus")
        command = [str(tmp_path / "shell" / "inside" / "setup_image.sh")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    return start


@pytest.mark.parametrize("platform", ["nvd", "amd", "cpu"])
def test_what_the_base_image_pins_for_its_own_python_does_not_bind_the_environment(run: Run, platform: str) -> None:
    """NVIDIA's PyTorch images set PIP_CONSTRAINT; pip would refuse the pins of the requirement files."""
    done = run(platform)
    assert (done.returncode, done.stdout) == (0, "none kept\n"), done.stderr


def test_primus_is_compiled_and_what_its_jobs_write_is_open_to_all_users(run: Run, tmp_path: Path) -> None:
    (tmp_path / MEGATRON).mkdir(parents=True)
    packages = tmp_path / "packages"
    for folder in ("transformer_engine/lib/ck_jit", "aiter_meta/hsa", "aiter/jit"):
        (packages / folder).mkdir(parents=True)
    (packages / "aiter" / "jit" / "core.py").touch(0o644)
    done = run("amd")
    assert done.returncode == 0 and "Primus" not in done.stderr.replace("Primus: compiling", ""), done.stderr
    assert (tmp_path / MEGATRON / "helper").is_file()
    for folder in ("transformer_engine/lib/ck_jit/cache", "aiter_meta/hsa"):
        assert stat.S_IMODE((packages / folder).stat().st_mode) == 0o1777, folder
    assert (packages / "aiter" / "jit" / "core.py").stat().st_mode & stat.S_IWOTH


@pytest.mark.parametrize("has_primus", [True, False])
def test_an_image_without_primus_or_without_its_helper_is_made_with_a_warning(
    run: Run, tmp_path: Path, has_primus: bool
) -> None:
    if has_primus:
        (tmp_path / MEGATRON).mkdir(parents=True)
        (tmp_path / "programs" / "make").write_text("#!/bin/bash\nexit 2\n", encoding="utf8")
    done = run("amd")
    assert done.returncode == 0
    wanted = "runs FRAMEWORK=prim as root only" if has_primus else "FRAMEWORK=prim then needs PRIMUS_PATH"
    assert wanted in done.stderr


@pytest.mark.parametrize("has_profiler", [True, False])
def test_the_profiler_of_rocm_is_looked_for_on_path(run: Run, tmp_path: Path, has_profiler: bool) -> None:
    """In AMD's image ROCm is a package of its Python, and there is no /opt/rocm."""
    if has_profiler:
        (tmp_path / "programs" / "rocprofv3").symlink_to(str(shutil.which("true")))
    done = run("amd")
    asked = (tmp_path / "apt").read_text(encoding="utf8") if (tmp_path / "apt").exists() else ""
    assert done.returncode == 0 and ("rocprofiler-sdk" in asked) != has_profiler
