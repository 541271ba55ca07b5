"""The README's walkthrough on the third machine: two archives, an empty clone without .venv, one command, the verdict.

Installs the packages that reading needs, as a user's first comparison does.
"""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.support import bundles, fresh_machine

SECONDS = {"nvd": 1.0, "amd": 0.9}


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Return a copy of the checkout's tracked files, with a space in its path, as git gives them to a user."""
    return fresh_machine.copy_checkout(tmp_path_factory.mktemp("third machine") / "a clone")


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """Return the folder of the person who compares, with the archives of two machines."""
    made, folder = tmp_path_factory.mktemp("machines"), tmp_path_factory.mktemp("desk")
    for platform, seconds in SECONDS.items():
        output = bundles.written(made / platform, bundles.sides({platform: seconds}, runs=3))
        shutil.move(bundles.pack(output), folder / f"{platform}.zip")
    return folder


@pytest.fixture(scope="module")
def started(desk, tmp_path_factory):
    """Return what runs a script at the desk, where Python has no package of ours."""
    environment = fresh_machine.environment(tmp_path_factory.mktemp("user") / "home")

    def start(script, *arguments):
        return subprocess.run([script, *arguments], cwd=desk, env=environment, capture_output=True, text=True)

    return start


@pytest.fixture(scope="module")
def compared(clone, started):
    """Return what the first comparison in the clone printed; it makes the environment."""
    return started(clone / "shell" / "compare.sh", "amd.zip", "nvd.zip", "--output", "report")


def test_one_command_compares_two_archives_in_a_clone_without_an_environment(compared, clone, desk):
    done = compared
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("faster: AMD Instinct MI300X is 1.1")
    (verdict,) = json.loads((desk / "report" / "compare.json").read_text())["verdicts"]
    assert (verdict["verdict"], round(verdict["ratio"], 2)) == ("faster", 1.11)  # 1.0 s a step beside 0.9 s
    assert not (clone / ".venv").exists()
    packages = next((clone / ".venv-evaluate" / "lib").glob("python3*/site-packages"))
    assert not (packages / "torch").exists()
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    assert size < 400e6


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("validate", ["--bundle", "amd.zip"]), ("compare", ["nvd.zip", "amd.zip", "--output", "again"])],
)
def test_a_link_to_a_script_finds_its_checkout_and_installs_nothing_again(
    compared, clone, desk, started, name, arguments
):
    assert compared.returncode == 0
    link = desk / f"our-{name}"
    link.symlink_to(clone / "shell" / f"{name}.sh")
    done = started(link, *arguments)
    assert done.returncode == 0 and "making" not in done.stderr, done.stderr
