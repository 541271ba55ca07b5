"""The real huggingface_hub against a hub on loopback: downloads, retries and messages to the user."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from hub_server import HubServer
from huggingface_hub.errors import LocalEntryNotFoundError

from data.hub.hub_errors import FetchError, SourceError, explain, scrubbed
from utils.settings.config import ROOT

WORKER = ROOT / "tests" / "workers" / "hub_worker.py"
SECRET = "hf_PlantedTokenThatMustNotShow"
CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(allowed_token=SECRET) as server:
        server.add("datasets", "some/text", {"a.bin": CONTENT, "b.bin": CONTENT[:-1], "small.txt": b"small"})
        yield server


def environment(address: str, home: Path, **more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING", "TRANSFORMERS"))}
    settings = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    return kept | settings | more


def fetch(hub: HubServer | str, home: Path, *files: str, repo: str = "some/text", **more: str) -> tuple[str, str]:
    """Return what the worker printed on stdout and on stderr."""
    address = hub if isinstance(hub, str) else hub.address
    ran = subprocess.run(
        [sys.executable, WORKER, "dataset", repo, *files],
        env=environment(address, home, **more),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in ran.stderr, ran.stderr
    assert SECRET not in ran.stdout + ran.stderr
    return ran.stdout, ran.stderr


def content_of(printed: str, number: int = 1) -> bytes:
    return Path(printed.splitlines()[number]).read_bytes()


def test_a_file_is_downloaded_once_and_taken_from_the_cache_afterwards(hub, tmp_path):
    printed, said = fetch(hub, tmp_path, "a.bin", "small.txt")
    assert content_of(printed) == CONTENT and content_of(printed, 2) == b"small"
    assert "some/text: a.bin: downloading 1.0 MB" in said and "some/text: a.bin: done after" in said
    assert hub.downloads() == ["a.bin", "small.txt"]
    again, said = fetch(hub, tmp_path, "a.bin", "small.txt")
    assert again == printed and "downloading" not in said
    assert hub.downloads() == ["a.bin", "small.txt"], "nothing was downloaded again"


def test_a_body_that_is_cut_is_taken_up_where_it_broke(hub, tmp_path):
    content = CONTENT * 24
    hub.add("datasets", "some/text", {"a.bin": content})
    hub.fail("GET .*a.bin", "cut")
    printed, said = fetch(hub, tmp_path, "a.bin")
    assert content_of(printed) == content
    # the library keeps whole pieces of 10 MiB
    ranges = [request.range for request in hub.requests if request.method == "GET" and "a.bin" in request.path]
    assert ranges == [None, f"bytes={10 << 20}-"]
    assert "Trying to resume download" in said


def test_a_slow_body_arrives_whole(hub, tmp_path):
    hub.fail("GET .*a.bin", "slow")
    assert content_of(fetch(hub, tmp_path, "a.bin")[0]) == CONTENT


@pytest.mark.parametrize("where", ["GET /api/datasets", "POST /api/datasets", "HEAD .*a.bin", "GET .*resolve.*a.bin"])
def test_a_server_error_is_said_and_tried_again(hub, tmp_path, where):
    hub.fail(where, "status", status=500)
    printed, said = fetch(hub, tmp_path, "a.bin")
    assert content_of(printed) == CONTENT
    if not where.startswith("HEAD"):  # the library repeats this one by itself, at once
        assert f"{hub.address}: status 500 for some/text, a fault of the server; run again later; trying again" in said


def test_too_many_requests_are_waited_out_as_told(hub, tmp_path):
    hub.fail("GET .*resolve.*a.bin", "status", status=429, Retry_After="1")
    printed, said = fetch(hub, tmp_path, "a.bin")
    assert content_of(printed) == CONTENT
    assert "Rate limited. Waiting 2.0s before retry" in said, "a second more than told, as the library rounds up"


def test_a_wait_without_bound_is_refused(hub, tmp_path):
    hub.fail("GET .*resolve.*a.bin", "status", status=429, Retry_After="86400")
    printed, _ = fetch(hub, tmp_path, "a.bin")
    assert "FetchError" in printed and "429, too many requests, retry after 86,400 s" in printed


def test_a_gated_repository_says_where_to_ask_and_which_setting_takes_the_token(hub, tmp_path):
    hub.add("datasets", "some/gated", {"a.bin": CONTENT}, is_gated=True)
    printed, _ = fetch(hub, tmp_path, "a.bin", repo="some/gated")
    assert re.search(rf"SourceError: some/gated: gated; request access at {hub.address}/datasets/some/gated ", printed)
    assert f"set HF_TOKEN to a token of your account ({hub.address}/settings/tokens)" in printed
    printed, _ = fetch(hub, tmp_path, "a.bin", repo="some/gated", HF_TOKEN="hf_OfSomebodyWithoutAccess")
    assert "the account of HF_TOKEN has no access; request it at" in printed
    assert "OfSomebody" not in printed
    printed, _ = fetch(hub, tmp_path, "a.bin", repo="some/gated", HF_TOKEN=SECRET)
    assert content_of(printed) == CONTENT


def test_what_does_not_exist_is_named(hub, tmp_path):
    assert "SourceError: some/nothing: no such repository" in fetch(hub, tmp_path, repo="some/nothing")[0]
    assert re.search(r"SourceError: some/text: no file c.bin at [0-9a-f]{12}", fetch(hub, tmp_path, "c.bin")[0])


def test_offline_is_an_error_at_once_that_names_the_setting(hub, tmp_path):
    printed, _ = fetch(hub, tmp_path, "a.bin", HF_HUB_OFFLINE="1")
    assert "SourceError: some/text: HF_HUB_OFFLINE is set" in printed
    assert not hub.requests


def test_a_refused_connection_says_what_is_tried(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        printed, said = fetch(address, tmp_path, "a.bin")
    assert f"FetchError: {address}: cannot be reached ([Errno 111] Connection refused)" in printed
    assert said.count("trying again in") == 3


def test_a_damaged_file_of_the_cache_is_not_taken(hub, tmp_path):
    path = Path(fetch(hub, tmp_path, "a.bin")[0].splitlines()[1])
    path.resolve().write_bytes(CONTENT.replace(b"\x01", b"\x02", 1))
    printed, _ = fetch(hub, tmp_path, "a.bin")
    assert f"has {hashlib.sha256(CONTENT).hexdigest()}; the file is damaged: remove it" in printed


def test_a_full_disk_is_known_before_the_download(hub, tmp_path):
    hub.add("datasets", "some/huge", {"a.bin": CONTENT})
    hub.sizes["a.bin"] = 1 << 60
    printed, _ = fetch(hub, tmp_path, "a.bin", repo="some/huge")
    assert re.search(r"FetchError: .*hub: [\d,.]+ MB are free, some/huge needs 1,152,921,504,606.8 MB", printed)
    assert not hub.downloads()


@pytest.mark.parametrize("token", [f"{SECRET} with spaces", f"{SECRET}\u00e9"])
def test_a_token_that_cannot_be_one_is_refused_without_being_shown(hub, tmp_path, token):
    printed, said = fetch(hub, tmp_path, "a.bin", HF_TOKEN=token)
    assert "HF_TOKEN: contains characters that no token has" in printed


FAILURES = [
    (
        OSError(errno.ENOSPC, "No space left on device", "/cache/x"),
        FetchError,
        "/cache/x: the disk is full; free space",
        False,
    ),
    (OSError(errno.EACCES, "Permission denied", "/cache/x"), SourceError, "/cache/x: cannot be written", False),
    (
        OSError("Consistency check failed: file should be of size 9"),
        FetchError,
        "a file is shorter than announced",
        True,
    ),
    (httpx2.ReadTimeout("slow"), FetchError, "http://hub: does not answer in time", True),
    (httpx2.ReadError("reset by peer"), FetchError, "some/text: the transfer broke (reset by peer)", True),
    (httpx2.ConnectError("no route"), FetchError, "http://hub: cannot be reached (no route)", True),
    (ValueError("what\nis this?"), FetchError, "some/text: fetching failed (what is this?)", True),
]


@pytest.mark.parametrize(("failure", "kind", "said", "may_pass"), FAILURES)
def test_a_failure_is_told_as_what_it_is_however_deep_it_lies(failure, kind, said, may_pass):
    outer = LocalEntryNotFoundError("An error happened while trying to locate the file on the Hub")
    outer.__cause__ = failure
    for error in (failure, outer):
        explained, again = explain(error, "some/text", "dataset", "http://hub")
        assert type(explained) is kind and said in str(explained) and again is may_pass
        assert "\n" not in str(explained)


def test_a_token_is_cut_out_of_every_message(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret-of-a-mirror")
    message = (
        "GET http://user:password@host/x?Signature=abc with Bearer hf_abcDEF123 and secret-of-a-mirror\nsecond line"
    )
    assert scrubbed(message) == "GET http://host/x with Bearer *** and *** second line"
