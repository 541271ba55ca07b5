"""On a GPU machine without a network, the packages of `setup --download` are enough for its environments.

Real packages from pip's index, in a copy of the checkout. The machine's PyTorch is a package with the version and the
requirements of the real one, and no code: the environments of the suite itself import no more than that it is there.
"""

import os
import shutil
import subprocess

import pytest

from tests.support import checkout

pytestmark = pytest.mark.full("wheels for a machine without a network, collected and installed, about 60 s")
TORCH = {
    "torch/__init__.py": "from torch import version\n",
    "torch/version.py": "cuda, hip = '13.0', None\n",
    "torch-2.11.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\nRequires-Dist: jinja2\n",
}
IMPORTS = "import backports.zstd, datasets, ftfy, httpx, matplotlib, orjson, pynvml, scipy, tokenizers, xxhash"


@pytest.mark.parametrize("python", ["3.12"])  # another one than that of the tests, where they have 3.11
def test_a_machine_with_its_own_torch_is_set_up_without_index_and_network(tmp_path, python):
    program = checkout.python_of(python)
    if program is None:
        pytest.skip(f"no Python {python} on PATH or in pyenv")
    clone, wheels = checkout.copy_checkout(tmp_path / "clone"), tmp_path / "my wheels"
    user = checkout.environment_of_user(tmp_path / "home")
    command = [clone / "tprimat", "setup", "--download", wheels, "--python", python, "--platform", "nvd"]
    done = subprocess.run([*command, "FRAMEWORK=mega,hf"], env=user, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    names = {path.name.split("-")[0] for path in (wheels / "wheels").iterdir()}
    assert not [
        name for name in names if name in ("torch", "triton") or name.startswith("nvidia_") and name != "nvidia_ml_py"
    ]
    assert not (clone / ".venv").exists()

    machine = tmp_path / "machine"
    subprocess.run([program, "-m", "venv", "--without-pip", machine], check=True)
    packages = machine / "lib" / f"python{python}" / "site-packages"
    for path, text in TORCH.items():
        (packages / path).parent.mkdir(exist_ok=True)
        (packages / path).write_text(text)
    offline = {
        name: value for name, value in user.items() if not name.startswith("PIP_") and "proxy" not in name.lower()
    }
    offline |= {"PATH": f"{machine}/bin:{os.defpath}", "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    offline |= {"HOME": str(tmp_path / "empty"), "PLATFORM": "nvd", "PIP_NO_COMPILE": "1"}  # compiling takes a minute
    setup = [clone / "tprimat", "setup", "--offline", wheels]
    done = subprocess.run(setup, env=offline, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, imports in (
        (".venv", IMPORTS),
        (".venv-evaluate", "import jinja2, matplotlib, numpy, pandas, scipy, tqdm"),
    ):
        subprocess.run([clone / name / "bin" / "python", "-c", imports], env=offline, check=True)
    shutil.rmtree(wheels)
    again = subprocess.run([clone / "tprimat", "setup"], env=offline, capture_output=True, text=True, timeout=60)
    assert (again.returncode, again.stderr) == (0, ""), "later commands find the environment ready"
