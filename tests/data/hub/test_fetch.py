"""`data.prepare` from a hub on loopback to the pair, with the real huggingface_hub, datasets and transformers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_content import c4, documents, rows, shard, stand_in, tokenizer_files
from hub_server import HubServer
from transformers import AutoTokenizer

from data.cleaning import text
from data.prepare import prepare
from data.reading.sources import find
from tests.data.hub.test_client import SECRET, environment
from utils.dataset.indexed import bin_path, idx_path, read_index
from utils.errors import DataError
from utils.settings.config import ROOT, load

TEXTS = documents(400)
FILES = c4(TEXTS)
LLAMA = {"size": 128_256, "eos": 128_001, "bos": 128_000}
QWEN = {"size": 151_665, "eos": 151_643}
NO_CARD = "its card could not be read, and it is not in the suite's table"


@pytest.fixture
def hub(plain_tokenizer: Path) -> Iterator[HubServer]:
    with HubServer(allowed_token=SECRET) as server:
        server.add("datasets", "allenai/c4", FILES)
        server.add("models", "some/tokenizer", tokenizer_files(plain_tokenizer))
        yield server


def command(tmp_path: Path, *settings: str) -> list[str]:
    small = ("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=30", "WARMUP_ITERS=2", "MODEL=llama", "TOKENIZER=some/tokenizer")
    folders = (f"DATA_DIR={tmp_path / 'data'}", f"OUTPUT_DIR={tmp_path / 'output'}")
    start = [sys.executable, "-m", "data.prepare", "--platform", "cpu", "--for-any-training"]
    return [*start, *folders, *small, *settings]


def run(hub: HubServer, tmp_path: Path, *settings: str, wanted: int = 0, **more: str) -> tuple[list[Path], str]:
    """Return the prefixes that data.prepare printed and what it said."""
    ran = subprocess.run(
        command(tmp_path, *settings),
        cwd=ROOT,
        env=environment(hub.address, tmp_path / "home", **more),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == wanted, ran.stderr
    assert "Traceback" not in ran.stderr, ran.stderr
    assert SECRET not in ran.stdout + ran.stderr
    errors = [line for line in ran.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == (1 if wanted else 0)
    return [Path(line) for line in ran.stdout.splitlines()], ran.stderr


def manifest_of(prefix: Path) -> dict[str, Any]:
    return dict(json.loads(prefix.with_suffix(".json").read_text()))


def decoded(prefix: Path) -> list[str]:
    """Return the documents of a pair as text, by the index and transformers alone."""
    index, tokenizer = read_index(prefix), AutoTokenizer.from_pretrained(prefix.parent / "tokenizer")
    ids = np.fromfile(bin_path(prefix), dtype=index.dtype)
    ends = np.cumsum(index.sequence_lengths)
    return [tokenizer.decode(part, skip_special_tokens=True) for part in np.split(ids, ends[:-1])]


def test_as_many_documents_as_are_asked_for_come_from_as_few_shards(hub, tmp_path):
    (prefix,), said = run(hub, tmp_path, "DATASET=c4", "SAMPLES=150")
    assert decoded(prefix) == TEXTS[:150]
    line = f"hub: licence of allenai/c4: odc-by; {hub.address}/datasets/allenai/c4; read from the hub; asks: Common"
    assert said.index(line) < said.index(f"{shard(0)}: downloading"), "it is shown before the first download"
    assert f"hub: licence of some/tokenizer: unknown (its card states none); {hub.address}/some/tokenizer;" in said
    assert hub.downloads() == ["tokenizer.json", "tokenizer_config.json", "README.md", shard(0), shard(1)]
    for unneeded in ("00002-of-01024", "00003-of-01024", "validation", "realnewslike", "safetensors"):
        assert not [request for request in hub.requests if unneeded in request.path], "no request names it"
    source = manifest_of(prefix)["source"]
    stated = (source["licence"], source["licence_source"], source["licence_looked_up"])
    assert stated == ("odc-by", f"{hub.address}/datasets/allenai/c4", "read from the hub")
    assert manifest_of(prefix)["tokenizer_source"]["licence_reason"] == "its card states none"
    assert (source["repo"], source["config"], source["revision"]) == ("allenai/c4", "en", "main")
    assert source["commit"] == hub.repos["datasets", "allenai/c4"].commit_id()
    assert [file["name"] for file in source["files"]] == [shard(0), shard(1)]
    assert [file["bytes"] for file in source["files"]] == [len(FILES[shard(0)]), len(FILES[shard(1)])]
    assert sorted(path.name for path in prefix.parent.iterdir()) == ["text.bin", "text.idx", "text.json", "tokenizer"]

    hub.requests.clear()
    (again,), said = run(hub, tmp_path, "DATASET=c4", "SAMPLES=150")
    assert again == prefix and "round trip  64 of 64 documents" in said, "it is verified again"
    assert "licence" not in said
    assert not hub.requests, "what is prepared needs no network"


def test_a_licence_that_a_mirror_does_not_list_is_read_from_the_card(hub, tmp_path, plain_tokenizer):
    hub.lists_cards = False
    changed = FILES["README.md"].replace(b"- odc-by", b"- cc-by-4.0")
    hub.add("datasets", "allenai/c4", FILES | {"README.md": changed})
    card = {"README.md": b"---\nlicense: [\n---\n"}  # not YAML
    hub.add("models", "some/tokenizer", tokenizer_files(plain_tokenizer) | card)
    (prefix,), said = run(hub, tmp_path, "DATASET=c4", "SAMPLES=5")
    assert manifest_of(prefix)["source"]["licence"] == "cc-by-4.0"
    assert re.search(r"licence of allenai/c4: cc-by-4.0; .*; the suite's table \([\d-]+\) differs: odc-by", said)
    assert NO_CARD in said and manifest_of(prefix)["tokenizer_source"]["licence"] is None


def test_auto_takes_enough_for_one_epoch_and_little_more(hub, tmp_path):
    (prefix,), _ = run(hub, tmp_path, "DATASET=c4", "SAMPLES=auto")
    needed, tokens = 30 * 8 * 128 + 1, manifest_of(prefix)["tokens"]
    assert needed <= tokens < 1.3 * needed
    assert shard(3) not in hub.downloads()


def test_a_gated_tokenizer_comes_from_a_copy_that_is_the_same_and_the_text_is_read_once(hub, tmp_path, plain_tokenizer):
    card = {"README.md": b"---\nlicense: llama3.1\n---\n# A model"}
    hub.add("models", "meta-llama/Llama-3.1-8B", stand_in(plain_tokenizer, **LLAMA) | card, is_gated=True)
    hub.add("models", "unsloth/Meta-Llama-3.1-8B", stand_in(plain_tokenizer, **LLAMA | {"eos": 128_009}))
    changed = {"README.md": b"---\nlicense: mit\n---\n"}
    hub.add("models", "NousResearch/Meta-Llama-3.1-8B", stand_in(plain_tokenizer, **LLAMA) | changed)
    hub.add("models", "Qwen/Qwen2.5-7B", stand_in(plain_tokenizer, **QWEN))
    settings = ("DATASET=c4", "SAMPLES=50", "TOKENIZER=auto", "MODEL=llama,qwen")
    (llama, qwen), said = run(hub, tmp_path, *settings)
    assert "meta-llama/Llama-3.1-8B: gated; ask for access at" in said
    assert "unsloth/Meta-Llama-3.1-8B: its tokenizer has 128009 as end of text, wanted 128001" in said
    assert manifest_of(llama)["tokenizer_source"]["repo"] == "NousResearch/Meta-Llama-3.1-8B"
    assert manifest_of(qwen)["tokenizer_source"]["repo"] == "Qwen/Qwen2.5-7B"
    assert re.search(r"licence of meta-llama/Llama-3.1-8B: llama3.1; .* 700 million .*; gated", said)
    assert manifest_of(llama)["tokenizer_source"]["licence"] == "mit", "as the copy's card states it"
    assert re.search(r"licence of NousResearch/Meta-Llama-3.1-8B: mit; .* table .* differs: llama3.1", said)
    assert hub.downloads().count(shard(0)) == 1
    assert said.count("reading and cleaning") == 1
    assert manifest_of(llama)["input"]["sha256"] == manifest_of(qwen)["input"]["sha256"]
    assert (manifest_of(llama)["eod_token_id"], manifest_of(qwen)["eod_token_id"]) == (128_001, 151_643)

    other = tmp_path / "with_token"
    (llama_too,), said = run(hub, other, *settings, "MODEL=llama", HF_TOKEN=SECRET)
    assert manifest_of(llama_too)["tokenizer_source"]["repo"] == "meta-llama/Llama-3.1-8B"
    assert manifest_of(llama_too)["bin_sha256"] == manifest_of(llama)["bin_sha256"]


def test_a_gated_tokenizer_that_was_named_is_not_replaced_but_its_copy_is_told(hub, tmp_path, plain_tokenizer):
    hub.add("models", "meta-llama/Llama-3.1-8B", stand_in(plain_tokenizer, **LLAMA), is_gated=True)
    _, said = run(hub, tmp_path, "DATASET=c4", "SAMPLES=5", "TOKENIZER=meta-llama/Llama-3.1-8B", wanted=2)
    assert "or use an ungated copy, TOKENIZER=unsloth/Meta-Llama-3.1-8B" in said


def test_bookcorpus_comes_from_the_first_copy_that_can_be_read(hub, tmp_path):
    hub.add("datasets", "SamuelYang/bookcorpus", {"bookcorpus.py": b"# a script", "README.md": b"# no data files"})
    sentences = [f"sentence number {number} of a book ." for number in range(400)]
    # the real copy has these names and a sentence on each line, in files of 2.5 and 2.1 GB
    parts = {f"books_large_p{n + 1}.txt": "\n".join(sentences[n * 200 :][:200]).encode() for n in range(2)}
    hub.add("datasets", "rojagtap/bookcorpus", parts | {"README.md": b"---\nlicense: mit\n---\n"})
    (prefix,), said = run(hub, tmp_path, "DATASET=bc", "SAMPLES=30", "GROUP_ROWS=5")
    assert "SamuelYang/bookcorpus: cannot be read as a data set (Dataset scripts are no longer supported" in said
    assert manifest_of(prefix)["source"]["repo"] == "rojagtap/bookcorpus"
    assert decoded(prefix) == [" ".join(sentences[start : start + 5]) for start in range(0, 150, 5)]
    assert [name for name in hub.downloads() if name.endswith("txt")] == ["books_large_p1.txt"]
    assert "licence of rojagtap/bookcorpus: mit; " in said and "differs: unknown, the copy's card says mit, but" in said


def test_where_no_repository_will_do_each_is_told_with_its_reason(hub, tmp_path):
    hub.add("datasets", "rojagtap/bookcorpus", {"rows.arrow": b"something else"})
    _, said = run(hub, tmp_path, "DATASET=bc", "SAMPLES=5", wanted=2)
    last = said.splitlines()[-1]
    assert last.startswith("error: DATASET=bc DATASET_REPO=auto: none of its repositories is available: ")
    assert "SamuelYang/bookcorpus: no such repository" in last
    assert "rojagtap/bookcorpus: contains rows.arrow, wanted .jsonl" in last


WRONG = {
    "a configuration that is not there": (
        ["DATASET=c4", "DATASET_CONFIG=fr"],
        "allenai/c4: cannot be read as a data set",
    ),
    "a revision that is not there": (["DATASET=c4", "DATASET_REVISION=v9"], "allenai/c4: no such revision"),
    "a repository that is not there": (
        ["DATASET=hub", "DATASET_REPO=some/nothing"],
        "some/nothing: no such repository",
    ),
    "a column that is not there": (["DATASET=c4", "TEXT_COLUMN=body"], "body"),
    "a tokenizer that is not there": (["DATASET=c4", "TOKENIZER=./nothing"], "TOKENIZER=./nothing: no such folder"),
    "more documents than there are": (["DATASET=c4", "SAMPLES=401"], "c4 has only 400 documents"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_bad_input_is_one_line_and_2(hub, tmp_path, fault):
    settings, said = WRONG[fault]
    assert said in run(hub, tmp_path, "SAMPLES=5", *settings, wanted=2)[1]
    assert not list(tmp_path.rglob("text.bin"))


def test_offline_is_an_error_of_input_and_what_is_prepared_needs_nobody(hub, tmp_path):
    settings = ("DATASET=c4", "SAMPLES=5")
    assert "HF_HUB_OFFLINE is set" in run(hub, tmp_path, *settings, wanted=2, HF_HUB_OFFLINE="1")[1]
    run(hub, tmp_path, *settings)
    run(hub, tmp_path, *settings, HF_HUB_OFFLINE="1")


def test_offline_the_cache_gives_what_a_network_gave(hub, tmp_path):
    settings = ("DATASET=c4", "SAMPLES=150")
    (online,), _ = run(hub, tmp_path, *settings)
    expected = manifest_of(online)
    hub.requests.clear()
    (prefix,), said = run(hub, tmp_path, *settings, f"DATA_DIR={tmp_path / 'elsewhere'}", HF_HUB_OFFLINE="1")
    assert prefix != online and not hub.requests
    assert f"allenai/c4: offline, main is {expected['source']['commit'][:12]} in the cache" in said
    found = manifest_of(prefix)
    assert found["bin_sha256"] == expected["bin_sha256"]
    licence = {"licence_looked_up": None, "licence_reason": NO_CARD}
    assert found["tokenizer_source"] == expected["tokenizer_source"] | licence, "its card is not in the cache"
    assert found["source"] == expected["source"] | {"files_of_the_split": 2}, "as many as are in the cache"

    said = run(hub, tmp_path, "DATASET=c4", "SAMPLES=300", wanted=2, HF_HUB_OFFLINE="1")[1]
    assert "SAMPLES=300: c4 has only" in said


def test_offline_a_shard_that_was_left_out_is_not_passed_over(hub, tmp_path):
    run(hub, tmp_path, "DATASET=c4", "SAMPLES=150")
    (first,) = tmp_path.rglob(Path(shard(0)).name)
    first.unlink()
    settings = ("DATASET=c4", "SAMPLES=50", f"DATA_DIR={tmp_path / 'elsewhere'}")
    said = run(hub, tmp_path, *settings, wanted=2, HF_HUB_OFFLINE="1")[1]
    assert f"HF_HUB_OFFLINE is set and {shard(0)} is not in the cache" in said


def test_offline_a_damaged_file_of_the_cache_is_not_read(hub, tmp_path):
    run(hub, tmp_path, "DATASET=c4", "SAMPLES=150")
    (first,) = tmp_path.rglob(Path(shard(0)).name)
    first.resolve().write_bytes(first.read_bytes()[:-1] + b"x")
    settings = ("DATASET=c4", "SAMPLES=50", f"DATA_DIR={tmp_path / 'elsewhere'}")
    assert "the file is damaged" in run(hub, tmp_path, *settings, wanted=1, HF_HUB_OFFLINE="1")[1]


def test_a_commit_made_during_the_fetch_is_not_mixed_in(hub, tmp_path):
    before = hub.repos["datasets", "allenai/c4"].commit_id()

    def commit(request: str) -> None:
        if request.startswith("GET") and shard(0) in request and len(hub.repos["datasets", "allenai/c4"].commits) == 1:
            hub.add("datasets", "allenai/c4", c4(documents(400, seed=9)) | {"new": b""})

    hub.on_request = commit
    (prefix,), _ = run(hub, tmp_path, "DATASET=c4", "SAMPLES=150")
    assert decoded(prefix) == TEXTS[:150]
    assert manifest_of(prefix)["source"]["commit"] == before


def test_a_run_killed_during_a_download_goes_on_with_that_file(hub, tmp_path):
    reached = threading.Event()
    hub.on_request = lambda request: reached.set() if request.startswith("GET") and shard(1) in request else None
    hub.fail(f"GET .*{shard(1)}", "slow")
    settings = ("DATASET=c4", "SAMPLES=150")
    home = environment(hub.address, tmp_path / "home")
    with subprocess.Popen(command(tmp_path, *settings), cwd=ROOT, env=home, stderr=subprocess.DEVNULL) as killed:
        assert reached.wait(120)
        killed.send_signal(signal.SIGKILL)
    assert not list(tmp_path.rglob("text.bin")) and not list(tmp_path.rglob("text.jsonl"))
    (prefix,), _ = run(hub, tmp_path, *settings)
    assert decoded(prefix) == TEXTS[:150]
    assert hub.downloads().count(shard(0)) == 1 and hub.downloads().count(shard(1)) == 2


def local(tmp_path: Path, plain_tokenizer: Path, *settings: str) -> Any:
    folders = (f"DATA_DIR={tmp_path / 'data'}", f"OUTPUT_DIR={tmp_path / 'output'}", f"TOKENIZER={plain_tokenizer}")
    return load("cpu", arguments=[*folders, "SL=128", "GBS=8", "MBS=2", "TRAIN_ITERS=30", *settings], environ={})


def test_text_that_turns_out_short_is_extended(tmp_path, plain_tokenizer, monkeypatch):
    (tmp_path / "c4.json.gz").write_bytes(FILES[shard(0)])
    (tmp_path / "c4b.json.gz").write_bytes(FILES[shard(1)])
    monkeypatch.setattr(text, "open_shards", lambda config: text.LocalFiles(find(tmp_path / "c4*"), "text"))
    honest = text.Quota._bytes_per_token
    monkeypatch.setattr(text.Quota, "_bytes_per_token", lambda self, size: honest(self, size) / 2)
    _, manifest = prepare(local(tmp_path, plain_tokenizer, "DATASET=c4"), "llama")
    assert manifest["tokens"] >= 30 * 8 * 128 + 1


def test_a_tokenizer_too_large_for_the_model_is_refused_before_anything_is_fetched(tmp_path):
    folders = (f"DATA_DIR={tmp_path / 'data'}", f"OUTPUT_DIR={tmp_path / 'output'}")
    config = load(
        "cpu", arguments=[*folders, "DATASET=c4", "MODEL=qwen"], environ={"HF_ENDPOINT": "http://127.0.0.1:9"}
    )
    with pytest.raises(DataError, match="151,665 token ids of qwen do not fit the 4,096 of qwen tiny"):
        prepare(config, "qwen")


@pytest.mark.parametrize("name", ["text.jsonl", "text.jsonl.gz", "text.parquet", "folder", "folder/*.parquet"])
def test_every_kind_of_local_text_gives_the_same_pair(tmp_path, plain_tokenizer, name):
    import gzip

    lines = "".join(json.dumps({"text": document}) + "\n" for document in TEXTS[:40]).encode()
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.jsonl").write_bytes(lines)
    (tmp_path / "text.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "text.parquet").write_bytes(rows(TEXTS[:40]))
    for number in range(2):
        (tmp_path / "folder" / f"{number}.parquet").write_bytes(rows(TEXTS[number * 20 : number * 20 + 20]))
    config = local(tmp_path, plain_tokenizer, f"DATASET={tmp_path / name}", "ALLOW_REPEAT=true")
    prefix, manifest = prepare(config, "llama")
    ids = np.fromfile(bin_path(prefix), dtype=np.uint16).tolist()
    tokenizer = AutoTokenizer.from_pretrained(plain_tokenizer)
    assert ids == [
        token for document in TEXTS[:40] for token in [*tokenizer(document).input_ids, tokenizer.eos_token_id]
    ]
    assert manifest["source"]["files"][0]["name"] in (name, "0.parquet")
    assert idx_path(prefix).exists()


def test_the_script_goes_the_whole_path(hub, tmp_path):
    settings = command(tmp_path, "DATASET=c4", "SAMPLES=150", "PLATFORM=cpu")[6:]
    ran = subprocess.run(
        [ROOT / "shell" / "run_data.sh", *settings],
        env=environment(hub.address, tmp_path / "home") | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    prefix = Path(ran.stdout.strip())
    assert decoded(prefix) == TEXTS[:150]
    for said in ("documents", "tokens", str(prefix)):
        assert said in ran.stderr
