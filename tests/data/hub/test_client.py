"""The real huggingface_hub against a hub on loopback: downloads, retries and messages to the user."""

from __future__ import annotations

import hashlib
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

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
