"""Cleaning of a stream of records into documents, with counts of the records that each rule dropped or changed.

Memory holds one record, and about 20 bytes per document to detect copies.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson

from data.reading.records import Dropped, Record
from data.reading.unchanged import text_written_whole
from utils.errors import DataError


@dataclass(frozen=True)
class CleanRules:
    """Rules to apply; `level` builds them. docs/data.md gives the reason of each rule."""

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


LEVELS = {
    "light": CleanRules(controls=True, duplicates=True, min_characters=1),
    "none": CleanRules(),
    "full": CleanRules(ftfy=True, nfc=True, controls=True, duplicates=True, min_characters=1),
}


def level(
    name: str,
    *,
    is_bookcorpus: bool = False,
    group_rows: int = 1,
    min_characters: int | None = None,
    max_characters: int | None = None,
) -> CleanRules:
    """Return the rules of `none`, `light` or `full`; without `min_characters`, only `none` keeps empty documents."""
    rules = replace(LEVELS[name], max_characters=max_characters, group_rows=group_rows)
    if is_bookcorpus and name != "none":
        rules = replace(rules, front_matter=True)
    if min_characters is not None:
        rules = replace(rules, min_characters=min_characters)
    return rules


def described(rules: CleanRules, counts: Counter[str]) -> dict[str, Any]:
    """Return rules and counts for the manifest, with the versions of ftfy and Unicode if they were applied."""
    versions = {}
    if rules.ftfy:
        versions["ftfy"] = metadata.version("ftfy")
    if rules.nfc:
        versions["unicode"] = unicodedata.unidata_version
    return {"rules": asdict(rules), "counts": dict(sorted(counts.items())), "versions": versions}


EXCERPT_CHARACTERS = 200


def clean(
    records: Iterable[Record],
    rules: CleanRules,
    counts: Counter[str],
    dropped: Callable[[Dropped], object] = lambda _: None,
) -> Iterator[str]:
    """Yield the text of each document that no rule drops, in the order of the records.

    `counts` always has the current numbers of `records` read and `documents` yielded, and of each `dropped: <reason>`
    and `changed: <rule>`. A dropped record is passed to `dropped` after it was counted.
    """

    def drop(record: Record, reason: str) -> None:
        counts[f"dropped: {reason}"] += 1
        dropped(Dropped(record.where, reason, record.text[:EXCERPT_CHARACTERS]))

    seen = DigestSet() if rules.duplicates else None
    for document in _grouped(_rows(records, rules, counts, drop), rules.group_rows, drop):
        reason = _why_dropped(document.text, rules, seen)
        if reason is None:
            counts["documents"] += 1
            yield document.text
        else:
            drop(document, reason)


def write_documents(texts: Iterable[str], path: Path) -> None:
    """Write a JSONL file of `{"text": ...}` in UTF-8, whole or not at all.

    Raises DataError if there is no document, and ForeignFileError as `text_written_whole`.
    """
    with text_written_whole(path) as temporary, temporary.open("wb") as file:
        for text in texts:
            file.write(orjson.dumps({"text": text}, option=orjson.OPT_APPEND_NEWLINE))
        if not file.tell():
            raise DataError(f"{path}: no document is left to write; see --show-dropped, or name other files")


def _rows(
    records: Iterable[Record], rules: CleanRules, counts: Counter[str], drop: Callable[[Record, str], None]
) -> Iterator[Record]:
    """Apply the rules that depend on a single row."""
    steps: list[tuple[str, Callable[[str], str | None]]] = []
    if rules.ftfy:
        steps.append(("ftfy", repaired))
    if rules.front_matter:
        steps.append(("front matter", without_front_matter))
    if rules.controls:
        steps.append(("control characters", without_controls))
    # last, because a removed character can bring two others together
    if rules.nfc:
        steps.append(("NFC", composed))
    for record in records:
        counts["records"] += 1
        text = record.text
        for name, step in steps:
            changed = step(text)
            if changed is None:
                drop(record, name)
                break
            if changed != text:
                counts[f"changed: {name}"] += 1
                text = changed
        else:
            yield Record(record.where, text)


def _grouped(rows: Iterator[Record], size: int, drop: Callable[[Record, str], None]) -> Iterator[Record]:
    """Join every `size` rows that contain text by a space; a document has the place of its first row."""
    if size == 1:
        yield from rows
        return
    where = ""
    group: list[str] = []
    for row in rows:
        text = row.text.strip()
        if not text:
            drop(row, "empty row")
            continue
        if not group:
            where = row.where
        group.append(text)
        if len(group) == size:
            yield Record(where, " ".join(group))
            group.clear()
    # the last rows may be fewer
    if group:
        yield Record(where, " ".join(group))


def _why_dropped(text: str, rules: CleanRules, seen: DigestSet | None) -> str | None:
    if rules.min_characters and len(text.strip()) < rules.min_characters:
        return "too short"
    if rules.max_characters is not None and len(text) > rules.max_characters:
        return "too long"
    if seen is not None and seen.add(text.encode("utf8")):
        return "duplicate"
    return None


_ASCII_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r")) + b"\x7f"
_C1_LEAD_BYTE = b"\xc2"
"""First byte of U+0080 to U+009F in UTF-8, and also of some letters and signs."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_PARTING_LINES = "\v\f\x85"
_FRONT_MATTER = re.compile(
    r"\bisbn(?![a-z])|\ball rights reserved\b|\u00a9|\bcopyright(?:ed)?[^a-z0-9]*(?:\(\s*c\s*\)|\d{4}\b|by\b)",
    re.IGNORECASE,
)


def without_controls(text: str) -> str:
    """Remove control characters except tab, line feed and carriage return; other line separators become line feeds.

    Control characters are U+0000 to U+001F, U+007F and U+0080 to U+009F (category Cc); the other line separators among
    them are vertical tab, form feed and U+0085.
    """
    encoded = text.encode("utf8")
    # bytes.translate is Python's fastest search for any of several characters
    if len(encoded.translate(None, _ASCII_CONTROLS)) == len(encoded) and _C1_LEAD_BYTE not in encoded:
        return text
    return _CONTROLS.sub(lambda match: "\n" if match[0] in _PARTING_LINES else "", text)


def composed(text: str) -> str:
    """Return the text in Unicode's normal form C, by the tables of this Python (`unicodedata.unidata_version`)."""
    # ASCII is composed already, and most texts have nothing else
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def repaired(text: str) -> str:
    """Return the text as ftfy repairs it: wrong encodings, HTML entities where there is no `<`, terminal escapes.

    Quotes, ligatures, widths, line ends and normal form stay as they are.
    """
    if text.isascii() and "&" not in text and "\x1b" not in text:
        # ftfy changes nothing here, with the settings below, and takes long to find out
        return text
    fix, config = _ftfy()
    return str(fix(text, config))


def without_front_matter(text: str) -> str | None:
    """Remove the imprint lines of a book; return None if a text had some and only white space is left.

    An imprint line contains an ISBN, the copyright sign, a copyright notice (the word before a year, `by` or `(c)`) or
    "all rights reserved". The word copyright alone is not enough: it occurs in many novels.
    """
    lowered = text.lower()
    # spelled out: this runs on every row, and a loop takes four times as long
    if not ("isbn" in lowered or "copyright" in lowered or "all rights reserved" in lowered or "\u00a9" in lowered):
        return text
    kept = "\n".join(line for line in text.split("\n") if not _FRONT_MATTER.search(line))
    if kept == text or kept.strip():
        return kept
    return None


@cache
def _ftfy() -> tuple[Any, Any]:
    # imported on use: the import takes a moment, and only the level full needs it
    import ftfy

    return ftfy.fix_text, ftfy.TextFixerConfig(
        unescape_html="auto",
        uncurl_quotes=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        fix_line_breaks=False,
        remove_control_chars=False,
        normalization=None,
        explain=False,
    )


class DigestSet:
    """A set of texts, stored as 128 bits of their BLAKE2b hash.

    The probability that any two of 10^9 different texts share a hash is about 1 in 10^21. The hashes are stored in one
    byte array per value of their first two bytes, so a text takes 14 bytes and the slack of a growing array. Measured:
    26 bytes per text at one million texts, 19 at eight million, where a Python set takes 98. Adding a text takes 1.5
    microseconds at one million texts and 2.7 at eight million.
    """

    def __init__(self) -> None:
        self._buckets: list[bytearray | None] = [None] * (1 << 8 * _PREFIX_BYTES)

    def add(self, text: bytes) -> bool:
        """Add a text; return True if the set contained it already."""
        digest = hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()
        number = int.from_bytes(digest[:_PREFIX_BYTES], "little")
        suffix = digest[_PREFIX_BYTES:]
        bucket = self._buckets[number]
        if bucket is None:
            # made on use: most of the 65,536 stay unused for a short text
            bucket = self._buckets[number] = bytearray()
        place = bucket.find(suffix)
        # a match across the border of two hashes is none
        while place >= 0 and place % _SUFFIX_BYTES:
            place = bucket.find(suffix, place + 1)
        if place >= 0:
            return True
        bucket += suffix
        return False


_DIGEST_BYTES = 16
_PREFIX_BYTES = 2
_SUFFIX_BYTES = _DIGEST_BYTES - _PREFIX_BYTES
