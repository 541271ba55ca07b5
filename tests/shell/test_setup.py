"""shell/setup.sh in a copy of the checkout, with stand-ins for Python and pip: nothing is downloaded or installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PLATFORMS = ("amd", "nvd", "cpu")
TOOLS = (
    "bash",
    "env",
    "dirname",
    "readlink",
    "cat",
    "sha256sum",
    "mkdir",
    "rm",
    "cp",
    "sed",
    "paste",
    "flock",
    "sleep",
)
# Plays python3, the Python of .venv and its pip; writes every call into calls.txt.
STAND_IN = """#!/usr/bin/env bash
printf '%s\\n' "$*" >>"$CALLS"
case "$*" in
  -V) echo "Python {version}" ;;
  *ensurepip*) exit {venv_exit} ;;
  "-m venv"*) mkdir -p "${{@: -1}}/bin" && rm -f "${{@: -1}}"/.[!.]* && cp "$0" "${{@: -1}}/bin/python" ;;
  "-m pip"*) echo "Collecting a package"; sleep "${{PIP_SECONDS:-0}}"; [[ $* != *"${{PIP_FAILS_ON:-nothing}}"* ]] ;;
  *"torch_source.py machine"*) printf '%s' "${{FAKE_TORCH:-}}" ;;
  *"torch_source.py answers"*) exit "${{WHEELS_EXIT:-1}}" ;;
  *purelib*) dirname -- "$0" ;;
esac
"""


class Checkout:
    """A copy of the files that setup.sh reads, below a folder with a space in its name, and a PATH of stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"
        self.programs = folder / "programs"
        self.calls_file = folder / "calls.txt"
        self.venv = self.root / ".venv"
        (self.root / "shell" / "lib").mkdir(parents=True)
        self.programs.mkdir()
        for name in ("setup.sh", "lib/environment.sh", "lib/install.sh", "platform.sh"):
            shutil.copy(ROOT / "shell" / name, self.root / "shell" / name)
        for path in ROOT.glob("*-requirements.txt"):
            shutil.copy(path, self.root)
        for name in TOOLS:
            (self.programs / name).symlink_to(str(shutil.which(name)))

    def add_python(self, name: str = "python3", version: str = "3.11.7", *, has_venv: bool = True) -> Path:
        path = self.programs / name
        path.write_text(STAND_IN.format(version=version, venv_exit=0 if has_venv else 1), encoding="utf8")
        path.chmod(0o755)
        return path

    def environment(self, **changes: str) -> dict[str, str]:
        return {"PATH": str(self.programs), "PLATFORM": "cpu", "CALLS": str(self.calls_file), **changes}

    def run(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run setup.sh and forget the calls of earlier runs."""
        self.calls_file.unlink(missing_ok=True)
        command = [str(self.root / "shell" / "setup.sh"), *arguments]
        return subprocess.run(command, env=self.environment(**changes), capture_output=True, text=True, timeout=60)

    def calls(self, containing: str) -> list[str]:
        if not self.calls_file.exists():
            return []
        return [line for line in self.calls_file.read_text(encoding="utf8").splitlines() if containing in line]

    def stamps(self) -> set[str]:
        return {path.name for path in self.venv.glob(".stamp-*")}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def requirements(name: str) -> list[Requirement]:
    lines = (ROOT / f"{name}-requirements.txt").read_text(encoding="utf8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pins(name: str, python: str) -> dict[str, str]:
    """Return the versions that a file pins for one Python; fail if two lines pin one package."""
    found: dict[str, str] = {}
    for requirement in requirements(name):
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
            assert requirement.name not in found, f"{requirement.name} twice on Python {python}"
            found[requirement.name] = str(requirement.specifier)
    return found


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_platforms_pin_the_same_versions(python: str) -> None:
    cpu = pins("cpu", python)
    # a machine with GPUs keeps its own versions of these
    assert cpu.pop("torch") and cpu.pop("numpy") and cpu.pop("pandas")
    assert pins("amd", python) == cpu
    assert pins("nvd", python) == cpu


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_the_environment_for_reading_has_the_versions_of_that_for_training(python: str) -> None:
    cpu, reading = pins("cpu", python), pins("evaluate", python)
    assert reading == {name: cpu[name] for name in reading}
    assert "pyarrow" in cpu, "shell/inside/setup_evaluate.sh takes its version from there"


@pytest.mark.parametrize("name", [*PLATFORMS, "dev", "evaluate", "energy"])
def test_every_requirement_is_pinned_for_every_python(name: str) -> None:
    asked = requirements(name)
    assert asked
    for requirement in asked:
        assert re.fullmatch(r"==\d+(\.\d+)+(\.post\d+)?", str(requirement.specifier)), str(requirement)
    for python in ("3.10", "3.11", "3.12", "3.13"):
        assert set(pins(name, python)) == {requirement.name for requirement in asked}


def test_cpu_machine_takes_the_cpu_wheels_where_they_answer(checkout: Checkout) -> None:
    checkout.add_python()
    done = checkout.run(WHEELS_EXIT="0")
    assert done.returncode == 0, done.stderr
    torch_call, packages_call, energy_call = checkout.calls("-m pip")
    assert energy_call.endswith(f"--no-deps -r {checkout.root}/energy-requirements.txt")
    assert "--extra-index-url https://download.pytorch.org/whl/cpu torch numpy" in torch_call
    assert f"-c {checkout.root}/cpu-requirements.txt" in torch_call
    assert "download.pytorch.org" not in packages_call
    assert f"-r {checkout.root}/cpu-requirements.txt" in packages_call
    assert "[2/3] torch and numpy: from https://download.pytorch.org/whl/cpu\n" in done.stderr
    assert done.stdout == ""


def test_cpu_machine_without_the_cpu_wheels_says_so_and_takes_the_plain_index(checkout: Checkout) -> None:
    checkout.add_python()
    done = checkout.run(WHEELS_EXIT="1")
    assert done.returncode == 0, done.stderr
    assert not [call for call in checkout.calls("-m pip") if "download.pytorch.org" in call]
    assert "does not answer" in done.stderr


def test_nvidia_machine_without_torch_takes_the_pinned_one_from_the_plain_index(checkout: Checkout) -> None:
    checkout.add_python()
    assert checkout.run(PLATFORM="nvd", WHEELS_EXIT="0").returncode == 0
    torch_call, packages_call, _ = checkout.calls("-m pip")
    assert torch_call.endswith(f"-c {checkout.root}/cpu-requirements.txt torch numpy")
    assert packages_call.endswith(f"-r {checkout.root}/nvd-requirements.txt")
    assert not checkout.calls("--system-site-packages")


@pytest.mark.parametrize(
    ("platform", "torch"), [("nvd", "torch==2.7.0a0+79aa174.nv25.4"), ("amd", "torch==2.9.0+rocm7.0")]
)
def test_the_torch_of_a_gpu_machine_stays(checkout: Checkout, platform: str, torch: str) -> None:
    checkout.add_python()
    folders = "/opt/venv/site-packages\n/opt/vendor/dist-packages\n"
    done = checkout.run(PLATFORM=platform, FAKE_TORCH=f"{folders}{torch}\nnumpy==1.26.4\n")
    assert done.returncode == 0, done.stderr
    assert checkout.calls("-m venv --clear --system-site-packages")
    packages_call, energy_call = checkout.calls("-m pip")  # so none that installs torch
    assert "--no-deps" in energy_call, "what zeus declares would bring another amdsmi than that of ROCm"
    kept = checkout.venv / ".machine-torch.txt"
    assert f"-c {kept} -r {checkout.root}/{platform}-requirements.txt" in packages_call
    assert kept.read_text(encoding="utf8").split() == [torch, "numpy==1.26.4"]
    assert (checkout.venv / "bin" / "machine.pth").read_text(encoding="utf8") == folders
    assert f"this machine's own ({torch} numpy==1.26.4)" in done.stderr


def test_amd_machine_without_torch_is_told_to_install_it(checkout: Checkout) -> None:
    checkout.add_python()
    done = checkout.run(PLATFORM="amd", WHEELS_EXIT="0")
    assert done.returncode == 1
    assert "install PyTorch for ROCm first" in done.stderr
    assert not checkout.venv.exists()
    assert not checkout.calls("-m pip")


@pytest.mark.parametrize("unfit", ["3.9.18", "3.14.0", "2.7.18"])
def test_a_python_that_fits_is_found_beside_one_that_does_not(checkout: Checkout, unfit: str) -> None:
    checkout.add_python("python3", unfit)
    checkout.add_python("python3.10", "3.10.13")
    wanted = checkout.add_python("python3.12", "3.12.1")
    done = checkout.run()
    assert done.returncode == 0, done.stderr
    assert f"making .venv with Python 3.12.1 of {wanted}" in done.stderr


def test_python3_is_taken_before_a_later_one(checkout: Checkout) -> None:
    wanted = checkout.add_python("python3", "3.10.13")
    checkout.add_python("python3.13", "3.13.0")
    assert f"making .venv with Python 3.10.13 of {wanted}" in checkout.run().stderr


def test_no_python_that_fits_is_an_error_that_names_what_was_found(checkout: Checkout) -> None:
    old = checkout.add_python("python3", "3.9.18")
    bare = checkout.add_python("python3.11", "3.11.2", has_venv=False)
    broken = checkout.programs / "python3.10"
    broken.write_text("#!/usr/bin/env bash\necho 'no such version' >&2\nexit 127\n", encoding="utf8")
    broken.chmod(0o755)
    done = checkout.run()
    assert done.returncode == 1
    (error,) = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert f"{old} is Python 3.9.18;" in error
    assert f"{bare} is Python 3.11.2 without its venv module (Debian, Ubuntu: apt install python3-venv);" in error
    assert f"{broken} is not running (no such version);" in error
    assert not checkout.venv.exists()


def test_no_python_at_all_is_an_error(checkout: Checkout) -> None:
    done = checkout.run()
    assert done.returncode == 1
    assert "got none on PATH; wanted Python 3.10 to 3.13" in done.stderr


def test_the_python_of_an_activated_venv_of_ours_does_not_count(checkout: Checkout) -> None:
    system = checkout.add_python()
    checkout.run()
    shutil.copy(system, checkout.venv / "bin" / "python3")
    (checkout.venv / ".installing").touch()
    done = checkout.run(PATH=f"{checkout.venv}/bin:{checkout.programs}")
    assert done.returncode == 0, done.stderr
    assert f"making .venv with Python 3.11.7 of {system}\n" in done.stderr


def test_a_fresh_environment_is_left_alone(checkout: Checkout) -> None:
    checkout.add_python()
    assert checkout.run().returncode == 0
    done = checkout.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert not checkout.calls("-m")


@pytest.mark.parametrize("name", [f"{name}-requirements.txt" for name in ("cpu", "nvd", "energy")])
def test_changed_requirements_are_installed_into_the_same_venv(checkout: Checkout, name: str) -> None:
    checkout.add_python()
    checkout.run(PLATFORM="nvd")
    with (checkout.root / name).open("a", encoding="utf8") as file:
        file.write("# changed\n")
    done = checkout.run(PLATFORM="nvd")
    assert "keeping .venv" in done.stderr
    assert checkout.calls("nvd-requirements.txt")
    assert not checkout.calls("-m venv")
    assert not checkout.run(PLATFORM="nvd").stderr


def test_another_platform_gets_a_new_venv(checkout: Checkout) -> None:
    checkout.add_python()
    checkout.run()
    assert checkout.run(PLATFORM="nvd").returncode == 0
    assert checkout.calls("-m venv --clear")


def test_an_upgraded_python_is_stale(checkout: Checkout) -> None:
    checkout.add_python()
    checkout.run()
    shutil.copy(checkout.add_python(version="3.11.9"), checkout.venv / "bin" / "python")
    checkout.run()
    assert checkout.calls("-m pip")


def test_a_venv_whose_python_is_gone_is_made_anew(checkout: Checkout) -> None:
    checkout.add_python()
    checkout.run()
    (checkout.venv / "bin" / "python").unlink()
    assert checkout.run().returncode == 0
    assert checkout.calls("-m venv --clear")


def test_pip_is_quiet_unless_it_fails(checkout: Checkout) -> None:
    checkout.add_python()
    done = checkout.run()
    assert done.returncode == 0 and len(checkout.calls("-m pip")) == 3
    assert "Collecting" not in done.stdout + done.stderr
    assert not (checkout.venv / ".pip-output").exists()


def test_a_failing_pip_exits_1_says_so_and_leaves_no_stamp(checkout: Checkout) -> None:
    checkout.add_python()
    done = checkout.run(PIP_FAILS_ON="-r ")
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "run again" in error
    assert done.stderr.count("Collecting a package") == 1, "the output of the pip that failed, not of the one before"
    assert checkout.stamps() == set()
    again = checkout.run()
    assert again.returncode == 0
    assert "keeping .venv" in again.stderr


def test_a_failed_install_of_new_requirements_is_not_taken_for_the_old_ones(checkout: Checkout) -> None:
    checkout.add_python()
    checkout.run()
    file = checkout.root / "cpu-requirements.txt"
    old = file.read_text(encoding="utf8")
    file.write_text(old + "# changed\n", encoding="utf8")
    checkout.run(PIP_FAILS_ON="-r ")  # torch may be the new one by now
    file.write_text(old, encoding="utf8")
    checkout.run()
    assert len(checkout.calls("-m pip")) == 3


def test_a_killed_install_is_repaired_by_the_next(checkout: Checkout) -> None:
    checkout.add_python()
    command = [str(checkout.root / "shell" / "setup.sh")]
    with subprocess.Popen(
        command, env=checkout.environment(PIP_SECONDS="60"), stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        until(lambda: bool(checkout.calls("-m pip")))
        os.killpg(process.pid, 9)
    assert checkout.stamps() == set()
    assert checkout.run().returncode == 0
    assert checkout.calls("-m venv --clear")
    assert checkout.stamps() == {".stamp-runtime"}


def test_two_at_once_install_once(checkout: Checkout) -> None:
    checkout.add_python()
    command = [str(checkout.root / "shell" / "setup.sh")]
    both = [
        subprocess.Popen(command, env=checkout.environment(PIP_SECONDS="0.3"), stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert len(checkout.calls("-m venv")) == 1
    assert len(checkout.calls("-m pip")) == 3
    assert sum("waiting for it" in text for text in said) == 1


def test_dev_and_runtime_have_stamps_of_their_own(checkout: Checkout) -> None:
    checkout.add_python()
    done = checkout.run("--dev")
    assert "[4/4] packages of dev-requirements.txt" in done.stderr
    assert checkout.stamps() == {".stamp-runtime", ".stamp-dev"}
    with (checkout.root / "dev-requirements.txt").open("a", encoding="utf8") as file:
        file.write("# changed\n")
    assert not checkout.run().stderr
    checkout.run("--dev")
    assert checkout.calls("dev-requirements.txt")


def test_use_environment_sets_up_only_what_is_missing(checkout: Checkout) -> None:
    checkout.add_python()
    script = f'source "{checkout.root}/shell/lib/environment.sh"; use_environment; printf "%s|%s" "$ROOT" "$PYTHON"'
    for is_first in (True, False):
        checkout.calls_file.unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", "-c", script], env=checkout.environment(), capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout == f"{checkout.root}|{checkout.venv}/bin/python"
        assert bool(checkout.calls("-m pip")) is is_first


def test_a_plan_for_another_platform_leaves_the_environment_as_it_is(checkout: Checkout) -> None:
    checkout.add_python()
    assert checkout.run(PLATFORM="cpu").returncode == 0
    before = checkout.stamps()
    for function, changes_it in (("use_environment_to_plan", False), ("use_environment", True)):
        checkout.calls_file.unlink(missing_ok=True)
        script = f'source "{checkout.root}/shell/lib/environment.sh"; {function}'
        environment = checkout.environment(PLATFORM="nvd")
        subprocess.run(["bash", "-c", script], env=environment, capture_output=True, check=True, timeout=60)
        assert bool(checkout.calls("-m pip")) is changes_it
        assert checkout.stamps() == before


def test_platform_can_be_given_as_an_argument(checkout: Checkout) -> None:
    checkout.add_python()
    assert checkout.run("PLATFORM=nvd").returncode == 0
    assert checkout.calls("nvd-requirements.txt")


@pytest.mark.parametrize("argument", ["--developer", "dev"])
def test_an_unknown_argument_is_an_error(checkout: Checkout, argument: str) -> None:
    checkout.add_python()
    done = checkout.run(argument)
    assert done.returncode == 2
    assert done.stderr == f"error: setup: got argument '{argument}', wanted --dev or KEY=VALUE\n"


def until(is_true: object, seconds: float = 30) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not is_true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)
