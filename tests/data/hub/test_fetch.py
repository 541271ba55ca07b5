"""`data.prepare` from a hub on loopback to the pair, with the real huggingface_hub, datasets and transformers."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from hub_server import c4, documents, shard, stand_in, tokenizer_files
from transformers import AutoTokenizer

TEXTS = documents(400)
FILES = c4(TEXTS)
LLAMA = {"size": 128_256, "eos": 128_001, "bos": 128_000}
QWEN = {"size": 151_665, "eos": 151_643}
NO_CARD = "its card could not be read, and it is not in the suite's table"


def arguments(folder: Path, *settings: str) -> list[str]:
    small = ("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=30", "WARMUP_ITERS=2", "MODEL=llama", "TOKENIZER=some/tokenizer")
    return [f"DATA_DIR={folder / 'data'}", f"OUTPUT_DIR={folder / 'output'}", *small, *settings]


def command(folder: Path, *settings: str) -> list[str]:
    start = [sys.executable, "-m", "data.prepare", "--platform", "cpu", "--for-any-training"]
    return [*start, *arguments(folder, *settings)]


@pytest.fixture
def run(hub, tmp_path, environment, secret, plain_tokenizer) -> Callable[..., tuple[list[Path], str]]:
    """Return what runs data.prepare; it gives back the printed prefixes and standard error."""
    hub.add("datasets", "allenai/c4", FILES)
    hub.add("models", "some/tokenizer", tokenizer_files(plain_tokenizer))

    def prepare(*settings: str, wanted: int = 0, folder: Path = tmp_path, **more: str) -> tuple[list[Path], str]:
        ran = subprocess.run(
            command(folder, *settings), cwd=ROOT, env=environment | more, capture_output=True, text=True, timeout=300
        )
        assert ran.returncode == wanted, ran.stderr
        assert "Traceback" not in ran.stderr and secret not in ran.stdout + ran.stderr
        assert len([line for line in ran.stderr.splitlines() if line.startswith("error: ")]) == bool(wanted)
        return [Path(line) for line in ran.stdout.splitlines()], ran.stderr

    return prepare


def manifest_of(prefix: Path) -> dict[str, Any]:
    return dict(json.loads(prefix.with_suffix(".json").read_text()))


def decoded(prefix: Path) -> list[str]:
    """Return the documents of a pair as text, by megatron-core and transformers alone."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    tokenizer = AutoTokenizer.from_pretrained(prefix.parent / "tokenizer")
    return [tokenizer.decode(ids, skip_special_tokens=True) for ids in IndexedDataset(str(prefix))]


def test_as_many_documents_as_are_asked_for_come_from_as_few_shards(hub, run) -> None:
    (prefix,), said = run("DATASET=c4", "SAMPLES=150")
    assert decoded(prefix) == TEXTS[:150]
    line = f"hub: licence of allenai/c4: odc-by; {hub.address}/datasets/allenai/c4; read from the hub; asks: Common"
    assert said.index(line) < said.index(f"{shard(0)}: downloading"), "it is shown before the first download"
    assert f"hub: licence of some/tokenizer: unknown (its card states none); {hub.address}/some/tokenizer;" in said
    assert hub.downloads() == ["tokenizer.json", "tokenizer_config.json", "README.md", shard(0), shard(1)]
    for unneeded in ("00002-of-01024", "00003-of-01024", "validation", "realnewslike", "safetensors"):
        assert not [request for request in hub.requests if unneeded in request.path], "no request names it"
    source = manifest_of(prefix)["source"]
    stated = {"licence": "odc-by", "licence_source": f"{hub.address}/datasets/allenai/c4"}
    commit = hub.repos["datasets", "allenai/c4"].commit_id()
    stated |= {"licence_looked_up": "read from the hub", "repo": "allenai/c4", "config": "en", "revision": "main"}
    assert stated.items() <= source.items() and source["commit"] == commit
    assert manifest_of(prefix)["tokenizer_source"]["licence_reason"] == "its card states none"
    files = [(file["name"], file["bytes"]) for file in source["files"]]
    assert files == [(shard(number), len(FILES[shard(number)])) for number in (0, 1)]
    assert sorted(path.name for path in prefix.parent.iterdir()) == ["text.bin", "text.idx", "text.json", "tokenizer"]

    hub.requests.clear()
    (again,), said = run("DATASET=c4", "SAMPLES=150", HF_HUB_OFFLINE="1")
    assert again == prefix and "round trip  64 of 64 documents" in said, "it is verified again"
    assert "licence" not in said
    assert not hub.requests, "what is prepared needs no network"


@pytest.mark.full("a preparation with tokenizers of full size, about 8 s")
def test_auto_takes_enough_for_one_epoch_and_a_licence_that_a_mirror_does_not_list_from_the_card(
    hub, run, plain_tokenizer
) -> None:
    hub.lists_cards = False
    hub.add("datasets", "allenai/c4", FILES | {"README.md": FILES["README.md"].replace(b"- odc-by", b"- cc-by-4.0")})
    card = {"README.md": b"---\nlicense: [\n---\n"}  # not YAML
    hub.add("models", "some/tokenizer", tokenizer_files(plain_tokenizer) | card)
    (prefix,), said = run("DATASET=c4", "SAMPLES=auto")
    needed, manifest = 30 * 8 * 128 + 1, manifest_of(prefix)
    assert needed <= manifest["tokens"] < 1.3 * needed and shard(3) not in hub.downloads()
    assert manifest["source"]["licence"] == "cc-by-4.0"
    assert re.search(r"licence of allenai/c4: cc-by-4.0; .*; the suite's table \([\d-]+\) differs: odc-by", said)
    assert NO_CARD in said and manifest["tokenizer_source"]["licence"] is None


@pytest.mark.full("three preparations with tokenizers of full size, about 15 s")
def test_a_gated_tokenizer_comes_from_a_copy_that_is_the_same_and_the_text_is_read_once(
    hub, run, tmp_path, plain_tokenizer, secret
) -> None:
    card = {"README.md": b"---\nlicense: llama3.1\n---\n# A model"}
    hub.add("models", "meta-llama/Llama-3.1-8B", stand_in(plain_tokenizer, **LLAMA) | card, is_gated=True)
    hub.add("models", "unsloth/Meta-Llama-3.1-8B", stand_in(plain_tokenizer, **LLAMA | {"eos": 128_009}))
    changed = {"README.md": b"---\nlicense: mit\n---\n"}
    hub.add("models", "NousResearch/Meta-Llama-3.1-8B", stand_in(plain_tokenizer, **LLAMA) | changed)
    hub.add("models", "Qwen/Qwen2.5-7B", stand_in(plain_tokenizer, **QWEN))
    settings = ("DATASET=c4", "SAMPLES=50", "TOKENIZER=auto", "MODEL=llama,qwen")
    prefixes, said = run(*settings)
    llama, qwen = map(manifest_of, prefixes)
    assert "meta-llama/Llama-3.1-8B: gated; ask for access at" in said
    assert "unsloth/Meta-Llama-3.1-8B: its tokenizer has 128009 as end of text, wanted 128001" in said
    assert llama["tokenizer_source"]["repo"] == "NousResearch/Meta-Llama-3.1-8B"
    assert qwen["tokenizer_source"]["repo"] == "Qwen/Qwen2.5-7B"
    assert re.search(r"licence of meta-llama/Llama-3.1-8B: llama3.1; .* 700 million .*; gated", said)
    assert llama["tokenizer_source"]["licence"] == "mit", "as the copy's card states it"
    assert re.search(r"licence of NousResearch/Meta-Llama-3.1-8B: mit; .* table .* differs: llama3.1", said)
    assert hub.downloads().count(shard(0)) == 1 and said.count("reading and cleaning") == 1
    assert llama["input"]["sha256"] == qwen["input"]["sha256"]
    assert (llama["eod_token_id"], qwen["eod_token_id"]) == (128_001, 151_643)

    _, said = run("DATASET=c4", "SAMPLES=5", "TOKENIZER=meta-llama/Llama-3.1-8B", wanted=2)
    assert "or use an ungated copy, TOKENIZER=unsloth/Meta-Llama-3.1-8B" in said, "a named one is not replaced"
    (own,), said = run(*settings, "MODEL=llama", folder=tmp_path / "with_token", HF_TOKEN=secret)
    assert manifest_of(own)["tokenizer_source"]["repo"] == "meta-llama/Llama-3.1-8B"
    assert manifest_of(own)["bin_sha256"] == llama["bin_sha256"]


@pytest.mark.full("two preparations, about 7 s")
def test_bookcorpus_comes_from_the_first_copy_that_can_be_read(hub, run) -> None:
    hub.add("datasets", "rojagtap/bookcorpus", {"rows.arrow": b"something else"})
    last = run("DATASET=bc", "SAMPLES=5", wanted=2)[1].splitlines()[-1]
    assert last.startswith("error: DATASET=bc DATASET_REPO=auto: none of its repositories is available: ")
    assert "SamuelYang/bookcorpus: no such repository" in last
    assert "rojagtap/bookcorpus: contains rows.arrow, wanted .jsonl" in last

    hub.add("datasets", "SamuelYang/bookcorpus", {"bookcorpus.py": b"# a script", "README.md": b"# no data files"})
    sentences = [f"sentence number {number} of a book ." for number in range(400)]
    # the real copy has these names and a sentence on each line, in files of 2.5 and 2.1 GB
    parts = {f"books_large_p{n + 1}.txt": "\n".join(sentences[n * 200 :][:200]).encode() for n in range(2)}
    hub.add("datasets", "rojagtap/bookcorpus", parts | {"README.md": b"---\nlicense: mit\n---\n"})
    (prefix,), said = run("DATASET=bc", "SAMPLES=30", "GROUP_ROWS=5")
    assert "SamuelYang/bookcorpus: cannot be read as a data set (Dataset scripts are no longer supported" in said
    manifest = manifest_of(prefix)
    assert manifest["source"]["repo"] == "rojagtap/bookcorpus" and manifest["cleaning"]["rules"]["front_matter"] is True
    assert decoded(prefix) == [" ".join(sentences[start : start + 5]) for start in range(0, 150, 5)]
    assert [name for name in hub.downloads() if name.endswith("txt")] == ["books_large_p1.txt"]
    assert "licence of rojagtap/bookcorpus: mit; " in said and "differs: unknown, the copy's card says mit, but" in said


C4 = "DATASET=c4"
WRONG = {
    "a configuration that is not there": ((C4, "DATASET_CONFIG=fr"), "allenai/c4: cannot be read as a data set"),
    "a revision that is not there": ((C4, "DATASET_REVISION=v9"), "allenai/c4: no such revision"),
    "a repository that is not there": (("DATASET=hub", "DATASET_REPO=a/nothing"), "a/nothing: no such repository"),
    "a column that is not there": ((C4, "TEXT_COLUMN=body"), "body"),
    "a tokenizer that is not there": ((C4, "TOKENIZER=./nothing"), "TOKENIZER=./nothing: no such folder"),
    "more documents than there are": ((C4, "SAMPLES=401"), "c4 has only 400 documents"),
}  # fmt: skip


@pytest.mark.full("six preparations, about 18 s")
@pytest.mark.parametrize("fault", WRONG)
def test_bad_input_is_one_line_and_2(run, tmp_path, fault: str) -> None:
    settings, said = WRONG[fault]
    assert said in run("SAMPLES=5", *settings, wanted=2)[1]
    assert not list(tmp_path.rglob("text.bin"))


@pytest.mark.full("six preparations, five of them without a network, about 20 s")
def test_offline_the_cache_gives_what_a_network_gave_and_nothing_that_is_damaged(hub, run, tmp_path) -> None:
    assert "HF_HUB_OFFLINE is set" in run(C4, "SAMPLES=150", wanted=2, HF_HUB_OFFLINE="1")[1]
    (online,), _ = run(C4, "SAMPLES=150")
    expected = manifest_of(online)
    hub.requests.clear()
    (prefix,), said = run(C4, "SAMPLES=150", folder=tmp_path / "elsewhere", HF_HUB_OFFLINE="1")
    assert prefix != online and not hub.requests
    assert f"allenai/c4: offline, main is {expected['source']['commit'][:12]} in the cache" in said
    found = manifest_of(prefix)
    assert found["bin_sha256"] == expected["bin_sha256"]
    licence = {"licence_looked_up": None, "licence_reason": NO_CARD}
    assert found["tokenizer_source"] == expected["tokenizer_source"] | licence, "its card is not in the cache"
    assert found["source"] == expected["source"] | {"files_of_the_split": 2}, "as many as are in the cache"
    assert "SAMPLES=300: c4 has only" in run(C4, "SAMPLES=300", wanted=2, HF_HUB_OFFLINE="1")[1]
    (first,) = (tmp_path / "home").rglob(Path(shard(0)).name)
    content = first.read_bytes()
    first.resolve().write_bytes(content[:-1] + b"x")
    assert "the file is damaged" in run(C4, "SAMPLES=50", wanted=1, HF_HUB_OFFLINE="1")[1]
    first.unlink()
    said = run(C4, "SAMPLES=50", wanted=2, HF_HUB_OFFLINE="1")[1]
    assert f"HF_HUB_OFFLINE is set and {shard(0)} is not in the cache" in said, (
        "a shard that is left out is not skipped"
    )


@pytest.mark.full("a preparation, about 4 s")
def test_a_commit_made_during_the_fetch_is_not_mixed_in(hub, run) -> None:
    repo = hub.repos["datasets", "allenai/c4"]
    before = repo.commit_id()

    def commit(request: str) -> None:
        if request.startswith("GET") and shard(0) in request and len(repo.commits) == 1:
            hub.add("datasets", "allenai/c4", c4(documents(400, seed=9)) | {"new": b""})

    hub.on_request = commit
    (prefix,), _ = run(C4, "SAMPLES=150")
    assert len(repo.commits) == 2 and decoded(prefix) == TEXTS[:150]
    assert manifest_of(prefix)["source"]["commit"] == before


@pytest.mark.full("two preparations, the first one killed, about 10 s")
def test_a_run_killed_during_a_download_goes_on_with_that_file(hub, run, tmp_path, environment) -> None:
    reached = threading.Event()
    hub.on_request = lambda request: reached.set() if request.startswith("GET") and shard(1) in request else None
    hub.fail(f"GET .*{shard(1)}", "slow")
    started = command(tmp_path, C4, "SAMPLES=150")
    with subprocess.Popen(started, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as killed:
        assert reached.wait(120)
        killed.send_signal(signal.SIGKILL)
    assert not list(tmp_path.rglob("text.bin")) and not list(tmp_path.rglob("text.jsonl"))
    (prefix,), _ = run(C4, "SAMPLES=150")
    assert decoded(prefix) == TEXTS[:150]
    assert hub.downloads().count(shard(0)) == 1 and hub.downloads().count(shard(1)) == 2


@pytest.mark.full("a preparation by its script, about 6 s")
def test_the_script_goes_the_whole_path(run, tmp_path, environment) -> None:
    ran = subprocess.run(
        [ROOT / "shell" / "run_data.sh", *arguments(tmp_path, C4, "SAMPLES=150", "PLATFORM=cpu")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert decoded(Path(ran.stdout.strip())) == TEXTS[:150]
    assert all(said in ran.stderr for said in ("documents", "tokens", ran.stdout.strip()))
