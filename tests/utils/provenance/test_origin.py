"""Where a result comes from: what changes speed or decides a run, nothing that is secret, nothing guessed."""

import hashlib
import json
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evaluate.fairness.effects import EFFECTS
from utils.errors import DataError, UnusableError
from utils.provenance import digests, origin

describe, speed_variables = origin.describe, origin.speed_variables
KNOWN, SPEED_VARIABLES = origin.KNOWN, origin.SPEED_VARIABLES
SECRETS = (
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
)
SPEED = (  # NCCL_IB_PKEY is an InfiniBand partition, no secret
    "NCCL_DEBUG",
    "NCCL_IB_PKEY",
    "RCCL_MSCCL_ENABLE",
    "NVTE_FLASH_ATTN",
    "HSA_FORCE_FINE_GRAIN_PCIE",
    "LD_PRELOAD",
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
)


@pytest.mark.parametrize("name", [*SECRETS, *SPEED])
def test_a_variable_that_changes_speed_is_recorded_and_no_secret(name, monkeypatch):
    monkeypatch.setenv(name, f"value of {name}")
    described = describe("a command", "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:01+00:00")
    assert (described["environment"].get(name) == f"value of {name}") == (name in SPEED)
    assert (f"value of {name}" in json.dumps(described)) == (name in SPEED)


ADDRESSES = {
    "UCX_PROXY": "user:word@proxy:3128",
    "TRITON_CACHE_MANAGER_URL": "https://word@host",
    "NCCL_DEBUG_FILE": "http://u:word@REST@h/",
    "NCCL_TOPO_FILE": "http://u:word/REST@h:80/",
    "LD_PRELOAD": "http%3A%2F%2Fu%3Aword%40h",
}


def hashed(value):
    return "sha256:" + hashlib.sha256(value).hexdigest()[:16]


RECORDED = {  # what is recorded of each; a name that is not published has a hash in place of its value
    "UCX_PROXY": hashed(b"***@proxy:3128"),  # not of the password
    "TRITON_CACHE_MANAGER_URL": hashed(b"https://***@host"),
    "NCCL_DEBUG_FILE": "http://***@h/",
    "NCCL_TOPO_FILE": "http://***@h:80/",
    "LD_PRELOAD": "http%3A%2F%2F***%40h",
    "NCCL_NOTE": hashed(b"mine"),
}
IRRELEVANT = {"HOME": "/root", "MY_NCCL_DEBUG": "1", "HTTPS_PROXY": "http://user:word@proxy", "NCCL_PW": "word"}


def test_a_variable_of_speed_is_recorded_without_a_secret_in_its_value():
    recorded = speed_variables(ADDRESSES | IRRELEVANT | {"NCCL_NOTE": "mine"})
    assert recorded == RECORDED
    assert origin.on_record("NCCL_NOTE", recorded["NCCL_NOTE"]) == recorded["NCCL_NOTE"]


def test_every_variable_that_a_comparison_judges_is_published():
    judged = {name for effect in EFFECTS for name in effect.names.split()}
    needed = {effect.beside.partition("=")[0] for effect in EFFECTS if effect.beside}
    assert judged | needed <= KNOWN
    assert all(SPEED_VARIABLES.match(name) for name in KNOWN)


def test_without_git_commit_and_state_are_null_with_a_reason_or_what_was_asked_outside(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    section = describe("", "", "")
    assert (section["git_commit"], section["git_dirty"]) == (None, None)
    assert section["reasons"]["git_commit"] and section["reasons"]["git_dirty"]
    told = {"TPRIMAT_GIT_COMMIT": "a" * 40, "TPRIMAT_GIT_DIRTY": "true"}
    assert origin.commit(tmp_path, told) == ("a" * 40, True)


def test_commit_is_that_of_the_checkout_and_not_of_one_around_it_and_dirty_when_a_file_changed(tmp_path, monkeypatch):
    file = tmp_path / "utils" / "a.py"
    file.parent.mkdir()
    file.write_text("a = 1\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    for command in ("init", "add .", "commit --message first", "rev-parse HEAD"):
        git = ["git", "-C", str(tmp_path), *identity, *command.split()]
        commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    shutil.copytree(tmp_path / "utils", tmp_path / "copy" / "utils")
    for root, text, wanted in (
        ("", "a = 1\n", (commit, False)),
        ("", "a = 2\n", (commit, True)),
        ("copy", "", (None, None)),
    ):
        monkeypatch.setattr(origin, "ROOT", tmp_path / root)
        file.write_text(text)
        section = describe("", "", "")
        assert (section["git_commit"], section["git_dirty"]) == wanted
        assert bool(section["reasons"].get("git_commit")) == (root == "copy")


def test_image_is_what_the_container_says_or_null_with_a_reason(monkeypatch):
    monkeypatch.delenv("TPRIMAT_IMAGE", raising=False)
    monkeypatch.setenv("TPRIMAT_IMAGE_DIGEST", "sha256:1")
    section = describe("", "", "")
    assert (section["image"], section["image_digest"]) == (None, "sha256:1")
    assert section["reasons"]["image"] and "image_digest" not in section["reasons"]


# Fingerprints change with what decides a run, and with nothing else.

PIECES = bytes(range(256)) * 10_000


@pytest.mark.parametrize(
    ("content", "digest"),
    [  # FIPS 180-4 example vectors of NIST
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (b"a" * 1_000_000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        (PIECES, hashlib.sha256(PIECES).hexdigest()),
    ],
)
def test_file_digest_is_the_published_one_also_of_several_pieces(tmp_path: Path, content: bytes, digest: str) -> None:
    (tmp_path / "file").write_bytes(content)
    assert digests.sha256_file(tmp_path / "file") == digest


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Path("x")])
def test_json_digest_is_of_the_canonical_text_and_what_json_cannot_hold_has_none(value) -> None:
    expected = hashlib.sha256('{"a":[1,2.5,null],"é":{"x":true,"y":"z"}}'.encode()).hexdigest()
    assert digests.sha256_json({"é": {"y": "z", "x": True}, "a": [1, 2.5, None]}) == expected
    with pytest.raises((TypeError, ValueError)):
        digests.sha256_json({"a": value})


@pytest.mark.parametrize(
    ("digest", "message"),
    [
        (lambda folder: digests.sha256_file(folder / "gone"), "gone: no such file"),
        (digests.sha256_tokenizer, "no tokenizer in it"),
        (digests.sha256_code, "none of our code"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, digest: Callable[[Path], str], message: str) -> None:
    with pytest.raises(UnusableError, match=message):
        digest(tmp_path)


FILES = {
    digests.sha256_tokenizer: ("tokenizer.json", "merges.txt"),
    digests.sha256_code: (
        "utils/a.py",
        "train/b.py",
        "train/deep/c.sh",
        "data/d.py",
        "cpu-requirements.txt",
        "README.md",
        "evaluate/report/assets/b.css",
    ),
}
FILES[origin.sha256_report_code] = FILES[digests.sha256_code]
CHANGES = [  # digest, file that is written, or that is moved (removed) and to where; whether the digest sees it
    *((digests.sha256_tokenizer, name, None, True) for name in ("tokenizer.json", "special_tokens_map.json")),
    *((digests.sha256_tokenizer, "merges.txt", to, True) for to in ("vocab.txt", "added_tokens.json", "elsewhere")),
    *((digests.sha256_tokenizer, name, None, False) for name in ("README.md", "model.safetensors")),
    *(
        (digests.sha256_code, name, None, True)
        for name in ("utils/a.py", "train/b.py", "train/deep/c.sh", "cpu-requirements.txt")
    ),
    *((digests.sha256_code, "utils/a.py", to, True) for to in ("train/a.py", "utils/z.py")),
    *((digests.sha256_code, name, None, False) for name in ("README.md", "data/d.py", "utils/__pycache__/a.pyc")),
    *(
        (origin.sha256_report_code, name, None, True)
        for name in ("utils/a.py", "evaluate/report/assets/b.css", "evaluate/new.py")
    ),
    (origin.sha256_report_code, "utils/a.py", "utils/b.py", True),
    *(
        (origin.sha256_report_code, name, None, False)
        for name in ("train/b.py", "utils/__pycache__/a.pyc", "README.md")
    ),
]


@pytest.mark.parametrize(("digest", "name", "to", "is_seen"), CHANGES)
def test_a_digest_sees_contents_names_and_files_that_matter_and_no_others(tmp_path, digest, name, to, is_seen):
    root = tmp_path / "root"
    for file in FILES[digest]:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(file)
    before = digest(root)
    assert digest(shutil.copytree(root, tmp_path / "elsewhere")) == before, "where it lies does not matter"
    if to is None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("changed")
    else:
        (root / name).rename(root / to)
    assert (digest(root) != before) == is_seen


SAMPLES = [[1, 2], [3, 70_000], [5, 6], [7, 8]]


def digest_of(samples: list[list[int]], batch: int, batches: int, kind: Callable[[list[int]], Any] = np.array) -> str:
    return digests.sha256_token_stream([{"tokens": kind(sample)} for sample in samples], batch, batches)


@pytest.mark.parametrize("kind", [torch.tensor, np.array, lambda ids: np.array(ids, dtype=np.int32)])
def test_token_stream_digest_is_of_int64_ids_in_order_whatever_holds_them(kind: Callable[[list[int]], Any]) -> None:
    expected = hashlib.sha256(struct.pack("<6q", 1, 2, 3, 70_000, 5, 6)).hexdigest()
    assert digest_of(SAMPLES, 3, 1, kind) == digest_of(SAMPLES, 1, 3, kind) == expected
    assert digest_of([SAMPLES[1], SAMPLES[0], *SAMPLES[2:]], 3, 1, kind) != expected
    with pytest.raises(DataError, match="got 4 samples, wanted 6"):
        digest_of(SAMPLES, 3, 2, kind)
