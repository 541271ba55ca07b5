"""The real huggingface_hub, datasets and transformers against a hub on loopback, from a download to the pair."""

from __future__ import annotations

import errno
import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from checkout import ROOT
from hub_server import TOKEN, c4, documents, shard, stand_in, tokenizer_files
from huggingface_hub.errors import LocalEntryNotFoundError
from transformers import AutoTokenizer

from data.hub import fetch as fetching, hub_errors, licences
from utils.models import MODELS

WORKER = ROOT / "tests" / "workers" / "hub_worker.py"
CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def fetch(hub, environment) -> Callable[..., tuple[str, str]]:
    """Return what fetches files in another process; it gives back standard output and standard error."""
    hub.add("datasets", "some/text", {"a.bin": CONTENT, "b.bin": CONTENT[:-1], "small.txt": b"small"})
    hub.add("datasets", "some/gated", {"a.bin": CONTENT}, is_gated=True)

    def run(*files: str, repo: str = "some/text", **more: str) -> tuple[str, str]:
        command = [sys.executable, WORKER, "dataset", repo, *files]
        ran = subprocess.run(command, env=environment | more, capture_output=True, text=True, timeout=600)
        assert "Traceback" not in ran.stderr and TOKEN not in ran.stdout + ran.stderr, ran.stderr
        return ran.stdout, ran.stderr

    return run


def content_of(printed: str) -> bytes:
    return Path(printed.splitlines()[1]).read_bytes()


def test_a_file_is_downloaded_once_and_taken_from_the_cache_unless_it_is_damaged(hub, fetch) -> None:
    printed, said = fetch("a.bin", "small.txt")
    assert content_of(printed) == CONTENT
    assert "some/text: a.bin: downloading 1.0 MB" in said
    again, said = fetch("a.bin", "small.txt")
    assert again == printed and "downloading" not in said
    assert hub.downloads() == ["a.bin", "small.txt"], "nothing was downloaded again"
    Path(printed.splitlines()[1]).resolve().write_bytes(CONTENT.replace(b"\x01", b"\x02", 1))
    assert f"has {hashlib.sha256(CONTENT).hexdigest()}; the file is damaged: remove it" in fetch("a.bin")[0]


def test_a_body_that_is_cut_is_taken_up_where_it_broke(hub, fetch) -> None:
    content = CONTENT * 24
    hub.add("datasets", "some/text", {"a.bin": content})
    hub.fail("GET .*a.bin", "cut")
    assert content_of(fetch("a.bin")[0]) == content
    ranges = [request.range for request in hub.requests if request.method == "GET" and "a.bin" in request.path]
    assert ranges == [None, f"bytes={10 << 20}-"]


TRIED_AGAIN = ": answers 500 for some/text, a fault of the server; run again later; trying again"
PASSING = [
    ("GET /api/datasets", "status", {}, TRIED_AGAIN),
    ("HEAD .*resolve.*a.bin", "status", {}, ""),  # the library says nothing about this one
    ("GET .*resolve.*a.bin", "status", {}, TRIED_AGAIN),
    # a second more than told, as the library rounds up
    ("GET .*resolve.*a.bin", "status", {"status": 429, "Retry_After": "1"}, "Rate limited. Waiting 2.0s before retry"),
]


@pytest.mark.parametrize(("where", "kind", "details", "wanted"), PASSING)
def test_a_fault_that_passes_is_said_and_waited_out(hub, fetch, where, kind, details, wanted) -> None:
    hub.fail(where, kind, **details)
    printed, said = fetch("a.bin")
    assert content_of(printed) == CONTENT and wanted in said


REFUSED = {
    "gated": ("some/gated", "a.bin", {}, r"SourceError: some/gated: gated; .*/datasets/some/gated .*HF_TOKEN"),
    "gated, with a token": ("some/gated", "a.bin", {"HF_TOKEN": "hf_OfSomebodyWithoutAccess"}, "SourceError: .* gated"),
    "no repository": ("some/nothing", "a.bin", {}, "SourceError: some/nothing: no such repository"),
    "no file": ("some/text", "c.bin", {}, "SourceError: some/text: no such file"),
    "offline": ("some/text", "a.bin", {"HF_HUB_OFFLINE": "1"}, "SourceError: some/text: HF_HUB_OFFLINE is set"),
    "a token with spaces": ("some/text", "a.bin", {"HF_TOKEN": "hf_a b"}, "HF_TOKEN: contains characters that no"),
    "no server": (
        "some/text",
        "a.bin",
        {"HF_ENDPOINT": "http://127.0.0.1:9"},
        r"FetchError: http://127.0.0.1:9: cannot be reached \(\[Errno 111\] Connection refused\)",
    ),
    "a full disk": ("some/huge", "h.bin", {}, "FetchError: some/huge: Not enough free disk space .* 1152921"),
    "a wait without bound": ("some/text", "b.bin", {}, "FetchError: .*429, too many requests, retry after 86,400 s"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_fetched_is_told_with_its_reason(hub, fetch, name: str) -> None:
    repo, file, given, wanted = REFUSED[name]
    hub.add("datasets", "some/huge", {"h.bin": CONTENT})
    hub.sizes["h.bin"] = 1 << 60
    hub.fail("GET .*resolve.*b.bin", "status", status=429, Retry_After="86400")
    printed, said = fetch(file, repo=repo, **given)
    assert re.search(wanted, printed)
    assert "OfSomebody" not in printed + said and set(hub.downloads()) <= {"b.bin"}
    if name == "offline":
        assert not hub.requests


# Failures and licences of the hub in words: told as what they are, in one line, and without a secret.

ALLENAI, COPY = ("dataset", "allenai/c4"), ("dataset", "rojagtap/bookcorpus")
GATED = ("model", "meta-llama/Llama-3.1-8B")
TEXT, MODEL = ("dataset", "some/text"), ("model", "some/model")
OTHER = {"license": "other", "license_name": "house-rules", "license_link": "https://example.org/rules"}
# repository, its card, the licence, and what is said of it
STATED = [
    (
        ALLENAI,
        {"license": ["odc-by"]},
        "odc-by",
        "Common Crawl's terms of use hold too (https://commoncrawl.org/",
    ),
    (ALLENAI, {"license": "cc-by-nc-4.0"}, "cc-by-nc-4.0", "differs: odc-by"),
    (ALLENAI, {"license": "unknown"}, None, "differs: odc-by"),
    (ALLENAI, {}, "odc-by", "its card on the hub states none"),
    (COPY, {"license": "mit"}, "mit", "differs: unknown, the copy's card says mit, but the books are under their auth"),
    (COPY, {}, None, "authors' copyright"),
    (GATED, None, "llama3.1", "700 million"),
    (TEXT, {}, None, "its card states none"),
    (TEXT, None, None, "its card could not be read"),
    (MODEL, OTHER, "other", "read its terms: house-rules, https://example.org/rules"),
]


@pytest.mark.parametrize(("repo", "card", "licence", "told"), STATED)
def test_what_the_hub_states_goes_before_the_table_and_a_difference_is_told(repo, card, licence, told) -> None:
    found = licences.licence_of(*repo, card, "http://mirror")
    recorded = found.as_dict()
    assert recorded["licence"] == licence and told in str(found) and told in str(recorded)
    assert (licence is None) == ("find out whether you may use it" in recorded.get("licence_asks", ""))
    is_table = (repo, card) in ((GATED, None), (ALLENAI, {}))
    assert found.source.startswith("https://huggingface.co/" if is_table else "http://mirror/")
    assert (found.looked_up == licences.LOOKED_UP) == is_table


@pytest.mark.parametrize("stated", ["mit\x1b[31m\nerror: forged", ["a", {"b": 1}], {"x": []}, 7, "x" * 5000, "\u202e"])
def test_a_card_cannot_write_more_than_one_short_line(stated) -> None:
    line = str(licences.licence_of(*MODEL, {"license": stated}))
    assert line.isprintable() and len(line) < 300


def test_a_secret_is_cut_out_of_addresses_cards_and_messages(monkeypatch) -> None:
    secret = "hf_" + "Q" * 34
    found = licences.licence_of(*MODEL, {"license": secret}, f"https://user:{secret}@mirror")
    assert secret not in str(found) + json.dumps(found.as_dict())
    monkeypatch.setenv("HF_TOKEN", "secret-of-a-mirror")
    message = "GET http://me:word@host/x?Signature=abc with Bearer hf_abcDEF123 and secret-of-a-mirror\nsecond line"
    assert hub_errors.scrubbed(message) == "GET http://host/x with Bearer *** and *** second line"


def test_the_table_has_every_repository_and_the_page_says_the_same() -> None:
    fetched = {("dataset", source.repo) for sources in fetching.TEXTS.values() for source in sources}
    fetched |= {("model", repo) for model in MODELS.values() for repo in model.repositories}
    assert set(licences.KNOWN) == fetched
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf8")
    for (_, repo), known in licences.KNOWN.items():
        # the licence is the second cell of a row of the table of licences
        licence = f"`{known.id}`" if known.id else "unknown"
        assert re.findall(rf"^\| `{repo}` \| ([^|]+) \|", page, re.MULTILINE) == [licence]


FAILURES = [
    (OSError(errno.ENOSPC, "No space left", "/cache/x"), "FetchError", "the disk is full"),
    (OSError(errno.EACCES, "Permission denied", "/cache/x"), "SourceError", "cannot be written"),
    (OSError("Consistency check failed: size 9"), "FetchError", "fetching failed (Consistency check failed"),
    (httpx2.ReadTimeout("slow"), "FetchError", "cannot be reached (slow)"),
    (httpx2.ReadError("reset by peer"), "FetchError", "cannot be reached (reset by peer)"),
    (ValueError("what\nis this?"), "FetchError", "fetching failed (what is this?)"),
]


@pytest.mark.parametrize(("failure", "kind", "said"), FAILURES)
def test_a_failure_is_told_as_what_it_is_however_deep_it_lies(failure, kind, said) -> None:
    outer = LocalEntryNotFoundError("An error happened while trying to locate the file on the Hub")
    outer.__cause__ = failure
    for error in (failure, outer):
        explained = hub_errors.explain(error, "some/text", "dataset", "http://hub")
        assert type(explained).__name__ == kind and said in str(explained)
        assert "\n" not in str(explained)


# data.prepare from the hub to the pair.

TEXTS = documents(400)
FILES = c4(TEXTS)
LLAMA = {"size": 128_256, "eos": 128_001, "bos": 128_000}
MIT = {"README.md": b"---\nlicense: mit\n---\n"}
NO_CARD = "its card could not be read, and it is not in the suite's table"
PREPARE = [sys.executable, "-m", "data.prepare", "--platform", "cpu", "--for-any-training"]


def arguments(folder: Path, *settings: str) -> list[str]:
    small = ("GBS=8", "MBS=2", "SL=128", "TRAIN_ITERS=30", "WARMUP_ITERS=2", "MODEL=llama", "TOKENIZER=some/tokenizer")
    return [f"DATA_DIR={folder / 'data'}", f"OUTPUT_DIR={folder / 'output'}", *small, *settings]


@pytest.fixture
def run(hub, tmp_path, environment, plain_tokenizer) -> Callable[..., tuple[list[Path], str]]:
    """Return what runs data.prepare; it gives back the printed prefixes and standard error."""
    hub.add("datasets", "allenai/c4", FILES)
    hub.add("models", "some/tokenizer", tokenizer_files(plain_tokenizer))

    def prepare(*settings: str, wanted: int = 0, folder: Path = tmp_path, **more: str) -> tuple[list[Path], str]:
        command = [*PREPARE, *arguments(folder, *settings)]
        ran = subprocess.run(command, cwd=ROOT, env=environment | more, capture_output=True, text=True, timeout=600)
        assert ran.returncode == wanted, ran.stderr
        assert "Traceback" not in ran.stderr and TOKEN not in ran.stdout + ran.stderr
        assert len([line for line in ran.stderr.splitlines() if line.startswith("error: ")]) == bool(wanted)
        return [Path(line) for line in ran.stdout.splitlines()], ran.stderr

    return prepare


def manifest_of(prefix: Path) -> dict:
    return json.loads(prefix.with_suffix(".json").read_text())


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
    assert hub.downloads() == ["tokenizer.json", "tokenizer_config.json", "README.md", shard(0), shard(1)]
    stated = {
        "repo": "allenai/c4",
        "config": "en",
        "revision": "main",
        "commit": hub.repos["datasets", "allenai/c4"].commit_id(),
        "licence": "odc-by",
        "licence_source": f"{hub.address}/datasets/allenai/c4",
        "licence_looked_up": "read from the hub",
    }
    source = manifest_of(prefix)["source"]
    assert stated.items() <= source.items()
    assert manifest_of(prefix)["tokenizer_source"]["licence_reason"] == "its card states none"
    assert [file["name"] for file in source["files"]] == [shard(0), shard(1)]
    assert sorted(path.name for path in prefix.parent.iterdir()) == ["text.bin", "text.idx", "text.json", "tokenizer"]

    hub.requests.clear()
    (again,), said = run("DATASET=c4", "SAMPLES=150", HF_HUB_OFFLINE="1")
    assert again == prefix and "round trip  64 of 64 documents" in said, "it is verified again"
    assert not hub.requests and "licence" not in said, "what is prepared needs no network"


@pytest.mark.full("a preparation with tokenizers of full size, about 8 s")
def test_auto_takes_enough_for_one_epoch_and_a_licence_that_a_mirror_does_not_list_from_the_card(hub, run) -> None:
    hub.lists_cards = False
    hub.add("datasets", "allenai/c4", FILES | {"README.md": FILES["README.md"].replace(b"- odc-by", b"- cc-by-4.0")})
    (prefix,), said = run("DATASET=c4", "SAMPLES=auto")
    needed, manifest = 30 * 8 * 128 + 1, manifest_of(prefix)
    assert needed <= manifest["tokens"] < 1.3 * needed and shard(3) not in hub.downloads()
    assert manifest["source"]["licence"] == "cc-by-4.0"
    assert re.search(r"licence of allenai/c4: cc-by-4.0; .*; the suite's table \([\d-]+\) differs: odc-by", said)


@pytest.mark.full("three preparations with tokenizers of full size, about 15 s")
def test_a_gated_tokenizer_comes_from_a_copy_that_is_the_same_and_the_text_is_read_once(
    hub, run, tmp_path, plain_tokenizer
) -> None:
    hub.add("models", "meta-llama/Llama-3.1-8B", stand_in(plain_tokenizer, **LLAMA), is_gated=True)
    hub.add("models", "unsloth/Meta-Llama-3.1-8B", stand_in(plain_tokenizer, **LLAMA | {"eos": 128_009}))
    hub.add("models", "NousResearch/Meta-Llama-3.1-8B", stand_in(plain_tokenizer, **LLAMA) | MIT)
    hub.add("models", "Qwen/Qwen2.5-7B", stand_in(plain_tokenizer, size=151_665, eos=151_643))
    settings = ("DATASET=c4", "SAMPLES=50", "TOKENIZER=auto", "MODEL=llama,qwen")
    prefixes, said = run(*settings)
    llama, qwen = map(manifest_of, prefixes)
    assert "meta-llama/Llama-3.1-8B: gated; ask for access at" in said
    assert "unsloth/Meta-Llama-3.1-8B: its tokenizer has 128009 as end of text, wanted 128001" in said
    repos = [found["tokenizer_source"]["repo"] for found in (llama, qwen)]
    assert repos == ["NousResearch/Meta-Llama-3.1-8B", "Qwen/Qwen2.5-7B"]
    assert re.search(r"licence of meta-llama/Llama-3.1-8B: llama3.1; .* 700 million .*; gated", said)
    assert llama["tokenizer_source"]["licence"] == "mit", "as the copy's card states it"
    assert hub.downloads().count(shard(0)) == 1 and said.count("reading and cleaning") == 1
    assert llama["input"]["sha256"] == qwen["input"]["sha256"]
    assert (llama["eod_token_id"], qwen["eod_token_id"]) == (128_001, 151_643)

    _, said = run("DATASET=c4", "SAMPLES=5", "TOKENIZER=meta-llama/Llama-3.1-8B", wanted=2)
    assert "or use an ungated copy, TOKENIZER=unsloth/Meta-Llama-3.1-8B" in said, "a named one is not replaced"
    (own,), said = run(*settings, "MODEL=llama", folder=tmp_path / "with_token", HF_TOKEN=TOKEN)
    assert manifest_of(own)["tokenizer_source"]["repo"] == "meta-llama/Llama-3.1-8B"
    assert manifest_of(own)["bin_sha256"] == llama["bin_sha256"]


@pytest.mark.full("two preparations, about 7 s")
def test_bookcorpus_comes_from_the_first_copy_that_can_be_read(hub, run) -> None:
    hub.add("datasets", "rojagtap/bookcorpus", {"rows.arrow": b"something else"})
    last = run("DATASET=bc", "SAMPLES=5", wanted=2)[1].splitlines()[-1]
    assert last.startswith("error: DATASET=bc DATASET_REPO=auto: none of its repositories is available: ")
    assert "rojagtap/bookcorpus: contains rows.arrow, wanted .jsonl" in last

    hub.add("datasets", "SamuelYang/bookcorpus", {"bookcorpus.py": b"# a script", "README.md": b"# no data files"})
    sentences = [f"sentence number {number} of a book ." for number in range(400)]
    # the real copy has these names and a sentence on each line, in files of 2.5 and 2.1 GB
    parts = {f"books_large_p{n + 1}.txt": "\n".join(sentences[n * 200 :][:200]).encode() for n in range(2)}
    hub.add("datasets", "rojagtap/bookcorpus", parts | MIT)
    (prefix,), said = run("DATASET=bc", "SAMPLES=30", "GROUP_ROWS=5")
    assert "SamuelYang/bookcorpus: cannot be read as a data set (Dataset scripts are no longer supported" in said
    assert manifest_of(prefix)["cleaning"]["rules"]["front_matter"] is True
    assert decoded(prefix) == [" ".join(sentences[start : start + 5]) for start in range(0, 150, 5)]
    assert [name for name in hub.downloads() if name.endswith("txt")] == ["books_large_p1.txt"]


C4 = "DATASET=c4"
WRONG = {
    "a configuration that is not there": ((C4, "DATASET_CONFIG=fr"), "allenai/c4: cannot be read as a data set"),
    "a revision that is not there": ((C4, "DATASET_REVISION=v9"), "allenai/c4: no such revision"),
    "a column that is not there": ((C4, "TEXT_COLUMN=body"), "body"),
    "more documents than there are": ((C4, "SAMPLES=401"), "c4 has only 400 documents"),
}  # fmt: skip


@pytest.mark.full("four preparations, about 12 s")
@pytest.mark.parametrize("fault", WRONG)
def test_bad_input_is_one_line_and_2(run, tmp_path, fault: str) -> None:
    settings, said = WRONG[fault]
    assert said in run("SAMPLES=5", *settings, wanted=2)[1]
    assert not list(tmp_path.rglob("text.bin"))


@pytest.mark.full("six preparations, five of them without a network, about 20 s")
def test_offline_the_cache_gives_what_a_network_gave_and_nothing_that_is_damaged(hub, run, tmp_path) -> None:
    assert "HF_HUB_OFFLINE is set" in run(C4, "SAMPLES=150", wanted=2, HF_HUB_OFFLINE="1")[1]
    expected = manifest_of(run(C4, "SAMPLES=150")[0][0])
    hub.requests.clear()
    (prefix,), _ = run(C4, "SAMPLES=150", folder=tmp_path / "elsewhere", HF_HUB_OFFLINE="1")
    assert not hub.requests
    found = manifest_of(prefix)
    assert found["bin_sha256"] == expected["bin_sha256"]
    assert found["tokenizer_source"]["licence_reason"] == NO_CARD, "its card is not in the cache"
    assert found["source"] == expected["source"] | {"files_of_the_split": 2}, "as many as are in the cache"
    assert "SAMPLES=300: c4 has only" in run(C4, "SAMPLES=300", wanted=2, HF_HUB_OFFLINE="1")[1]
    (first,) = (tmp_path / "home").rglob(Path(shard(0)).name)
    content = first.read_bytes()
    first.resolve().write_bytes(content[:-1] + b"x")
    assert "the file is damaged" in run(C4, "SAMPLES=50", wanted=1, HF_HUB_OFFLINE="1")[1]
    first.unlink()
    missing = f"HF_HUB_OFFLINE is set and {shard(0)} is not in the cache"
    assert missing in run(C4, "SAMPLES=50", wanted=2, HF_HUB_OFFLINE="1")[1], "it is not skipped"


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
    command = [*PREPARE, *arguments(tmp_path, C4, "SAMPLES=150")]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as killed:
        assert reached.wait(600)
        killed.send_signal(signal.SIGKILL)
    assert not list(tmp_path.rglob("text.bin")) and not list(tmp_path.rglob("text.jsonl"))
    (prefix,), _ = run(C4, "SAMPLES=150")
    assert decoded(prefix) == TEXTS[:150]
    assert hub.downloads().count(shard(0)) == 1 and hub.downloads().count(shard(1)) == 2


@pytest.mark.full("a preparation by its script, about 6 s")
def test_the_script_goes_the_whole_path(run, tmp_path, environment) -> None:
    command = [ROOT / "shell" / "run_data.sh", *arguments(tmp_path, C4, "SAMPLES=150", "PLATFORM=cpu")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert decoded(Path(ran.stdout.strip())) == TEXTS[:150]
