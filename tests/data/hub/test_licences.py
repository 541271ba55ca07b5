"""Licences: what the hub states goes before the table, differences are told, and what is unknown has a reason."""

from __future__ import annotations

import json
import re

import pytest

from data.hub.fetch import TEXTS, TOKENIZERS
from data.hub.licences import KNOWN, LOOKED_UP, OWN_TEXT, Licence, licence_of
from utils.settings.config import PLATFORMS, ROOT, load

C4 = ("dataset", "allenai/c4")
COPY = ("dataset", "rojagtap/bookcorpus")


def test_what_the_hub_states_is_recorded_with_its_address() -> None:
    found = licence_of(*C4, {"license": ["odc-by"]}, "http://mirror")
    assert (found.id, found.source, found.looked_up) == (
        "odc-by",
        "http://mirror/datasets/allenai/c4",
        "read from the hub",
    )
    assert found.differs is None
    # the terms that C4's card names beside the licence
    assert str(found).endswith("asks: Common Crawl's terms of use hold too (https://commoncrawl.org/terms-of-use)")


def test_without_a_card_the_table_is_used_with_its_date() -> None:
    found = licence_of("model", "meta-llama/Llama-3.1-8B", None, "http://mirror", is_gated=True)
    assert (found.id, found.looked_up) == ("llama3.1", LOOKED_UP)
    assert found.source == "https://huggingface.co/meta-llama/Llama-3.1-8B", "the table was not read at the mirror"
    assert "700 million" in str(found) and str(found).endswith("gated: its owner grants access")


@pytest.mark.parametrize(
    ("repo", "stated", "licence", "told"),
    [
        (C4, "cc-by-nc-4.0", "cc-by-nc-4.0", "differs: odc-by"),
        (C4, "unknown", None, "differs: odc-by"),
        (C4, None, "odc-by", "its card on the hub states none"),
        (COPY, "mit", "mit", "differs: unknown, the copy's card says mit, but the books are under their authors'"),
    ],
)
def test_a_difference_between_hub_and_table_is_told_and_recorded(repo, stated, licence, told) -> None:
    found = licence_of(*repo, {"license": stated} if stated else {})
    assert found.as_dict()["licence"] == licence
    assert told in str(found) and told in found.as_dict()["licence_differs"]


@pytest.mark.parametrize(
    ("repo", "card", "reason"),
    [
        (("dataset", "some/text"), {}, "its card states none"),
        (("dataset", "some/text"), {"license": "unknown"}, "its card says unknown"),
        (("dataset", "some/text"), None, "its card could not be read"),
        (COPY, {}, "authors' copyright"),
        (COPY, None, "authors' copyright"),
    ],
)
def test_an_unknown_licence_is_null_with_a_reason(repo, card, reason) -> None:
    found = licence_of(*repo, card).as_dict()
    assert found["licence"] is None and reason in found["licence_reason"]
    assert "find out whether you may use it" in found["licence_asks"]


def test_a_licence_that_the_suite_does_not_know_is_to_be_read() -> None:
    known = licence_of("model", "some/model", {"license": "apache-2.0"})
    assert known.asks == ""
    assert licence_of("model", "some/model", {"license": "gemma"}).asks == "read its terms"
    other = {"license": "other", "license_name": "house-rules", "license_link": "https://example.org/rules"}
    assert licence_of("model", "some/model", other).asks == "read its terms: house-rules, https://example.org/rules"


@pytest.mark.parametrize("stated", ["mit\x1b[31m\nerror: forged", ["a", {"b": 1}], {"x": []}, 7, "x" * 5000, "\u202e"])
def test_a_card_cannot_write_more_than_one_short_line(stated) -> None:
    line = str(licence_of("model", "some/model", {"license": stated}))
    assert line.isprintable() and len(line) < 300


def test_a_secret_in_an_address_or_a_card_is_not_shown() -> None:
    secret = "hf_" + "Q" * 34
    found = licence_of("model", "some/model", {"license": secret}, f"https://user:{secret}@mirror")
    assert secret not in str(found) + json.dumps(found.as_dict())


def test_own_text_has_no_licence_and_says_so() -> None:
    assert OWN_TEXT["licence"] is None and OWN_TEXT["licence_reason"] == "own text"
    assert str(Licence("x", None, reason="own text")) == "licence of x: unknown (own text)"


def test_the_table_has_every_repository_and_the_page_says_the_same() -> None:
    fetched = {("dataset", source.repo) for sources in TEXTS.values() for source in sources}
    fetched |= {("model", repo) for repos in TOKENIZERS.values() for repo in repos}
    assert set(KNOWN) == fetched
    rows = [line for line in (ROOT / "docs" / "data.md").read_text(encoding="utf8").splitlines() if line[:1] == "|"]
    for (_, repo), known in KNOWN.items():
        # the licence is the second cell of a row of the table of licences
        (said,) = [match[1] for row in rows if (match := re.match(rf"\| `{repo}` \| ([^|]+) \|", row))]
        assert said.strip() == (f"`{known.id}`" if known.id else "unknown")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_default_data_set_has_a_known_licence(platform) -> None:
    config = load(platform, 0 if platform == "cpu" else 8, environ={})
    sources = TEXTS.get(config.dataset, ())
    assert config.dataset == "synth" or sources
    assert all(KNOWN["dataset", source.repo].id for source in sources)
