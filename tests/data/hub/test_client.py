"""The real huggingface_hub against a hub on loopback: downloads, retries and messages to the user."""

from __future__ import annotations

import errno
import hashlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from checkout import ROOT
from huggingface_hub.errors import LocalEntryNotFoundError

from data.hub import hub_errors, licences
from data.hub.fetch import TEXTS, TOKENIZERS

WORKER = Path(__file__).parents[2] / "workers" / "hub_worker.py"
CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def fetch(hub, environment, secret) -> Callable[..., tuple[str, str]]:
    """Return what fetches files in another process; it gives back standard output and standard error."""
    hub.add("datasets", "some/text", {"a.bin": CONTENT, "b.bin": CONTENT[:-1], "small.txt": b"small"})
    hub.add("datasets", "some/gated", {"a.bin": CONTENT}, is_gated=True)

    def run(*files: str, repo: str = "some/text", **more: str) -> tuple[str, str]:
        command = [sys.executable, WORKER, "dataset", repo, *files]
        ran = subprocess.run(command, env=environment | more, capture_output=True, text=True, timeout=120)
        assert "Traceback" not in ran.stderr and secret not in ran.stdout + ran.stderr, ran.stderr
        return ran.stdout, ran.stderr

    return run


def content_of(printed: str, number: int = 1) -> bytes:
    return Path(printed.splitlines()[number]).read_bytes()


def test_a_file_is_downloaded_once_and_taken_from_the_cache_unless_it_is_damaged(hub, fetch) -> None:
    printed, said = fetch("a.bin", "small.txt")
    assert content_of(printed) == CONTENT and content_of(printed, 2) == b"small"
    assert "some/text: a.bin: downloading 1.0 MB" in said and "some/text: a.bin: done after" in said
    assert hub.downloads() == ["a.bin", "small.txt"]
    again, said = fetch("a.bin", "small.txt")
    assert again == printed and "downloading" not in said
    assert hub.downloads() == ["a.bin", "small.txt"], "nothing was downloaded again"
    Path(printed.splitlines()[1]).resolve().write_bytes(CONTENT.replace(b"\x01", b"\x02", 1))
    assert f"has {hashlib.sha256(CONTENT).hexdigest()}; the file is damaged: remove it" in fetch("a.bin")[0]


def test_a_body_that_is_cut_is_taken_up_where_it_broke(hub, fetch) -> None:
    content = CONTENT * 24
    hub.add("datasets", "some/text", {"a.bin": content})
    hub.fail("GET .*a.bin", "cut")
    printed, said = fetch("a.bin")
    assert content_of(printed) == content
    # the library keeps whole pieces of 10 MiB
    ranges = [request.range for request in hub.requests if request.method == "GET" and "a.bin" in request.path]
    assert ranges == [None, f"bytes={10 << 20}-"]
    assert "Trying to resume download" in said


TRIED_AGAIN = ": answers 500 for some/text, a fault of the server; run again later; trying again"
PASSING = [
    ("GET .*a.bin", "slow", {}, ""),
    ("GET /api/datasets", "status", {}, TRIED_AGAIN),
    ("POST /api/datasets", "status", {}, TRIED_AGAIN),
    ("HEAD .*a.bin", "status", {}, ""),  # the library repeats this one by itself, at once
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
    "gated": ("some/gated", "a.bin", {}, "SourceError: some/gated: gated; ask for access at .*/datasets/some/gated "),
    "gated, without a token": ("some/gated", "a.bin", {}, r"set HF_TOKEN to a token of your account \(.*/tokens\)"),
    "gated, with a token": (
        *("some/gated", "a.bin", {"HF_TOKEN": "hf_OfSomebodyWithoutAccess"}),
        "the account of HF_TOKEN has no access; ask for it at",
    ),
    "no repository": ("some/nothing", "a.bin", {}, "SourceError: some/nothing: no such repository"),
    "no file": ("some/text", "c.bin", {}, "SourceError: some/text: no file c.bin at [0-9a-f]{12}"),
    "offline": ("some/text", "a.bin", {"HF_HUB_OFFLINE": "1"}, "SourceError: some/text: HF_HUB_OFFLINE is set"),
    "a token with spaces": ("some/text", "a.bin", {"HF_TOKEN": "hf_a b"}, "HF_TOKEN: contains characters that no"),
    "a token with letters": ("some/text", "a.bin", {"HF_TOKEN": "hf_\u00e9"}, "HF_TOKEN: contains characters that no"),
    "a full disk": ("some/huge", "h.bin", {}, r"FetchError: .*hub: [\d,.]+ MB are free, some/huge needs 1,152,921"),
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
    assert "OfSomebody" not in printed + said and not [path for path in hub.downloads() if path != "b.bin"]
    assert name != "offline" or not hub.requests


def test_a_token_with_access_opens_a_gated_repository(fetch, secret) -> None:
    assert content_of(fetch("a.bin", repo="some/gated", HF_TOKEN=secret)[0]) == CONTENT


def test_a_refused_connection_says_what_is_tried(fetch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        printed, said = fetch("a.bin", HF_ENDPOINT=address)
    assert f"FetchError: {address}: cannot be reached ([Errno 111] Connection refused)" in printed
    assert said.count("trying again in") == 3


# Failures and licences of the hub in words: told as what they are, in one line, and without a secret.

C4 = ("dataset", "allenai/c4")
COPY = ("dataset", "rojagtap/bookcorpus")
LLAMA = ("model", "meta-llama/Llama-3.1-8B")
TEXT, MODEL = ("dataset", "some/text"), ("model", "some/model")
OTHER = {"license": "other", "license_name": "house-rules", "license_link": "https://example.org/rules"}
# repository, its card, the licence, and what is said of it
STATED = [
    (C4, {"license": ["odc-by"]}, "odc-by", "asks: Common Crawl's terms of use hold too (https://commoncrawl.org/"),
    (C4, {"license": "cc-by-nc-4.0"}, "cc-by-nc-4.0", "differs: odc-by"),
    (C4, {"license": "unknown"}, None, "differs: odc-by"),
    (C4, {}, "odc-by", "its card on the hub states none"),
    (COPY, {"license": "mit"}, "mit", "differs: unknown, the copy's card says mit, but the books are under their auth"),
    (COPY, {}, None, "authors' copyright"),
    (COPY, None, None, "authors' copyright"),
    (LLAMA, None, "llama3.1", "700 million"),
    (TEXT, {}, None, "its card states none"),
    (TEXT, {"license": "unknown"}, None, "its card says unknown"),
    (TEXT, None, None, "its card could not be read"),
    (MODEL, {"license": "apache-2.0"}, "apache-2.0", ""),
    (MODEL, {"license": "gemma"}, "gemma", "read its terms"),
    (MODEL, OTHER, "other", "read its terms: house-rules, https://example.org/rules"),
]


@pytest.mark.parametrize(("repo", "card", "licence", "told"), STATED)
def test_what_the_hub_states_goes_before_the_table_and_a_difference_is_told(repo, card, licence, told) -> None:
    found = licences.licence_of(*repo, card, "http://mirror")
    recorded = found.as_dict()
    assert recorded["licence"] == licence and told in str(found)
    if "differs" in told or "states none" in told and licence:
        assert told in recorded["licence_differs"]
    if licence is None:
        assert "differs" in told or told in recorded["licence_reason"]
        assert "find out whether you may use it" in recorded["licence_asks"]
    if card is None and licence:  # the table was not read at the mirror
        wanted = (f"https://huggingface.co/{repo[1]}", licences.LOOKED_UP)
    else:
        folder = "datasets/" if repo[0] == "dataset" else ""
        wanted = (f"http://mirror/{folder}{repo[1]}", "read from the hub")
    if licence and not (repo == C4 and not card):
        assert (found.source, found.looked_up) == wanted


def test_a_gated_repository_and_own_text_say_so() -> None:
    assert str(licences.licence_of(*LLAMA, None, "http://mirror", is_gated=True)).endswith(
        "gated: its owner grants access"
    )
    assert (licences.OWN_TEXT["licence"], licences.OWN_TEXT["licence_reason"]) == (None, "own text")


@pytest.mark.parametrize("stated", ["mit\x1b[31m\nerror: forged", ["a", {"b": 1}], {"x": []}, 7, "x" * 5000, "\u202e"])
def test_a_card_cannot_write_more_than_one_short_line(stated) -> None:
    line = str(licences.licence_of(*MODEL, {"license": stated}))
    assert line.isprintable() and len(line) < 300


def test_a_secret_is_cut_out_of_addresses_cards_and_messages(monkeypatch) -> None:
    secret = "hf_" + "Q" * 34
    found = licences.licence_of(*MODEL, {"license": secret}, f"https://user:{secret}@mirror")
    assert secret not in str(found) + json.dumps(found.as_dict())
    monkeypatch.setenv("HF_TOKEN", "secret-of-a-mirror")
    message = (
        "GET http://user:password@host/x?Signature=abc with Bearer hf_abcDEF123 and secret-of-a-mirror\nsecond line"
    )
    assert hub_errors.scrubbed(message) == "GET http://host/x with Bearer *** and *** second line"


def test_the_table_has_every_repository_and_the_page_says_the_same() -> None:
    fetched = {("dataset", source.repo) for sources in TEXTS.values() for source in sources}
    fetched |= {("model", repo) for repos in TOKENIZERS.values() for repo in repos}
    assert set(licences.KNOWN) == fetched
    rows = [line for line in (ROOT / "docs" / "data.md").read_text(encoding="utf8").splitlines() if line[:1] == "|"]
    for (_, repo), known in licences.KNOWN.items():
        # the licence is the second cell of a row of the table of licences
        (said,) = [match[1] for row in rows if (match := re.match(rf"\| `{repo}` \| ([^|]+) \|", row))]
        assert said.strip() == (f"`{known.id}`" if known.id else "unknown")
    datasets = re.findall(r"^DATASET=(\w+)$", "\n".join(p.read_text() for p in ROOT.glob("config*.env")), re.MULTILINE)
    sources = [source for name in datasets if name != "synth" for source in TEXTS[name]]
    assert sources and all(licences.KNOWN["dataset", source.repo].id for source in sources), "of the default data sets"


FAILURES = [
    (OSError(errno.ENOSPC, "No space left", "/cache/x"), "FetchError", "/cache/x: the disk is full; free space", False),
    (OSError(errno.EACCES, "Permission denied", "/cache/x"), "SourceError", "/cache/x: cannot be written", False),
    (OSError("Consistency check failed: size 9"), "FetchError", "a file is shorter than announced", True),
    (httpx2.ReadTimeout("slow"), "FetchError", "http://hub: does not answer in time", True),
    (httpx2.ReadError("reset by peer"), "FetchError", "some/text: the transfer broke (reset by peer)", True),
    (httpx2.ConnectError("no route"), "FetchError", "http://hub: cannot be reached (no route)", True),
    (ValueError("what\nis this?"), "FetchError", "some/text: fetching failed (what is this?)", True),
]


@pytest.mark.parametrize(("failure", "kind", "said", "may_pass"), FAILURES)
def test_a_failure_is_told_as_what_it_is_however_deep_it_lies(failure, kind, said, may_pass) -> None:
    outer = LocalEntryNotFoundError("An error happened while trying to locate the file on the Hub")
    outer.__cause__ = failure
    for error in (failure, outer):
        explained, again = hub_errors.explain(error, "some/text", "dataset", "http://hub")
        assert type(explained).__name__ == kind and said in str(explained) and again is may_pass
        assert "\n" not in str(explained)
