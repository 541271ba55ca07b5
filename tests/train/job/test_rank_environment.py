"""Ranks get variables of known names and no secret, in a real job as well, and the result names what they got."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from toydata import write_toy_data

from tests.support.launching import SHORT
from train import launch as launcher
from train.job.job import Job
from train.job.rank_environment import ENV_NAMES, NAMES, PREFIXES, on_record, select
from train.prim.environment import AMD_BENCHMARK, AMD_BENCHMARK_GFX942
from train.settings_map.environment_rows import ENVIRONMENT
from utils.errors import ConfigError
from utils.results import schema, store
from utils.settings import layers
from utils.settings.config import ROOT, load

TOKEN = "hf_" + "".join(chr(ord("a") + (5 * place) % 26) for place in range(34))
WORD = "open" + "-sesame-" * 2
PLANTED = {
    "HF_TOKEN": TOKEN,
    "WANDB_API_KEY": WORD,
    "PIP_INDEX_URL": f"https://ann:{WORD}@index.example/simple",
    "HTTPS_PROXY": f"http://ann:{WORD}@proxy.example:3128",
    "CONTAINER_ARGS": f"--env X={TOKEN}",
    "MY_NOTE": TOKEN,
    "NCCL_FOO": TOKEN,
    "UCX_PROXY": f"http://ann:{WORD}@proxy.example:3128",
    "NCCL_PW": WORD,
    "MY_OWN": TOKEN,
}
WITHHELD = ["MY_OWN", "NCCL_FOO", "NCCL_PW", "UCX_PROXY"]
"""Those of a name that is passed, so that only their value, or what the name means, keeps them out."""
CHOSEN = {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1", "PYTORCH_CUDA_ALLOC_CONF": "backend:native", "MY_NUMBER": "7"}


def launch_and_look(folder: Path, prefix: Path) -> tuple[str, set[str], list[dict[str, str]]]:
    """Run a job; return what it printed, and command lines and environments of all processes below its launcher."""
    where = (f"OUTPUT_DIR={folder}", f"DATA_DIR={prefix.parent}", f"DATASET={prefix}")
    command = [sys.executable, "-m", "train.launch", "--platform", "cpu", "--framework", "hf", "--model", "llama"]
    environment = {**os.environ, **PLANTED, **CHOSEN, ENV_NAMES: "MY_OWN,MY_NUMBER"}
    lines: set[str] = set()
    seen: dict[int, dict[str, str]] = {}
    with (folder.parent / "said.txt").open("w") as said:
        process = subprocess.Popen(
            [*command, *SHORT, *where], cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + 240
        while process.poll() is None and time.monotonic() < deadline:
            for child in psutil.Process(process.pid).children(recursive=True):
                try:
                    text = "\0".join(child.cmdline())
                    if "train.train_hf" in text:  # between fork and exec it is still the launcher
                        lines.add(text)
                        seen[child.pid] = child.environ()
                except psutil.Error:
                    continue
            time.sleep(0.05)
    assert process.wait(1) == 0, (folder.parent / "said.txt").read_text()
    return (folder.parent / "said.txt").read_text(), lines, list(seen.values())


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job") / "output"
    prefix = write_toy_data(tmp_path_factory.mktemp("data") / "text")
    said, lines, environments = launch_and_look(folder, prefix)
    (path,) = store.find([folder])
    return said, lines, environments, store.read(path), folder


def test_no_process_of_a_job_has_a_secret_in_its_environment_or_its_command_line(job):
    _, lines, environments, _, _ = job
    assert any("RANK" in environment for environment in environments) and lines
    for environment in environments:
        assert not environment.keys() & PLANTED.keys()
        assert not [name for name, value in environment.items() if TOKEN in value or WORD in value]
    assert not [line for line in lines if TOKEN in line or WORD in line]


def test_what_the_user_has_set_for_speed_and_what_was_asked_for_by_name_reaches_the_ranks(job):
    _, _, environments, result, _ = job
    (rank, *_) = (environment for environment in environments if "RANK" in environment)
    assert {name: rank.get(name) for name in CHOSEN} == CHOSEN
    recorded = result["provenance"]["environment"]
    assert {name: recorded.get(name) for name in CHOSEN if name != "MY_NUMBER"} == {
        name: value for name, value in CHOSEN.items() if name != "MY_NUMBER"
    }


def test_the_result_names_what_was_passed_and_what_was_withheld(job):
    said, _, environments, result, folder = job
    passed = result["provenance"]["environment_passed"]
    assert {*CHOSEN, "PATH", layers.VARIABLE} <= set(passed) and not PLANTED.keys() & set(passed)
    assert all(set(passed) <= environment.keys() for environment in environments)
    assert result["provenance"]["environment_withheld"] == WITHHELD
    (warning,) = (line for line in result["warnings"] if line.startswith("environment: "))
    assert warning.endswith(": " + ", ".join(WITHHELD)) and f"warning: {warning}\n" in said
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    assert not [text for text in [said, *texts] if TOKEN in text or WORD in text]


def test_a_list_of_names_that_holds_something_else_is_refused_without_repeating_it(tmp_path):
    for bad in (f"A={TOKEN}", "A B", "A,$B"):
        with pytest.raises(ConfigError, match=f"{ENV_NAMES}: wanted names of variables") as caught:
            select({ENV_NAMES: bad})
        assert TOKEN not in str(caught.value)
    assert select({ENV_NAMES: "", "A": "1"}).variables == {ENV_NAMES: ""}


@pytest.mark.parametrize(
    "name", ["NCCL_PW", "NCCL_API_KEY", "SLURM_JWT", "HIP_ACCESS_KEY", "OMPI_DB_PWD", "UCX_SECRET"]
)
def test_a_name_that_means_a_secret_is_withheld_under_any_prefix(name):
    assert select({name: "x"}).withheld == (name,)
    assert select({ENV_NAMES: name, name: "x"}).withheld == (name,), "also if it is asked for"


def test_a_name_that_holds_a_token_is_neither_passed_nor_printed():
    chosen = select({f"NCCL_{TOKEN}": "1"})
    assert chosen.variables == {} and TOKEN not in chosen.warnings()[0]


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "PWD", ENV_NAMES, "NCCL_IB_PKEY", "TRITON_KEYED_CACHE"])
def test_a_name_that_only_looks_similar_is_passed(name):
    assert select({name: "X"}).variables == {name: "X"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TPRIMAT_GIT_COMMIT", "3bceea6f" * 5),
        ("TPRIMAT_IMAGE", "localhost/tprimat:nvd"),
        ("TPRIMAT_IMAGE_DIGEST", "sha256:" + "0123456789abcdef" * 4),
        ("LD_LIBRARY_PATH", "/opt/rocm/lib:/usr/lib/x86_64-linux-gnu"),
        ("CUDA_VISIBLE_DEVICES", "GPU-5c1a8f3e-2f0e-4c39-9b41-0d5f6a7b8c9d,GPU-6c1a8f3e-2f0e-4c39-9b41-0d5f6a7b8c9d"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:512"),
        ("SLURM_JOB_NODELIST", "n[1-2],gpu-017.cluster.example"),
    ],
)
def test_a_value_that_is_no_secret_is_passed(name, value):
    assert select({name: value}).variables == {name: value}


def is_allowed(name):
    return bool(select({name: "A"}).variables)


def test_every_variable_of_the_settings_map_and_of_amds_benchmark_is_passed():
    names = {row.name for row in ENVIRONMENT} | AMD_BENCHMARK.keys() | AMD_BENCHMARK_GFX942.keys()
    assert len(names) > 10 and [name for name in sorted(names) if not is_allowed(name)] == []


def test_no_prefix_is_there_twice_and_no_name_is_covered_by_one():
    for entry in (*PREFIXES, *NAMES):
        assert [prefix for prefix in PREFIXES if entry.startswith(prefix) and entry != prefix] == []


def constants_of(tree):
    """Return the names that a file gives to texts at its top."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def read_from_environment(path):
    """Yield the variables that a file reads by `environ[...]`, `environ.get(...)`, `... in environ` or getenv."""
    tree = ast.parse(path.read_text(encoding="utf8"))
    known = constants_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
            key = node.slice
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("environ.get", "os.getenv")):
            key = node.args[0]
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).endswith("environ"):
            key = node.left
        else:
            continue
        if isinstance(key, ast.Constant):
            yield key.value
        elif isinstance(key, ast.Name) and key.id in known:
            yield known[key.id]


def test_every_variable_that_our_code_reads_is_one_that_ranks_get():
    names = {
        name
        for room in ("train", "utils")
        for path in (ROOT / room).rglob("*.py")
        for name in read_from_environment(path)
    }
    assert {"RANK", "LOCAL_RANK", "TPRIMAT_IMAGE", "PRIMUS_PATH", layers.VARIABLE} <= names
    config = load("cpu", arguments=["DATASET=synth"], environ={})
    given = launcher._environment(Job(config, "hf", "llama"), {}) | layers.variable({})
    assert [name for name in sorted(names) if not is_allowed(name) and name not in given] == []


def test_a_result_without_the_names_stays_valid_and_a_wrong_list_is_not(job):
    result = job[3]
    assert schema.problems(result) == []
    del result["provenance"]["environment_passed"], result["provenance"]["environment_withheld"]
    assert schema.problems(result) == []
    for wrong in ([], "PATH", [1], [""]):
        changed = result | {"provenance": result["provenance"] | {"environment_passed": wrong}}
        assert "environment_passed" in schema.problems(changed)[0]
    assert on_record(["B", "A"], [], {}) == {"environment_passed": ["A", "B"]}
