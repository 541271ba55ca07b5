"""The scripts that make the environments of single frameworks: made once, of the right Python, else one line says why.

Python and pip are stand-ins. Only the launcher of the last tests is real; it starts what the script prints.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from toydata import write_toy_data

from tests.support.setups import Checkout, add_program, copy_to

PYTHONS = {"bridge": "3.12", "nemo": "3.11"}
IMAGES = {"bridge": "nvcr.io/nvidia/nemo:26.08", "nemo": "nvcr.io/nvidia/nemo:26.02"}
INSTALLED = {
    "bridge": ("torch numpy", "--no-deps -r {}"),
    "nemo": ("torch numpy", "-r {}"),
    "titan": ("--no-deps -r {}",),
}
"""Ends of the calls of pip of a new environment."""
each = pytest.mark.parametrize("framework", INSTALLED)
each_with_a_python_of_its_own = pytest.mark.parametrize("framework", PYTHONS)


def add_venv(checkout: Checkout, *, sees_system: bool = False) -> None:
    """Add the environment of the suite."""
    checkout.add_python(checkout.venv / "bin" / "python")
    (checkout.venv / "pyvenv.cfg").write_text(f"include-system-site-packages = {str(sees_system).lower()}\n")


@pytest.fixture
def checkout(request, tmp_path):
    """Return the checkout for the framework of a test, on a machine that has what it requires."""
    framework = request.getfixturevalue("framework")
    made = Checkout(tmp_path, "inside/setup_framework.sh", framework)
    if framework in PYTHONS:
        made.add_python(version=f"{PYTHONS[framework]}.7")
    else:
        add_venv(made)
    return made


@each
def test_environment_is_made_once_and_its_python_is_all_of_stdout(checkout, framework):
    first = checkout.run()
    assert (first.returncode, first.stdout) == (0, f"{checkout.root}/.venv-{framework}/bin/python\n"), first.stderr
    requirements = f"{checkout.root}/{framework}-requirements.txt"
    for call, end in zip(checkout.calls(), INSTALLED[framework], strict=True):
        assert call.endswith(end.format(requirements))
    assert not checkout.calls("--system-site-packages")
    again = checkout.run()
    assert (again.stdout, again.stderr, checkout.calls()) == (first.stdout, "", [])


@each
def test_changed_requirements_and_an_interrupted_setup_are_made_anew(checkout, framework):
    assert checkout.run(PIP_FAILS_ON=f"{framework}-requirements.txt").returncode == 1
    assert checkout.run().returncode == 0 and checkout.calls()
    checkout.change(f"{framework}-requirements.txt")
    assert checkout.run().returncode == 0 and len(checkout.calls()) == len(INSTALLED[framework])


@pytest.mark.parametrize(
    ("framework", "version"), [("bridge", "3.11.7"), ("bridge", "3.13.0"), ("nemo", "3.10.14"), ("nemo", "3.12.1")]
)
def test_another_python_is_refused_and_named_and_the_right_one_is_found_in_pyenv(checkout, framework, version):
    """A shim of pyenv on PATH fails where its version is not chosen."""
    checkout.add_python(version=version)
    wanted = PYTHONS[framework]
    add_program(checkout.programs / f"python{wanted}", "#!/usr/bin/env bash\nexit 127\n")
    refused = checkout.run()
    assert (refused.returncode, refused.stdout, checkout.calls()) == (1, "", [])
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"error: {framework}: got Python {version} on PATH, wanted Python {wanted}")
    own = checkout.add_python(checkout.pyenv / "versions" / f"{wanted}.1" / "bin" / f"python{wanted}", f"{wanted}.1")
    done = checkout.run()
    assert done.returncode == 0 and str(own) in done.stderr


@each_with_a_python_of_its_own
def test_python_of_the_version_is_taken_where_python3_is_another(checkout, framework):
    checkout.add_python(version="3.13.0")
    checkout.add_python(f"python{PYTHONS[framework]}", f"{PYTHONS[framework]}.9")
    assert checkout.run().returncode == 0


@each_with_a_python_of_its_own
def test_on_nvidia_it_is_the_containers_own_and_nothing_is_installed(checkout, framework):
    own = checkout.add_python("python", "3.12.3", has_framework=True)
    done = checkout.run(PLATFORM="nvd")
    assert (done.returncode, done.stdout, checkout.calls()) == (0, f"{own}\n", [])
    own.unlink()
    outside = checkout.run(PLATFORM="nvd")
    assert outside.returncode == 1 and IMAGES[framework] in outside.stderr
    assert checkout.run(PLATFORM="amd").returncode == 2


IN_A_CONTAINER = {"TPRIMAT_IN_CONTAINER": "1"}
LACKING = [
    # NeMo's image 26.02 to 26.06 lacks this of Bridge; the same where bridge-requirements.txt is too short
    ("bridge", {"PLATFORM": "nvd"}, "megatron.bridge.data.base", "0.6.0 or later with all that it imports"),
    ("bridge", IN_A_CONTAINER, "megatron.bridge.data.base", "0.6.0 or later with all that it imports"),
    ("bridge", {}, "megatron.bridge.data.base", "0.6.0 or later with all that it imports"),
    ("nemo", {"PLATFORM": "nvd"}, "nemo.collections", "2.3 to 2.7 with all that it imports"),
    ("nemo", {}, "nemo.collections", "2.3 to 2.7 with all that it imports"),
    ("titan", {}, "torch.nn.attention.varlen", "one that torchtitan 0.2.2 can be imported with: a newer image"),
    ("prim", IN_A_CONTAINER | {"PRIMUS_PATH": "/workspace/Primus"}, "loguru", "all that Primus in /workspace/Primus"),
]


@pytest.mark.parametrize(("framework", "where", "lacks", "wanted"), LACKING)
def test_a_python_that_lacks_what_the_trainer_imports_is_refused_in_one_line(checkout, framework, where, lacks, wanted):
    (checkout.root / "train").mkdir()
    python = checkout.root / f".venv-{framework}" / "bin" / "python"
    if where:
        python = checkout.add_python(version="3.12.3", has_framework=True)
    done = checkout.run(**where, LACKS=lacks)
    assert (done.returncode, done.stdout) == (1, "")
    line = done.stderr.splitlines()[-1]
    assert re.match(rf"error: {framework}: got \S+ 0\.3\.1 of {re.escape(str(python))}, which lacks {lacks}; ", line)
    assert f"wanted {wanted}" in line and line.endswith(f"or leave {framework} out of FRAMEWORK")
    complete = checkout.run(**where)
    assert (complete.returncode, complete.stdout) == (0, f"{python}\n"), "it was not taken for complete"
    if where:
        assert checkout.calls() == [] and checkout.calls("import "), "nothing is installed into an image"


@pytest.mark.parametrize("framework", ["titan"])
def test_torchtitan_sees_the_packages_of_the_suite_with_those_that_the_suite_sees(checkout, framework):
    add_venv(checkout, sees_system=True)
    assert checkout.run().returncode == 0
    assert "--system-site-packages" in checkout.calls("-m venv")[0]
    line = (checkout.root / ".venv-titan" / "bin" / "suite.pth").read_text()
    assert line == f'import site; site.addsitedir("{checkout.venv}/bin")\n', "as the stand-in names the folder"


@pytest.mark.parametrize("framework", ["titan"])
def test_torchtitan_without_the_suites_environment_and_in_an_old_image_is_told_what_to_run(checkout, framework):
    old = checkout.run(**IN_A_CONTAINER)
    assert (old.returncode, checkout.calls()) == (1, []) and "run ./shell/build.sh" in old.stderr
    assert checkout.run().returncode == 0
    (checkout.root / "train").mkdir()
    assert checkout.run(**IN_A_CONTAINER, LACKS="x").returncode == 1, "an image is made before it has a trainer"
    shutil.rmtree(checkout.venv)
    shutil.rmtree(checkout.root / ".venv-titan")
    assert "run ./shell/setup.sh" in checkout.run().stderr
    wrong = checkout.run("oops")
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """Return what launches a job of a framework in a copy of the checkout whose setup scripts are replaced."""
    folder = copy_to(tmp_path_factory.mktemp("launched"), "shell", "utils", "train", "config*.env")
    prefix = write_toy_data(folder / "data" / "text", documents=100)
    settings = (
        f"DATASET={prefix}",
        f"DATA_DIR={prefix.parent}",
        "TRAIN_ITERS=2",
        "WARMUP_ITERS=0",
        "GBS=2",
        "MBS=2",
        "CPU_RANKS=1",
    )

    def launch(framework, setup, output):
        add_program(folder / "shell" / "inside" / "setup_framework.sh", f"#!/usr/bin/env bash\n{setup}\n")
        job = ("--platform", "cpu", "--framework", framework, "--model", "llama", f"OUTPUT_DIR={output}", *settings)
        command = [sys.executable, "-m", "train.launch", *job]
        environment = {**os.environ, "RUNTIME": "native"}
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)

    return launch


@each
def test_ranks_are_started_by_the_python_that_the_setup_prints(launched, framework, tmp_path):
    python = add_program(tmp_path / "python", f'#!/usr/bin/env bash\necho "$@" >{tmp_path}/arguments\nexit 3\n')
    assert launched(framework, f"echo {python}", tmp_path / "output").returncode == 3, "that of the trainer"
    words = (tmp_path / "arguments").read_text().split()
    assert words[:2] == ["-m", "torch.distributed.run"] and f"train.train_{framework}" in words


@each
def test_reason_of_a_setup_that_fails_is_the_error_and_the_rest_goes_to_stderr(launched, framework, tmp_path):
    done = launched(
        framework, "echo '[1/3] making' >&2; echo 'error: it has no network' >&2; exit 1", tmp_path / "output"
    )
    assert done.returncode == 2 and "[1/3] making\n" in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == ["error: it has no network"]
