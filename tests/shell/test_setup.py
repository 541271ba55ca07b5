"""The scripts that make environments, of the suite and of single frameworks: what they install, and when nothing.

Python and pip are stand-ins. Only the launcher of the last test is real; it starts what the script prints.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

import pytest
from toydata import write_toy_data

from tests.support.setups import LIMIT_SECONDS, Checkout, Sandbox, add_program


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
    done = checkout.setup(f"PLATFORM={platform}", WHEELS_EXIT=code)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    torch_call, packages_call, energy_call = checkout.calls()
    pins = f"-c {checkout.root}/cpu-requirements.txt"
    assert torch_call.endswith(f"{pins} {index}torch numpy")
    assert packages_call.endswith(f"{pins} -r {checkout.root}/{platform}-requirements.txt")
    assert energy_call.endswith(f"--no-deps -r {checkout.root}/energy-requirements.txt")
    assert ("does not answer" in done.stderr) == (code == "1")
    assert "Collecting" not in done.stderr, "pip is quiet unless it fails"


@pytest.mark.parametrize(
    ("platform", "torch"), [("nvd", "torch==2.7.0a0+79aa174.nv25.4"), ("amd", "torch==2.9.0+rocm7.0")]
)
def test_the_torch_of_a_gpu_machine_stays(checkout, platform, torch):
    folders = "/opt/venv/site-packages\n/opt/vendor/dist-packages\n"
    done = checkout.setup(PLATFORM=platform, FAKE_TORCH=f"{folders}{torch}\nnumpy==1.26.4\n")
    assert done.returncode == 0, done.stderr
    assert checkout.calls("-m venv --clear --system-site-packages")
    packages_call, energy_call = checkout.calls()  # so none that installs torch
    assert "--no-deps" in energy_call, "what zeus declares would bring another amdsmi than that of ROCm"
    kept = checkout.venv / ".machine-torch.txt"
    assert f"-c {kept} -r {checkout.root}/{platform}-requirements.txt" in packages_call
    assert kept.read_text(encoding="utf8").split() == [torch, "numpy==1.26.4"]
    assert (checkout.venv / "bin" / "machine.pth").read_text(encoding="utf8") == folders


def test_amd_machine_without_torch_is_told_to_install_it(checkout):
    done = checkout.setup(PLATFORM="amd", WHEELS_EXIT="0")
    assert done.returncode == 1 and "install PyTorch for ROCm first" in done.stderr
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
    said = checkout.setup().stderr
    assert f"making .venv with Python {there[taken]} of {checkout.bin}/{taken}\n" in said


def test_no_python_that_fits_is_an_error_that_names_what_was_found(checkout):
    old = checkout.add_python("python3", "3.9.18")
    bare = checkout.add_python("python3.11", "3.11.2", has_venv=False)
    broken = checkout.add_tool("python3.10", "echo 'no such version' >&2; exit 127")
    done = checkout.setup()
    (error,) = done.stderr.splitlines()
    assert done.returncode == 1 and error.startswith("error: python: got ") and not checkout.venv.exists()
    assert f"{old} is Python 3.9.18; {bare} is Python 3.11.2 without its venv module (Debian, Ubuntu: apt" in error
    assert f"{broken} is not running (no such version); wanted Python 3.10 to 3.13" in error


def test_the_python_of_an_activated_venv_of_ours_does_not_count(checkout):
    checkout.setup()
    shutil.copy(checkout.bin / "python3", checkout.venv / "bin" / "python3")
    (checkout.venv / ".installing").touch()
    done = checkout.setup(PATH=f"{checkout.venv}/bin:{checkout.bin}")
    assert f"making .venv with Python 3.11.7 of {checkout.bin}/python3\n" in done.stderr


@pytest.mark.parametrize("name", ["cpu", "nvd", "energy"])
def test_changed_requirements_are_installed_into_the_same_venv(checkout, name):
    checkout.setup(PLATFORM="nvd")
    checkout.change(f"{name}-requirements.txt")
    assert "keeping .venv" in checkout.setup(PLATFORM="nvd").stderr
    assert checkout.calls("nvd-requirements.txt") and not checkout.calls("-m venv")
    assert not checkout.setup(PLATFORM="nvd").stderr


@pytest.mark.parametrize(
    ("change", "platform", "is_made_anew"),
    [
        (lambda made: shutil.copy(made.add_python(version="3.11.9"), made.venv / "bin" / "python"), "cpu", False),
        (lambda made: (made.venv / "bin" / "python").unlink(), "cpu", True),
        (lambda made: None, "nvd", True),
    ],
    ids=["upgraded", "gone", "kept"],
)
def test_with_another_python_or_platform_all_is_installed_again(checkout, change, platform, is_made_anew):
    checkout.setup()
    change(checkout)
    assert checkout.setup(PLATFORM=platform).returncode == 0
    assert checkout.calls() and bool(checkout.calls("-m venv --clear")) == is_made_anew


def test_a_failing_pip_exits_1_says_so_and_leaves_no_stamp(checkout):
    """Not even that of an earlier setup: torch may be a new one by now."""
    checkout.setup()
    checkout.change("cpu-requirements.txt")
    done = checkout.setup(PIP_FAILS_ON="-r ")
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 1 and "run again" in error and checkout.stamps() == set()
    assert done.stderr.count("Collecting a package") == 1, "the output of the pip that failed, not of the one before"
    again = checkout.setup()
    assert again.returncode == 0 and "keeping .venv" in again.stderr


def test_a_killed_install_is_repaired_by_the_next(checkout):
    process = checkout.start("setup.sh", PIP_SECONDS="60")
    deadline = time.monotonic() + LIMIT_SECONDS
    while not checkout.calls():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, 9)
    process.communicate()
    assert checkout.stamps() == set()
    assert checkout.setup().returncode == 0
    assert checkout.calls("-m venv --clear") and checkout.stamps() == {".stamp-runtime"}


def test_two_at_once_install_once(checkout):
    both = [checkout.start("setup.sh", PIP_SECONDS="0.3") for _ in range(2)]
    said = [process.communicate(timeout=LIMIT_SECONDS)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert (len(checkout.calls("-m venv")), len(checkout.calls())) == (1, 3)
    assert sum("waiting for it" in text for text in said) == 1


def test_dev_and_runtime_have_stamps_of_their_own(checkout):
    assert "[4/4] packages of dev-requirements.txt" in checkout.setup("--dev").stderr
    assert checkout.stamps() == {".stamp-runtime", ".stamp-dev"}
    checkout.change("dev-requirements.txt")
    assert not checkout.setup().stderr
    checkout.setup("--dev")
    assert checkout.calls("dev-requirements.txt")


def test_scripts_set_up_only_what_is_missing_and_a_plan_nothing(checkout):
    for is_first in (True, False):
        done = checkout.sourced('use_environment; printf "%s|%s" "$ROOT" "$PYTHON"')
        assert done.stdout == f"{checkout.root}|{checkout.venv}/bin/python"
        assert bool(checkout.calls()) is is_first
    before = checkout.stamps()
    for function, changes_it in (("is_dry_run=true; use_environment", False), ("use_environment", True)):
        checkout.sourced(function, PLATFORM="nvd")
        assert bool(checkout.calls()) is changes_it and checkout.stamps() == before


@pytest.mark.parametrize("function", ["use_environment", "is_dry_run=true; use_environment"])
def test_an_image_older_than_the_checkout_is_not_used(checkout, function):
    checkout.setup()
    checkout.change("cpu-requirements.txt")
    done = checkout.sourced(function, TPRIMAT_IN_CONTAINER="1")
    assert (done.returncode, checkout.calls()) == (1, [])
    assert done.stderr.startswith("error: environment: the image is older than cpu-requirements.txt")
    assert "./shell/build.sh" in done.stderr


# Environments of single frameworks: made once, of the right Python, else one line says why.

PYTHONS = {"bridge": "3.12", "nemo": "3.11"}
IMAGES = {"bridge": "nvcr.io/nvidia/nemo:26.08", "nemo": "nvcr.io/nvidia/nemo:26.02"}
INSTALLED = {
    "bridge": ("torch numpy", "--no-deps -r {}"),
    "nemo": ("torch numpy", "-r {}"),
    "titan": ("--no-deps -r {}",),
}
"""Ends of the calls of pip of a new environment."""
SHORT = "TRAIN_ITERS=2 WARMUP_ITERS=0 GBS=2 MBS=2 CPU_RANKS=1"
BASH = "#!/usr/bin/env bash\n"
each = pytest.mark.parametrize("framework", INSTALLED)


def add_venv(machine: Checkout, *, sees_system: bool = False) -> None:
    """Add the environment of the suite."""
    machine.add_python(machine.venv / "bin" / "python")
    (machine.venv / "pyvenv.cfg").write_text(f"include-system-site-packages = {str(sees_system).lower()}\n")


@pytest.fixture
def machine(request, tmp_path):
    """Return the machine for the framework of a test, on a machine that has what it requires."""
    framework = request.getfixturevalue("framework")
    made = Checkout(tmp_path, "inside/setup_framework.sh", framework)
    if framework in PYTHONS:
        made.add_python(version=f"{PYTHONS[framework]}.7")
    else:
        add_venv(made)
    return made


@each
def test_environment_is_made_once_and_its_python_is_all_of_stdout(machine, framework):
    first = machine.setup()
    assert (first.returncode, first.stdout) == (0, f"{machine.root}/.venv-{framework}/bin/python\n"), first.stderr
    requirements = f"{machine.root}/{framework}-requirements.txt"
    for call, end in zip(machine.calls(), INSTALLED[framework], strict=True):
        assert call.endswith(end.format(requirements))
    assert not machine.calls("--system-site-packages")
    again = machine.setup()
    assert (again.stdout, again.stderr, machine.calls()) == (first.stdout, "", [])


@each
def test_changed_requirements_and_an_interrupted_setup_are_made_anew(machine, framework):
    assert machine.setup(PIP_FAILS_ON=f"{framework}-requirements.txt").returncode == 1
    assert machine.setup().returncode == 0 and machine.calls()
    machine.change(f"{framework}-requirements.txt")
    assert machine.setup().returncode == 0 and len(machine.calls()) == len(INSTALLED[framework])


@pytest.mark.parametrize("place", ["programs", "pyenv"])
@pytest.mark.parametrize(
    ("framework", "version"), [("bridge", "3.11.7"), ("bridge", "3.13.0"), ("nemo", "3.10.14"), ("nemo", "3.12.1")]
)
def test_another_python_is_refused_and_named_and_the_right_one_is_found(machine, framework, version, place):
    """A shim of pyenv on PATH fails where its version is not chosen."""
    wanted = PYTHONS[framework]
    machine.add_python(version=version)
    machine.add_tool(f"python{wanted}", "exit 127")
    refused = machine.setup()
    assert (refused.returncode, refused.stdout, machine.calls()) == (1, "", [])
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"error: {framework}: got Python {version} on PATH, wanted Python {wanted}")
    folder = machine.pyenv / "versions" / f"{wanted}.1" / "bin" if place == "pyenv" else machine.bin
    own = machine.add_python(folder / f"python{wanted}", f"{wanted}.1")
    done = machine.setup()
    assert done.returncode == 0 and str(own) in done.stderr


@pytest.mark.parametrize("framework", PYTHONS)
def test_on_nvidia_it_is_the_containers_own_and_nothing_is_installed(machine, framework):
    own = machine.add_python("python", "3.12.3", has_framework=True)
    done = machine.setup(PLATFORM="nvd")
    assert (done.returncode, done.stdout, machine.calls()) == (0, f"{own}\n", [])
    own.unlink()
    outside = machine.setup(PLATFORM="nvd")
    assert outside.returncode == 1 and IMAGES[framework] in outside.stderr
    assert machine.setup(PLATFORM="amd").returncode == 2


IN_A_CONTAINER = {"TPRIMAT_IN_CONTAINER": "1"}
LACKING = [
    # NeMo's image 26.02 to 26.06 lacks this of Bridge; the same where bridge-requirements.txt is too short
    ("bridge", {"PLATFORM": "nvd"}, "megatron.bridge.data.base", "0.6.0 or later with all that it imports"),
    ("bridge", IN_A_CONTAINER, "megatron.bridge.data.base", "0.6.0 or later with all that it imports"),
    ("bridge", {}, "megatron.bridge.data.base", "0.6.0 or later with all that it imports"),
    ("nemo", {"PLATFORM": "nvd"}, "nemo.collections", "2.3 to 2.7 with all that it imports"),
    ("nemo", {}, "nemo.collections", "2.3 to 2.7 with all that it imports"),
    ("titan", {}, "torch.nn.attention.varlen", "one that torchtitan 0.3.0 can be imported with: a newer image"),
    ("prim", IN_A_CONTAINER | {"PRIMUS_PATH": "/workspace/Primus"}, "loguru", "all that Primus in /workspace/Primus"),
]


@pytest.mark.parametrize(("framework", "where", "lacks", "wanted"), LACKING)
def test_a_python_that_lacks_what_the_trainer_imports_is_refused_in_one_line(machine, framework, where, lacks, wanted):
    (machine.root / "train").mkdir()
    python = machine.root / f".venv-{framework}" / "bin" / "python"
    if where:
        python = machine.add_python(version="3.12.3", has_framework=True)
    done = machine.setup(**where, LACKS=lacks)
    assert (done.returncode, done.stdout) == (1, "")
    line = done.stderr.splitlines()[-1]
    assert re.match(rf"error: {framework}: got \S+ 0\.3\.1 of {re.escape(str(python))}, which lacks {lacks}; ", line)
    assert f"wanted {wanted}" in line and line.endswith(f"or leave {framework} out of FRAMEWORK")
    complete = machine.setup(**where)
    assert (complete.returncode, complete.stdout) == (0, f"{python}\n"), "it was not taken for complete"
    if where:
        assert machine.calls() == [] and machine.calls("import "), "nothing is installed into an image"


@pytest.mark.parametrize("framework", ["titan"])
def test_torchtitan_sees_the_packages_of_the_suite_with_those_that_the_suite_sees(machine, framework):
    add_venv(machine, sees_system=True)
    assert machine.setup().returncode == 0
    assert "--system-site-packages" in machine.calls("-m venv")[0]
    line = (machine.root / ".venv-titan" / "bin" / "suite.pth").read_text()
    assert line == f'import site; site.addsitedir("{machine.venv}/bin")\n', "as the stand-in names the folder"


@pytest.mark.parametrize("framework", ["titan"])
def test_torchtitan_without_the_suites_environment_and_in_an_old_image_is_told_what_to_run(machine, framework):
    old = machine.setup(**IN_A_CONTAINER)
    assert (old.returncode, machine.calls()) == (1, []) and "run ./shell/build.sh" in old.stderr
    assert machine.setup().returncode == 0
    (machine.root / "train").mkdir()
    assert machine.setup(**IN_A_CONTAINER, LACKS="x").returncode == 1, "an image is made before it has a trainer"
    shutil.rmtree(machine.venv)
    shutil.rmtree(machine.root / ".venv-titan")
    assert "run ./shell/setup.sh" in machine.setup().stderr


@each
def test_ranks_are_started_by_the_python_that_the_setup_prints_and_its_error_is_that_of_the_job(framework, tmp_path):
    box = Sandbox(tmp_path, "shell", "utils", "train", "config*.env")
    prefix = write_toy_data(tmp_path / "data" / "text", documents=100)
    settings = f"DATASET={prefix} DATA_DIR={prefix.parent} OUTPUT_DIR={tmp_path}/output {SHORT}"
    job = (*f"-m train.launch --platform cpu --framework {framework} --model llama".split(), *settings.split())
    setup = box.root / "shell" / "inside" / "setup_framework.sh"
    python = box.add_tool("python3.99", f'echo "$@" >{tmp_path}/arguments; exit 3')
    add_program(setup, BASH + f"echo {shlex.quote(str(python))}")
    assert box.execute(box.root, sys.executable, *job, RUNTIME="native").returncode == 3, "that of the trainer"
    words = (tmp_path / "arguments").read_text().split()
    assert words[:2] == ["-m", "torch.distributed.run"] and f"train.train_{framework}" in words
    add_program(setup, BASH + "echo '[1/3] making' >&2; echo 'error: it has no network' >&2; exit 1")
    failed = box.execute(box.root, sys.executable, *job, RUNTIME="native")
    assert failed.returncode == 2 and "[1/3] making\n" in failed.stderr
    assert [line for line in failed.stderr.splitlines() if line.startswith("error: ")] == ["error: it has no network"]
