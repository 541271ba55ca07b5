"""Every block of commands in the README and docs/ runs in a copy of the checkout, or is named here with the reason.

What trains, downloads, builds or deletes runs with `--dry-run`, which reads all of its arguments.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from checkout import ROOT

from tests.support import bundles, fresh_machine, made_traces, sides

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
IS_COMMAND = re.compile(r"^ *(?:\$ )?(?:\./|\.venv/|python|[A-Z_]+=\S* \./)", re.MULTILINE)
DRY = re.compile(r"(\./tprimat (?:train|data|sweep|slurm|build|reproduce|purge|gpu-hour)\b)")
NOT_HERE = {  # the beginning of a block: the reason, and the test that runs such a command
    "git clone": "needs the network",
    "./tprimat setup": "installs for minutes, and runs this test: tests/fresh",
    "./tprimat probe --platform nvd": "needs a GPU: tests/train/test_probe.py",
    "./tprimat reproduce": "needs a machine of the archive's platform: tests/shell/test_reproduce.py",
    "./tprimat profile": "trains: tests/shell/test_profile.py",
    "./tprimat status": "needs a matrix that runs: tests/train/runner",
    "./tprimat train DATASET=/path": "names files of the reader: tests/data/test_prepare.py",
    "./shell/data.sh": "trains: tests/shell/test_comparison.py",
    "./tprimat enter": "needs a container: tests/shell/test_container.py",
    "./tprimat build PLATFORM=amd": "needs docker and apptainer: tests/shell/test_build.py",
    ".venv/bin/python -m benchmarks.texts": "needs a checkout of Megatron-LM: tests/benchmarks",
}


def blocks():
    """Return (page:line, language, text) of each fenced block."""
    for page in PAGES:
        text = page.read_text(encoding="utf8")
        for found in FENCE.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield f"{page.relative_to(ROOT)}:{line}", found[2], found[3].replace("\\\n", " ")


BLOCKS = list(blocks())
COMMANDS = {place: text for place, language, text in BLOCKS if language == "bash"}
LEFT_OUT = {place: start for place, text in COMMANDS.items() for start in NOT_HERE if text.lstrip().startswith(start)}


def test_blocks_of_commands_are_marked_and_every_exception_is_needed():
    assert [place for place, language, text in BLOCKS if not language and IS_COMMAND.search(text)] == []
    assert NOT_HERE.keys() - set(LEFT_OUT.values()) == set()


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Return a copy of the checkout with the files that the pages name: results, archives, traces, days, a log."""
    folder = fresh_machine.copy_checkout(tmp_path_factory.mktemp("documented") / "clone")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    for name, seconds in {"output": {"nvd": 1.0, "amd": 0.9}, "amd": {"amd": 0.9}, "nvd": {"nvd": 1.0}}.items():
        results = bundles.sides(seconds, runs=3)
        bundles.written(folder / name, results)
        for result in results[::3]:
            made_traces.write_profile(folder / name, result)
    for name in ("amd", "nvd"):
        bundles.pack(folder / name).rename(folder / f"{name}.zip")
    for name in ("new", "reference"):
        (folder / f"{name}.zip").hardlink_to(folder / "nvd.zip")
    for name in ("trace", "nvidia", "amd"):
        made_traces.made_trace(folder / f"{name}.json.gz")
    sides.write_days(folder, 6)
    (folder / "nightly").mkdir()
    for path in folder.glob("day*"):
        path.rename(folder / "nightly" / path.name.replace("day", "2026-11-"))
    (folder / "logs" / "llama").mkdir(parents=True)
    shutil.copy(ROOT / "tests/utils/logs/samples/megatron_new.log", folder / "train.log")
    shutil.copy(ROOT / "tests/utils/logs/samples/primus_a.log", folder / "logs" / "llama")
    return folder


@pytest.mark.full("every block of commands of the pages, about 2 min")
@pytest.mark.parametrize("place", sorted(COMMANDS.keys() - LEFT_OUT.keys()))
def test_a_block_runs_as_it_stands(place, clone):
    script = DRY.sub(r"\1 --dry-run", COMMANDS[place]).replace("./tprimat build", "RUNTIME=auto ./tprimat build")
    environment = os.environ | {"RUNTIME": "native", "PLATFORM": "cpu"}
    done = subprocess.run(["bash", "-euc", script], cwd=clone, env=environment, capture_output=True, text=True)
    # 3: the command worked, and the made-up results have no pair, or no figure, to answer with
    assert done.returncode in (0, 3), f"{script}\n{done.stdout}\n{done.stderr}"
