"""Failures and licences of the hub in words: told as what they are, in one line, and without a secret."""

from __future__ import annotations

import errno
import json
import re

import httpx2
import pytest
from checkout import ROOT
from huggingface_hub.errors import LocalEntryNotFoundError

from data.hub import fetch, hub_errors, licences

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
    fetched = {("dataset", source.repo) for sources in fetch.TEXTS.values() for source in sources}
    fetched |= {("model", repo) for repos in fetch.TOKENIZERS.values() for repo in repos}
    assert set(licences.KNOWN) == fetched
    rows = [line for line in (ROOT / "docs" / "data.md").read_text(encoding="utf8").splitlines() if line[:1] == "|"]
    for (_, repo), known in licences.KNOWN.items():
        # the licence is the second cell of a row of the table of licences
        (said,) = [match[1] for row in rows if (match := re.match(rf"\| `{repo}` \| ([^|]+) \|", row))]
        assert said.strip() == (f"`{known.id}`" if known.id else "unknown")
    datasets = re.findall(r"^DATASET=(\w+)$", "\n".join(p.read_text() for p in ROOT.glob("config*.env")), re.MULTILINE)
    sources = [source for name in datasets if name != "synth" for source in fetch.TEXTS[name]]
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
