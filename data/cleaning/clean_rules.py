"""Rules of cleaning: the levels none, light and full, and the rules of single settings."""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from utils.settings.config import RunConfig

LEVELS = ("light", "none", "full")


@dataclass(frozen=True)
class CleanRules:
    """Rules to apply; `rules_of` builds them from settings. docs/cleaning.md gives the reason of each rule."""

    ftfy: bool = False
    """Repair text that was decoded with the wrong encoding, and HTML entities."""
    nfc: bool = False
    """Compose characters: Unicode's normal form C."""
    controls: bool = False
    """Remove control characters."""
    front_matter: bool = False
    """Remove lines with an ISBN, a copyright notice, "all rights reserved"."""
    duplicates: bool = False
    """Drop a document whose text occurred before."""
    min_characters: int = 0
    """Drop a shorter document; surrounding white space does not count."""
    max_characters: int | None = None
    """Drop a longer document."""
    group_rows: int = 1
    """Number of rows joined by a space to one document, before lengths and duplicates are checked."""


def rules_of(config: RunConfig) -> CleanRules:
    """Return the rules of the settings CLEAN, GROUP_ROWS, MIN_CHARS and MAX_CHARS."""
    return level(
        config.clean,
        is_bookcorpus=config.dataset == "bc",
        group_rows=config.group_rows,
        min_characters=config.min_characters,
        max_characters=config.max_characters,
    )


def level(
    name: str,
    *,
    is_bookcorpus: bool = False,
    group_rows: int = 1,
    min_characters: int | None = None,
    max_characters: int | None = None,
) -> CleanRules:
    """Return the rules of `none`, `light` or `full`; without `min_characters`, only `none` keeps empty documents."""
    is_cleaned = name != "none"
    return CleanRules(
        ftfy=name == "full",
        nfc=name == "full",
        controls=is_cleaned,
        front_matter=is_cleaned and is_bookcorpus,
        duplicates=is_cleaned,
        min_characters=int(is_cleaned) if min_characters is None else min_characters,
        max_characters=max_characters,
        group_rows=group_rows,
    )


def described(rules: CleanRules, counts: Counter[str]) -> dict[str, Any]:
    """Return rules and counts for the manifest, with the versions of ftfy and Unicode if they were applied."""
    versions = {"ftfy": metadata.version("ftfy")} if rules.ftfy else {}
    versions |= {"unicode": unicodedata.unidata_version} if rules.nfc else {}
    return {"rules": asdict(rules), "counts": dict(sorted(counts.items())), "versions": versions}
