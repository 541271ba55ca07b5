"""shell/setup.sh and setup_image.sh in a copy of the checkout, with stand-ins for Python, pip and apt."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.setups import Checkout, add_program, copy_to, link_tools

LIMIT_SECONDS = 60


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Return a checkout on a machine with one Python."""
    made = Checkout(tmp_path)
    made.add_python()
    return made


INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu "


@pytest.mark.parametrize(("platform", "code", "index"), [("cpu", "0", INDEX), ("cpu", "1", ""), ("nvd", "0", "")])
def test_a_cpu_machine_takes_the_cpu_wheels_where_they_answer(checkout, platform, code, index):
    """An NVIDIA machine without torch takes the pinned one from the plain index."""
    done = checkout.run(f"PLATFORM={platform}", WHEELS_EXIT=code)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    torch_call, packages_call, energy_call = checkout.calls()
    pins = f"-c {checkout.root}/cpu-requirements.txt"
    assert torch_call.endswith(f"{pins} {index}torch numpy")
    assert packages_call.endswith(f"{pins} -r {checkout.root}/{platform}-requirements.txt")
    assert energy_call.endswith(f"--no-deps -r {checkout.root}/energy-requirements.txt")
    assert ("does not answer" in done.stderr) == (code == "1")
    assert not checkout.calls("--system-site-packages")
    assert "Collecting" not in done.stderr, "pip is quiet unless it fails"
    assert not (checkout.venv / ".pip-output").exists()


@pytest.mark.parametrize(
    ("platform", "torch"), [("nvd", "torch==2.7.0a0+79aa174.nv25.4"), ("amd", "torch==2.9.0+rocm7.0")]
)
def test_the_torch_of_a_gpu_machine_stays(checkout, platform, torch):
    folders = "/opt/venv/site-packages\n/opt/vendor/dist-packages\n"
    done = checkout.run(PLATFORM=platform, FAKE_TORCH=f"{folders}{torch}\nnumpy==1.26.4\n")
    assert done.returncode == 0, done.stderr
    assert checkout.calls("-m venv --clear --system-site-packages")
    packages_call, energy_call = checkout.calls()  # so none that installs torch
    assert "--no-deps" in energy_call, "what zeus declares would bring another amdsmi than that of ROCm"
    kept = checkout.venv / ".machine-torch.txt"
    assert f"-c {kept} -r {checkout.root}/{platform}-requirements.txt" in packages_call
    assert kept.read_text(encoding="utf8").split() == [torch, "numpy==1.26.4"]
    assert (checkout.venv / "bin" / "machine.pth").read_text(encoding="utf8") == folders
    assert f"this machine's own ({torch} numpy==1.26.4)" in done.stderr


def test_amd_machine_without_torch_is_told_to_install_it(checkout):
    done = checkout.run(PLATFORM="amd", WHEELS_EXIT="0")
    assert done.returncode == 1
    assert "install PyTorch for ROCm first" in done.stderr
    assert not checkout.venv.exists() and not checkout.calls()


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        ({"python3": "3.9.18", "python3.10": "3.10.13", "python3.12": "3.12.1"}, "python3.12"),
        ({"python3": "3.14.0", "python3.13": "3.13.0"}, "python3.13"),
        ({"python3": "2.7.18", "python3.10": "3.10.13"}, "python3.10"),
        ({"python3": "3.10.13", "python3.13": "3.13.0"}, "python3"),
    ],
)
def test_python3_is_taken_if_it_fits_else_the_newest_that_does(checkout, there, taken):
    for name, version in there.items():
        checkout.add_python(name, version)
    said = checkout.run().stderr
    assert f"making .venv with Python {there[taken]} of {checkout.programs}/{taken}\n" in said


def test_no_python_that_fits_is_an_error_that_names_what_was_found(checkout):
    old = checkout.add_python("python3", "3.9.18")
    bare = checkout.add_python("python3.11", "3.11.2", has_venv=False)
    broken = add_program(
        checkout.programs / "python3.10", "#!/usr/bin/env bash\necho 'no such version' >&2\nexit 127\n"
    )
    done = checkout.run()
    (error,) = done.stderr.splitlines()
    assert done.returncode == 1 and error.startswith("error: ")
    assert f"{old} is Python 3.9.18;" in error
    assert f"{bare} is Python 3.11.2 without its venv module (Debian, Ubuntu: apt install python3-venv);" in error
    assert f"{broken} is not running (no such version);" in error
    assert not checkout.venv.exists()
    for path in (old, bare, broken):
        path.unlink()
    assert "got none on PATH; wanted Python 3.10 to 3.13" in checkout.run().stderr


def test_the_python_of_an_activated_venv_of_ours_does_not_count(checkout):
    checkout.run()
    shutil.copy(checkout.programs / "python3", checkout.venv / "bin" / "python3")
    (checkout.venv / ".installing").touch()
    done = checkout.run(PATH=f"{checkout.venv}/bin:{checkout.programs}")
    assert f"making .venv with Python 3.11.7 of {checkout.programs}/python3\n" in done.stderr


def test_a_fresh_environment_is_left_alone(checkout):
    assert checkout.run().returncode == 0
    done = checkout.run()
    assert (done.returncode, done.stderr, checkout.calls("-m")) == (0, "", [])


@pytest.mark.parametrize("name", ["cpu", "nvd", "energy"])
def test_changed_requirements_are_installed_into_the_same_venv(checkout, name):
    checkout.run(PLATFORM="nvd")
    checkout.change(f"{name}-requirements.txt")
    assert "keeping .venv" in checkout.run(PLATFORM="nvd").stderr
    assert checkout.calls("nvd-requirements.txt") and not checkout.calls("-m venv")
    assert not checkout.run(PLATFORM="nvd").stderr


@pytest.mark.parametrize(
    ("change", "platform", "is_made_anew"), [("upgraded", "cpu", False), ("gone", "cpu", True), ("kept", "nvd", True)]
)
def test_with_another_python_or_platform_all_is_installed_again(checkout, change, platform, is_made_anew):
    checkout.run()
    python = checkout.venv / "bin" / "python"
    if change == "upgraded":
        shutil.copy(checkout.add_python(version="3.11.9"), python)
    elif change == "gone":
        python.unlink()
    assert checkout.run(PLATFORM=platform).returncode == 0
    assert checkout.calls() and bool(checkout.calls("-m venv --clear")) == is_made_anew


def test_a_failing_pip_exits_1_says_so_and_leaves_no_stamp(checkout):
    done = checkout.run(PIP_FAILS_ON="-r ")
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "run again" in error
    assert done.stderr.count("Collecting a package") == 1, "the output of the pip that failed, not of the one before"
    assert checkout.stamps() == set()
    again = checkout.run()
    assert again.returncode == 0 and "keeping .venv" in again.stderr


def test_a_failed_install_of_new_requirements_is_not_taken_for_the_old_ones(checkout):
    checkout.run()
    old = (checkout.root / "cpu-requirements.txt").read_text(encoding="utf8")
    checkout.change("cpu-requirements.txt")
    checkout.run(PIP_FAILS_ON="-r ")  # torch may be the new one by now
    (checkout.root / "cpu-requirements.txt").write_text(old, encoding="utf8")
    checkout.run()
    assert len(checkout.calls()) == 3


def test_a_killed_install_is_repaired_by_the_next(checkout):
    environment = checkout.environment(PIP_SECONDS="60")
    with subprocess.Popen(
        [checkout.script], env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not checkout.calls():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, 9)
    assert checkout.stamps() == set()
    assert checkout.run().returncode == 0
    assert checkout.calls("-m venv --clear") and checkout.stamps() == {".stamp-runtime"}


def test_two_at_once_install_once(checkout):
    environment = checkout.environment(PIP_SECONDS="0.3")
    both = [subprocess.Popen([checkout.script], env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=LIMIT_SECONDS)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert (len(checkout.calls("-m venv")), len(checkout.calls())) == (1, 3)
    assert sum("waiting for it" in text for text in said) == 1


def test_dev_and_runtime_have_stamps_of_their_own(checkout):
    assert "[4/4] packages of dev-requirements.txt" in checkout.run("--dev").stderr
    assert checkout.stamps() == {".stamp-runtime", ".stamp-dev"}
    checkout.change("dev-requirements.txt")
    assert not checkout.run().stderr
    checkout.run("--dev")
    assert checkout.calls("dev-requirements.txt")


def test_scripts_set_up_only_what_is_missing_and_a_plan_nothing(checkout):
    for is_first in (True, False):
        done = checkout.source('use_environment; printf "%s|%s" "$ROOT" "$PYTHON"')
        assert done.stdout == f"{checkout.root}|{checkout.venv}/bin/python"
        assert bool(checkout.calls()) is is_first
    before = checkout.stamps()
    for function, changes_it in (("is_dry_run=true; use_environment", False), ("use_environment", True)):
        checkout.source(function, PLATFORM="nvd")
        assert bool(checkout.calls()) is changes_it and checkout.stamps() == before


def test_an_unknown_argument_is_refused_also_where_only_the_setup_is(checkout):
    done = checkout.run("dev")
    assert (done.returncode, done.stderr) == (2, "error: setup: got argument 'dev', wanted --dev or KEY=VALUE\n")


def test_an_image_older_than_the_checkout_is_not_used(checkout):
    checkout.run()
    checkout.change("cpu-requirements.txt")
    for function in ("use_environment", "is_dry_run=true; use_environment"):
        done = checkout.source(function, TPRIMAT_IN_CONTAINER="1")
        assert (done.returncode, checkout.calls()) == (1, [])
        assert done.stderr.startswith("error: environment: the image is older than cpu-requirements.txt")
        assert "./shell/build.sh" in done.stderr


# shell/inside/setup_image.sh with stand-ins for all programs: nothing of this machine is changed.

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
