"""Licence of each data set and tokenizer that is fetched: as its card on the hub states it, else as KNOWN has it.

The hub's statement is recorded. Where the table differs from it, both are. A licence that neither knows is None, with
the reason. This is a record of what publishers state, not legal advice: a publisher can be wrong about the rights in
what it publishes, which `asks` says where it is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data.hub.hub_errors import page, scrubbed

READ_FROM_THE_HUB = "read from the hub"
UNKNOWN = "unknown"
"""Identifier of the hub for a licence that nobody knows."""
LOOKED_UP = "2026-11-22"
"""Date of the look-ups in KNOWN, in stored copies of the pages of the repositories."""
LONGEST_ID = 80
HUB = "https://huggingface.co"


@dataclass(frozen=True)
class Known:
    """A licence in the table."""

    id: str | None
    """As the card states it; None = unknown, for `note` as the reason."""
    note: str | None = None
    """What holds beside the licence."""


_BOOKS = "the books are under their authors' copyright; the card of bookcorpus/bookcorpus states the licence unknown"
KNOWN: dict[tuple[str, str], Known] = {
    ("dataset", "allenai/c4"): Known(
        "odc-by", "Common Crawl's terms of use hold too (https://commoncrawl.org/terms-of-use)"
    ),
    ("dataset", "SamuelYang/bookcorpus"): Known(None, f"no card and an empty LICENSE; {_BOOKS}"),
    ("dataset", "rojagtap/bookcorpus"): Known(None, f"the copy's card says mit, but {_BOOKS}"),
    ("model", "meta-llama/Llama-3.1-8B"): Known("llama3.1"),
    ("model", "unsloth/Meta-Llama-3.1-8B"): Known("llama3.1"),
    ("model", "NousResearch/Meta-Llama-3.1-8B"): Known("llama3.1"),
    ("model", "Qwen/Qwen2.5-7B"): Known("apache-2.0"),
    ("model", "Qwen/Qwen3-8B-Base"): Known("apache-2.0"),
    ("model", "Qwen/Qwen3-30B-A3B-Base"): Known("apache-2.0"),
    ("model", "mistralai/Mistral-7B-v0.1"): Known("apache-2.0"),
    ("model", "unsloth/mistral-7b"): Known("apache-2.0"),
}
"""Licences by kind and name of the repositories that the suite fetches by itself."""
ATTRIBUTION_ONLY = (
    "apache-2.0",
    "mit",
    "bsd",
    "bsd-2-clause",
    "bsd-3-clause",
    "isc",
    "odc-by",
    "cc-by-3.0",
    "cc-by-4.0",
    "cc0-1.0",
    "pddl",
    "unlicense",
    "wtfpl",
    "zlib",
)
"""Identifiers of the hub for licences that ask for no more than keeping a notice."""
ASKS = {
    # https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/LICENSE, sections 1.b and 2
    "llama3.1": "Meta's community licence: its use policy; who distributes passes it on with a notice and shows "
    "'Built with Llama'; a licence of your own above 700 million monthly users",
}
"""What a licence asks for beyond attribution."""
READ_ITS_TERMS = "read its terms"
GATED = "gated: its owner grants access"


@dataclass(frozen=True)
class Licence:
    """Licence of one data set or tokenizer, and the source of the statement."""

    name: str
    """Repository; empty for what no repository licenses."""
    id: str | None
    """Identifier as the source states it; None = unknown."""
    source: str | None = None
    """Address of the statement."""
    looked_up: str | None = None
    """READ_FROM_THE_HUB, or the date of the look-up as YYYY-MM-DD."""
    reason: str | None = None
    """Why the licence is unknown."""
    asks: str | None = None
    """What is asked for beyond attribution."""
    differs: str | None = None
    """What the other source states, where the hub and the table differ."""

    def as_dict(self) -> dict[str, Any]:
        """Return the keys for `source` or `tokenizer_source` of a manifest."""
        keys = {"licence": self.id, "licence_source": self.source, "licence_looked_up": self.looked_up}
        if self.reason:
            keys["licence_reason"] = self.reason
        if self.asks:
            keys["licence_asks"] = self.asks
        if self.differs:
            keys["licence_differs"] = self.differs
        return keys

    def __str__(self) -> str:
        """Return one line: name, licence, source address, and what it asks."""
        licence = self.id or f"unknown ({self.reason})"
        parts = [f"licence of {self.name}: {licence}", str(self.source)]
        if self.looked_up == READ_FROM_THE_HUB:
            parts.append(READ_FROM_THE_HUB)
        elif self.looked_up:
            parts.append(f"looked up {self.looked_up}")
        if self.differs:
            parts.append(self.differs)
        if self.asks:
            parts.append(f"asks: {self.asks}")
        return "; ".join(parts)


def without_licence(reason: str) -> dict[str, Any]:
    """Return the keys of a manifest for what no repository licenses, such as a user's own text."""
    return Licence("", None, reason=reason).as_dict()


OWN_TEXT = without_licence("own text")
OWN_TOKENIZER = without_licence("own tokenizer")
GENERATED = without_licence("generated by this suite")


def licence_of(
    kind: str, repo: str, card: Mapping[str, Any] | None, endpoint: str = HUB, *, is_gated: bool = False
) -> Licence:
    """Return the licence of a repository; `card` is the metadata of its card, None if it could not be read."""
    known = KNOWN.get((kind, repo))
    stated = None if card is None else _stated(card)
    if known is not None and (card is None or (stated is None and known.id is not None)):
        # the hub does not tell it, so the table counts
        licence = known.id
        looked_up: str | None = LOOKED_UP
        site = HUB
    else:
        licence = None if stated == UNKNOWN else stated
        looked_up = None if card is None else READ_FROM_THE_HUB
        site = endpoint
    asks = _asks(licence, card or {})
    if known is not None and known.id and known.note:
        asks.append(known.note)
    if is_gated:
        asks.append(GATED)
    return Licence(
        name=repo,
        id=licence,
        source=scrubbed(page(kind, repo, site)),
        looked_up=looked_up,
        reason=_why_unknown(known, card, stated) if licence is None else None,
        asks="; ".join(asks),
        differs=None if known is None or card is None else _difference(known, stated),
    )


def _stated(card: Mapping[str, Any]) -> str | None:
    """Return the licence that a card states; a card may state several."""
    licence = card.get("license")
    if isinstance(licence, list):
        licence = ", ".join(str(name) for name in licence)
    return _line(licence)


def _line(value: object) -> str | None:
    """Return what a card states as one short line, whatever its author has written there."""
    printable = "".join(character if character.isprintable() else " " for character in str(value or ""))
    if printable.strip() in ("", "-"):
        return None
    return scrubbed(printable)[:LONGEST_ID]


def _asks(licence: str | None, card: Mapping[str, Any]) -> list[str]:
    """Return what a licence asks for beyond attribution."""
    if licence is None:
        return ["find out whether you may use it"]
    if licence in ASKS:
        return [ASKS[licence]]
    if licence in ATTRIBUTION_ONLY:
        return []
    terms = []
    if licence == "other":
        # the hub's word for a licence of the publisher's own
        terms = [_line(card.get("license_name")), _line(card.get("license_link"))]
    named = ", ".join(term for term in terms if term)
    return [f"{READ_ITS_TERMS}: {named}" if named else READ_ITS_TERMS]


def _why_unknown(known: Known | None, card: Mapping[str, Any] | None, stated: str | None) -> str:
    if known is not None and known.note and not known.id:
        return known.note
    if card is None:
        return "its card could not be read, and it is not in the suite's table"
    return f"its card says {stated}" if stated else "its card states none"


def _difference(known: Known, stated: str | None) -> str | None:
    """Return what the source that was not taken states, if card and table differ."""
    if stated == known.id or (known.id is None and stated == UNKNOWN):
        return None
    if stated is None:
        return "its card on the hub states none"
    licence = known.id or f"unknown, {known.note}"
    return f"the suite's table ({LOOKED_UP}) differs: {licence}"
