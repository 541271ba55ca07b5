"""`setup --download` and `setup --offline`: what is collected for another machine, and what a folder of wheels must be.

pip is real where wheels are collected, with a folder of tiny packages as its index. Where environments are made from a
folder, Python and pip are stand-ins; tests/fresh/test_offline_machine.py does both with real packages.
"""

from __future__ import annotations

import hashlib
import io
import platform
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.checkout import copy_to
from tests.support.setups import Checkout, Sandbox

SCRIPTS = (
    "shell/lib/wheels.sh",
    "shell/lib/collect.sh",
    "shell/lib/pip_elsewhere.py",
    "shell/inside/setup_framework.sh",
)
FOLDERS = "/opt/vendor/dist-packages"
OWN_TORCH = f"{FOLDERS}\ntorch==2.7.0\nnumpy==1.26.4\n"


# Collecting, with a real pip.

REQUIREMENTS = {
    "nvd": 'megatron==1.0; python_version < "3.12"\nmegatron==2.0; python_version >= "3.12"\nhub==1.0\n',
    "cpu": "torch==2.13.0\nnumpy==2.4\n",
    "evaluate": "numpy==2.4\n",
    "energy": "zeus==1.0\n",
    "titan": "titan==1.0\n",
}
WHEELS = [  # name, version, tag, what it requires
    ("megatron", "1.0", "cp311-cp311-manylinux_2_17_x86_64", "torch"),
    ("megatron", "2.0", "cp312-cp312-manylinux_2_28_x86_64", "torch"),
    ("megatron", "2.0", "cp312-cp312-manylinux_2_28_aarch64", "torch"),
    ("hub", "1.0", "py3-none-any", 'backport; python_version < "3.12"\nfor_arm; platform_machine == "aarch64"\npure'),
    ("backport", "1.0", "py3-none-any", ""),
    ("for_arm", "1.0", "py3-none-any", ""),
    ("torch", "2.13.0", "py3-none-any", "nvidia_cublas"),
    ("nvidia_cublas", "13.0", "py3-none-any", ""),
    ("numpy", "2.4", "py3-none-any", ""),
    ("zeus", "1.0", "py3-none-any", "amdsmi"),
    ("titan", "1.0", "py3-none-any", "torchdata"),
    *(
        (name, "1.0", "py3-none-any", "")
        for name in ("filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy")
    ),
    ("typing_extensions", "1.0", "py3-none-any", ""),
]
OF_TORCH = {"filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing_extensions"}
EVERYWHERE = OF_TORCH | {"hub", "megatron", "numpy", "pure", "titan", "zeus"}
BACKEND = """
import zipfile
def build_wheel(folder, *_, **__):
    name = "pure-1.0-{tag}.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        wheel.writestr("pure-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: pure\\nVersion: 1.0\\n")
        wheel.writestr("pure-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: {tag}\\n")
        wheel.writestr("pure-1.0.dist-info/RECORD", "")
    return name
"""


def write_wheel(folder: Path, name: str, version: str, tag: str, requires: str) -> None:
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    for requirement in requires.splitlines():
        metadata += f"Requires-Dist: {requirement}\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-{tag}.whl", "w") as wheel:
        wheel.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
        wheel.writestr(f"{name}-{version}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        wheel.writestr(f"{name}-{version}.dist-info/RECORD", "")


def write_source(folder: Path, tag: str) -> None:
    """Write a package that has no wheel; its build needs no other package."""
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: pure\nVersion: 1.0\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(tag=tag),
    }
    with tarfile.open(folder / "pure-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"pure-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.fixture
def box(tmp_path: Path) -> Sandbox:
    """Return a machine whose index has tiny packages, and a checkout that requires them."""
    scripts = ("shell/setup.sh", "shell/platform.sh", "shell/lib/environment.sh", "shell/lib/install.sh", *SCRIPTS)
    made = Sandbox(tmp_path, *scripts, "config*.env")
    # an environment with pip takes seconds to make: here it is that of the tests
    venv = f'[[ $1 == -c ]] && exit; mkdir -p "$3/bin"; ln -s "{made.bin}/python" "$3/bin/python"'
    made.add_tool("python3", f'[[ $1 == -V ]] && echo "Python 3.11.7" && exit; {venv}')
    made.add_tool("python", f'exec "{sys.executable}" "$@"')
    (made.bin / "ln").symlink_to("/bin/ln")
    for name, text in REQUIREMENTS.items():
        (made.root / f"{name}-requirements.txt").write_text(text)
    index = tmp_path / "index"
    index.mkdir()
    for name, version, tag, requires in WHEELS:
        write_wheel(index, name, version, tag, requires)
    write_source(index, "py3-none-any")
    made.environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": "/dev/null"}
    return made


def collected(folder: Path) -> set[str]:
    """Return the names of the collected packages."""
    return {path.name.split("-")[0] for path in (folder / "wheels").iterdir()}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


FOR = [
    ("3.11", "x86_64", {"backport"}, "megatron-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"),
    ("3.12", "x86_64", set(), "megatron-2.0-cp312-cp312-manylinux_2_28_x86_64.whl"),
    ("3.12", "aarch64", {"for_arm"}, "megatron-2.0-cp312-cp312-manylinux_2_28_aarch64.whl"),
]


@pytest.mark.parametrize(("python", "machine", "more", "megatron"), FOR)
def test_wheels_are_those_of_the_other_machine_without_torch(box, tmp_path, python, machine, more, megatron):
    """Markers too, of the requirements and of what a package requires; a package without a wheel is built."""
    folder = tmp_path / "wheels"
    command = ("--download", str(folder), "--python", python, "--machine", machine, "--platform", "nvd")
    done = box.run("setup.sh", *command)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "building pure, which has no wheel" in done.stderr
    assert "transformer-engine-torch; the last is source" in done.stderr and "nvcr.io/nvidia/nemo" in done.stderr
    assert collected(folder) == EVERYWHERE | more
    assert (folder / "wheels" / megatron).exists()
    lines = (folder / "manifest.txt").read_text().splitlines()
    assert lines[1:5] == ["platform nvd", f"python {python}", f"machine {machine}", "environments evaluate titan"]
    assert f"{digest(box.root / 'nvd-requirements.txt')}  nvd-requirements.txt" in lines
    assert lines[-1].startswith("not here: ")
    sums = dict(line.split()[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {f"wheels/{path.name}": digest(path) for path in (folder / "wheels").iterdir()}
    assert not (box.root / ".venv").exists()


def test_an_incomplete_download_is_no_ready_folder_and_the_same_command_continues(box, tmp_path):
    (tmp_path / "index" / "zeus-1.0-py3-none-any.whl").rename(tmp_path / "zeus-1.0-py3-none-any.whl")
    command = ("setup.sh", "--download", str(tmp_path / "wheels"), "--python", "3.12", "--platform", "nvd")
    failed = box.run(*command)
    assert failed.returncode == 1 and failed.stderr.splitlines()[-1].startswith("error: setup: zeus==1.0: got no wheel")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "wheels" / "wheels").glob("[!t]*")}
    assert kept and not (tmp_path / "wheels" / "SHA256SUMS").exists()
    (tmp_path / "zeus-1.0-py3-none-any.whl").rename(tmp_path / "index" / "zeus-1.0-py3-none-any.whl")
    assert box.run(*command).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "downloaded once"
    assert collected(tmp_path / "wheels") == EVERYWHERE


def test_a_package_that_must_be_compiled_is_named_with_what_to_do(box, tmp_path):
    write_source(tmp_path / "index", "cp311-cp311-linux_x86_64")
    done = box.run("setup.sh", "--download", str(tmp_path / "wheels"), "--python", "3.12", "--platform", "nvd")
    assert done.returncode == 1
    assert "error: setup: pure: got no wheel for Python 3.12 on x86_64 and cannot build one here" in done.stderr


# A folder of a user, and one for something else.


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """Return a checkout on a machine with a stand-in of Python 3.11."""
    made = Checkout(tmp_path)
    copy_to(made.root, *SCRIPTS, "config*.env")
    made.add_python()
    return made


def write_folder(checkout: Checkout, python: str = "3.11", machine: str = platform.machine(), **changes: str) -> Path:
    """Write a complete folder of wheels, as another machine collects it; for a CPU also those of NeMo."""
    environments = ["evaluate", "titan"]
    if changes.get("PLATFORM") == "cpu":
        environments.append("nemo")
    folder = checkout.folder / "my wheels"
    (folder / "wheels").mkdir(parents=True)
    (folder / "wheels" / "a.whl").write_bytes(b"a wheel")
    (folder / "SHA256SUMS").write_text(f"{hashlib.sha256(b'a wheel').hexdigest()}  wheels/a.whl\n")
    describe = 'source shell/lib/wheels.sh; describe "$@"'
    described = checkout.sourced(describe, python, machine, *environments, **changes)
    (folder / "manifest.txt").write_text(described.stdout + "not here: torch\n")
    return folder


@pytest.mark.parametrize("there", ["a file", "manifest.txt", "notes.txt"])
def test_a_folder_of_a_user_stays_as_it_is(checkout, there):
    folder = checkout.folder / "mine"
    if there != "a file":
        folder.mkdir()
    of_user = folder if there == "a file" else folder / there
    of_user.write_text("of a user\n")
    for option in ("--download", "--offline"):
        done = checkout.setup(option, str(folder), PLATFORM="nvd", FAKE_TORCH=OWN_TORCH)
        assert (done.returncode, done.stderr.count("\n"), checkout.calls()) == (2, 1, []), done.stderr
        assert done.stderr.startswith(f"error: setup: {folder}: ")
    assert of_user.read_text() == "of a user\n" and (folder == of_user or list(folder.iterdir()) == [of_user])


def test_a_folder_for_another_python_is_not_filled_for_this_one(checkout):
    folder = write_folder(checkout, PLATFORM="nvd")
    before = sorted((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file())
    done = checkout.setup("--download", str(folder), "--platform", "nvd", "--python", "3.12")
    assert (done.returncode, checkout.calls()) == (2, [])
    assert "got wheels for python 3.11, wanted python 3.12; name another folder" in done.stderr
    assert sorted((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file()) == before


REFUSED = {
    "missing": "got no folder that ./tprimat setup --download made",
    "platform": "got wheels for platform cpu, wanted platform nvd",
    "python": "got wheels for python 3.12, wanted python 3.11",
    "machine": "got wheels for machine sparc, wanted machine ",
    "requirements": "got wheels for another titan-requirements.txt, wanted that of this checkout",
    "incomplete": "incomplete; run the same ./tprimat setup --download again",
    "damaged": "wheels/a.whl: FAILED; copy the folder again",
    "lost": "wheels/a.whl: No such file or directory; copy the folder again",
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_folder_that_does_not_fit_is_refused_in_one_line_before_anything_is_made(checkout, fault):
    made_for = {"python": {"python": "3.12"}, "machine": {"machine": "sparc"}, "platform": {"PLATFORM": "cpu"}}
    folder = write_folder(checkout, **{"PLATFORM": "nvd"} | made_for.get(fault, {}))
    if fault == "missing":
        folder = checkout.folder / "nowhere"
    elif fault == "requirements":
        checkout.change("titan-requirements.txt")
    elif fault == "incomplete":
        (folder / "SHA256SUMS").unlink()
    elif fault == "damaged":
        (folder / "wheels" / "a.whl").write_bytes(b"a whee")
    elif fault == "lost":
        (folder / "wheels" / "a.whl").unlink()
    done = checkout.setup("--offline", str(folder), PLATFORM="nvd", FAKE_TORCH=OWN_TORCH)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout, checkout.calls()) == (2, "", []) and not checkout.venv.exists()
    assert line.startswith(f"error: setup: {folder}: ") and REFUSED[fault] in line


# Environments from a folder.


@pytest.mark.parametrize("platform", ["nvd", "cpu"])
def test_every_environment_is_made_from_the_folder_alone_and_later_commands_need_no_network(checkout, platform):
    """The stand-in of .venv-evaluate has no module, so its pyarrow is installed too. PyTorch's index is not asked."""
    folder = write_folder(checkout, PLATFORM=platform)
    own = {"FAKE_TORCH": OWN_TORCH} if platform == "nvd" else {}
    # the stand-in of venv writes no pyvenv.cfg, which the setup of titan reads
    checkout.venv.mkdir()
    (checkout.venv / "pyvenv.cfg").write_text("include-system-site-packages = true\n")
    done = checkout.setup("--offline", str(folder), "--platform", platform, WHEELS_EXIT="0", **own)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    calls = checkout.calls()
    assert all(f"--no-index --find-links {folder}/wheels" in call for call in calls)
    read = f"-r {checkout.root}/{{}}-requirements.txt"
    expected = [read.format(platform), read.format("energy"), read.format("evaluate"), "pyarrow", read.format("titan")]
    if platform == "cpu":
        expected = ["torch numpy", *expected, "torch numpy", read.format("nemo")]
    for call, end in zip(calls, expected, strict=True):
        assert call.endswith(end)
    assert not checkout.calls("torch_source.py answers")
    for name in (".venv", ".venv-evaluate", ".venv-titan"):
        assert (checkout.root / name / "bin" / "python").exists()
    checkout.sourced("use_environment", PLATFORM=platform)
    assert checkout.calls() == []
    framework = checkout.run("inside/setup_framework.sh", "titan", PLATFORM=platform)
    assert (framework.returncode, checkout.calls()) == (0, [])


def test_a_gpu_machine_without_torch_is_told_that_the_folder_has_none(checkout):
    folder = write_folder(checkout, PLATFORM="nvd")
    done = checkout.setup("--offline", str(folder), PLATFORM="nvd")
    (line,) = done.stderr.splitlines()
    assert (done.returncode, checkout.calls()) == (1, []) and not checkout.venv.exists()
    assert (
        line.startswith("error: setup: torch: got none for CUDA") and "which --download leaves to the machine" in line
    )


def test_an_environment_that_cannot_be_made_is_named_and_the_others_are_ready(checkout):
    folder = write_folder(checkout)
    checkout.venv.mkdir()
    (checkout.venv / "pyvenv.cfg").touch()
    done = checkout.setup("--offline", str(folder), PIP_FAILS_ON="evaluate-requirements.txt")
    assert done.returncode == 1 and checkout.stamps() == {".stamp-runtime"}
    assert "could not make .venv-evaluate, the reason is above" in done.stderr.splitlines()[-1]
    assert (checkout.root / ".venv-titan" / ".stamp").exists()
