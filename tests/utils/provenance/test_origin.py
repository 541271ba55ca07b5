"""Where a result comes from: everything that changes speed, nothing that is secret, nothing guessed."""

import hashlib
import json
import shutil
import subprocess
from importlib import metadata

import pytest

from evaluate.fairness.effects import EFFECTS
from train.settings_map.environment_rows import ENVIRONMENT
from utils.provenance import origin
from utils.provenance.origin import describe, speed_variables, versions
from utils.provenance.variables import KNOWN, SPEED_VARIABLES

SECRETS = [
    "HF_TOKEN",
    "NCCL_TOKEN",
    "PYTORCH_HUB_TOKEN_FILE",
    "TORCH_AUTH_TOKENS",
    "CUDA_API_KEY",
    "HIP_ACCESS_KEY_ID",
    "TE_APIKEY",
    "UCX_PASSWORD",
    "UCX_PASSWD",
    "GLOO_CREDENTIALS",
    "NVTE_secret",
    "WANDB_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
]
SPEED = [
    "NCCL_DEBUG",
    "NCCL_IB_PKEY",  # an InfiniBand partition, no secret
    "RCCL_MSCCL_ENABLE",
    "NVTE_FLASH_ATTN",
    "HSA_FORCE_FINE_GRAIN_PCIE",
    "HIP_LAUNCH_BLOCKING",
    "AMD_SERIALIZE_KERNEL",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_BLAS_PREFER_HIPBLASLT",
    "NVIDIA_TF32_OVERRIDE",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUBLAS_WORKSPACE_CONFIG",
    "OMP_NUM_THREADS",
    "GPU_MAX_HW_QUEUES",
    "TOKENIZERS_PARALLELISM",
    "LD_PRELOAD",
]


@pytest.fixture
def described(monkeypatch):
    for name in (*SECRETS, *SPEED):
        monkeypatch.setenv(name, f"value of {name}")
    return describe("a command", "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:01+00:00")


@pytest.mark.parametrize("name", SECRETS)
def test_no_secret_gets_into_the_result(described, name):
    assert f"value of {name}" not in json.dumps(described)


@pytest.mark.parametrize("name", SPEED)
def test_a_variable_that_changes_speed_is_recorded(described, name):
    assert described["environment"][name] == f"value of {name}"


ADDRESSES = {
    "UCX_PROXY": "user:word@proxy:3128",
    "TRITON_CACHE_MANAGER_URL": "https://word@host",
    "NCCL_DEBUG_FILE": "http://u:word@REST@h/",
    "NCCL_TOPO_FILE": "http://u:word/REST@h:80/",
    "LD_PRELOAD": "http%3A%2F%2Fu%3Aword%40h",
}


def test_a_secret_in_a_value_is_replaced_also_under_a_published_name():
    recorded = speed_variables(ADDRESSES | {"NCCL_PW": "word"})
    assert recorded.keys() == ADDRESSES.keys() and "word" not in str(recorded) and "REST" not in str(recorded)
    assert (recorded["NCCL_DEBUG_FILE"], recorded["NCCL_TOPO_FILE"]) == ("http://***@h/", "http://***@h:80/")
    assert recorded["LD_PRELOAD"] == "http%3A%2F%2F***%40h"
    assert recorded["UCX_PROXY"] == "sha256:" + hashlib.sha256(b"***@proxy:3128").hexdigest()[:16], (
        "not of the password"
    )


def test_a_variable_of_an_unpublished_name_has_a_hash_in_place_of_its_value():
    one, same, other = (speed_variables({"NCCL_NOTE": note})["NCCL_NOTE"] for note in ("mine", "mine", "yours"))
    assert one == same != other and one == "sha256:" + hashlib.sha256(b"mine").hexdigest()[:16]
    assert origin.on_record("NCCL_NOTE", one) == one


def test_every_variable_that_a_comparison_judges_or_the_suite_sets_is_published():
    judged = {name for effect in EFFECTS for name in effect.names.split()}
    needed = {effect.beside.partition("=")[0] for effect in EFFECTS if effect.beside}
    assert judged | needed | {row.name for row in ENVIRONMENT} <= KNOWN
    assert all(SPEED_VARIABLES.match(name) for name in KNOWN)


def test_what_has_nothing_to_do_with_speed_is_left_out():
    assert speed_variables({"HOME": "/root", "MY_NCCL_DEBUG": "1", "HTTPS_PROXY": "http://user:word@proxy"}) == {}


def test_without_git_commit_and_state_are_null_with_a_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    section = describe("", "", "")
    assert (section["git_commit"], section["git_dirty"]) == (None, None)
    assert section["reasons"]["git_commit"] and section["reasons"]["git_dirty"]


@pytest.fixture
def checkout(tmp_path):
    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "a.py").write_text("a = 1\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    return tmp_path, git("rev-parse", "HEAD")


def test_commit_is_that_of_the_checkout_and_dirty_when_a_file_of_it_changed(checkout, monkeypatch):
    folder, commit = checkout
    monkeypatch.setattr(origin, "ROOT", folder)
    assert [describe("", "", "")[key] for key in ("git_commit", "git_dirty")] == [commit, False]
    (folder / "utils" / "a.py").write_text("a = 2\n")
    assert [describe("", "", "")[key] for key in ("git_commit", "git_dirty")] == [commit, True]


def test_a_copy_inside_another_checkout_does_not_take_its_commit(checkout, monkeypatch):
    folder, _ = checkout
    shutil.copytree(folder / "utils", folder / "copy" / "utils")
    monkeypatch.setattr(origin, "ROOT", folder / "copy")
    section = describe("", "", "")
    assert section["git_commit"] is None and section["reasons"]["git_commit"]


def test_image_is_what_the_container_says_or_null_with_a_reason(monkeypatch):
    monkeypatch.delenv("TPRIMAT_IMAGE", raising=False)
    monkeypatch.setenv("TPRIMAT_IMAGE_DIGEST", "sha256:1")
    section = describe("", "", "")
    assert section["image"] is None and section["reasons"]["image"]
    assert section["image_digest"] == "sha256:1" and "image_digest" not in section["reasons"]


def test_versions_are_those_installed_and_an_absent_package_has_none(monkeypatch):
    monkeypatch.setattr(origin, "PACKAGES", ("numpy", "no-such-package-of-ours"))
    assert versions().keys() == {"python", "numpy"}
    assert versions()["numpy"] == metadata.version("numpy")
