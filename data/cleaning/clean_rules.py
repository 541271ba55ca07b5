"""Which rules text is cleaned by: the levels none, light and full, and what else the settings ask for."""

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
    """What is done; `rules_of` makes it from settings, docs/cleaning.md says why each rule exists."""

    ftfy: bool = False
    """Repair text that was decoded with the wrong encoding, and HTML entities."""
    nfc: bool = False
    """Compose characters: Unicode's normal form C."""
    controls: bool = False
    """Remove control characters."""
    front_matter: bool = False
    """Remove lines with an ISBN, a copyright notice, "all rights reserved"."""
    duplicates: bool = False
    """Drop a document whose text was there before."""
    min_characters: int = 0
    """Drop a shorter document; white space around it does not count."""
    max_characters: int | None = None
    """Drop a longer one."""
    group_rows: int = 1
    """Rows joined by a space to one document, before lengths and duplicates are looked at."""


def rules_of(config: RunConfig) -> CleanRules:
    """Return the rules that the settings CLEAN, GROUP_ROWS, MIN_CHARS and MAX_CHARS ask for."""
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
    """Return the rules of `none`, `light` or `full`; without `min_characters` empty documents stay with `none` only."""
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
    """Return rules and counts for the manifest, with the versions of what changes text."""
    versions = {"ftfy": metadata.version("ftfy")} if rules.ftfy else {}
    versions |= {"unicode": unicodedata.unidata_version} if rules.nfc else {}
    return {"rules": asdict(rules), "counts": dict(sorted(counts.items())), "versions": versions}
