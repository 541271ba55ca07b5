"""Clean text: records in, one JSONL file of documents out, and how many records each rule dropped or changed.

    python -m data.clean IN [IN ...] --output OUT.jsonl [--clean light|none|full] [--group-rows N] [--show-dropped N]

An IN is a file, a folder or a glob; data/read.py says what is read. The rules of each level, in their order:

    none    nothing: every record is a document as it is, the empty ones too
    light   control characters are removed; documents without text and exact copies of earlier ones are dropped
    full    light, and before it ftfy (wrong encodings, HTML entities), behind it Unicode's normal form C

For BookCorpus light and full also remove lines of imprint (ISBN, copyright). `--group-rows` joins so many rows into
one document, which BookCorpus needs: its rows are sentences. docs/cleaning.md gives the reasons, and the setting that
trains on the same documents as Megatron's own tools would. The same input gives the same bytes, every time; one record
is in memory at a time, and about 20 bytes for each document, which copies are known by.
Prints the counts as JSON. Exits 0; 1 for bad records and failed work; 2 for bad arguments.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

import orjson
from tqdm import tqdm

from data.duplicates import Seen
from data.files import written_whole
from data.read import ON_BAD, TEXT_UNITS, Dropped, Record, records
from data.rules import LEVELS, CleanRules, described, level, rules_of
from data.sources import find
from data.steps import composed, repaired, without_controls, without_front_matter
from utils.indexed import DataError, UnusableError

__all__ = ["CleanRules", "clean", "described", "level", "rules_of", "write_documents"]

EXCERPT_CHARACTERS = 200
SAMPLE_OF_EACH_REASON = 5
_BAR_DELAY_SECONDS = 2


def clean(
    records: Iterable[Record],
    rules: CleanRules,
    counts: Counter[str],
    sample: list[Dropped] | None = None,
    sample_size: int = SAMPLE_OF_EACH_REASON,
) -> Iterator[str]:
    """Yield the text of each document that is left, in the order of the records.

    `counts` has, at every moment, `records` read, `documents` yielded, `dropped: <reason>` and `changed: <rule>`.
    `sample` gets the first `sample_size` dropped records of each reason.
    """

    def drop(record: Record, reason: str) -> None:
        counts[f"dropped: {reason}"] += 1
        if sample is not None and counts[f"dropped: {reason}"] <= sample_size:
            sample.append(Dropped(record.where, reason, record.text[:EXCERPT_CHARACTERS]))

    seen = Seen() if rules.duplicates else None
    for document in _grouped(_rows(records, rules, counts, drop), rules.group_rows, drop):
        reason = _why_dropped(document.text, rules, seen)
        if reason is None:
            counts["documents"] += 1
            yield document.text
        else:
            drop(document, reason)


def write_documents(texts: Iterable[str], path: Path) -> None:
    """Write a JSONL file of `{"text": ...}` in UTF-8, whole or not at all; raise DataError where there is no text."""
    with written_whole(path) as (temporary,), temporary.open("wb") as file:
        for text in texts:
            file.write(orjson.dumps({"text": text}, option=orjson.OPT_APPEND_NEWLINE))
        if not file.tell():
            raise DataError(f"{path}: no document is left to write; see what was dropped, or name other files")


def _rows(
    records: Iterable[Record], rules: CleanRules, counts: Counter[str], drop: Callable[[Record, str], None]
) -> Iterator[Record]:
    """Apply the rules that look at one row alone."""
    steps: list[tuple[str, Callable[[str], str | None]]] = [
        (name, step)
        for is_on, name, step in (
            (rules.ftfy, "ftfy", repaired),
            (rules.front_matter, "front matter", without_front_matter),
            (rules.controls, "control characters", without_controls),
            (rules.nfc, "NFC", composed),
        )
        if is_on
    ]
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
            yield record if text is record.text else Record(record.where, text)


def _grouped(rows: Iterator[Record], size: int, drop: Callable[[Record, str], None]) -> Iterator[Record]:
    """Join each `size` rows that hold text by a space; a document is where its first row is."""
    if size == 1:
        yield from rows
        return
    where, group = "", list[str]()
    for row in rows:
        text = row.text.strip()
        if not text:
            drop(row, "empty row")
            continue
        where = where if group else row.where
        group.append(text)
        if len(group) == size:
            yield Record(where, " ".join(group))
            group.clear()
    if group:
        yield Record(where, " ".join(group))


def _why_dropped(text: str, rules: CleanRules, seen: Seen | None) -> str | None:
    if rules.min_characters and len(text.strip()) < rules.min_characters:
        return "too short"
    if rules.max_characters is not None and len(text) > rules.max_characters:
        return "too long"
    if seen is not None and seen.add(text.encode("utf8")):
        return "duplicate"
    return None


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = _arguments(arguments)
    counts: Counter[str] = Counter()
    sample: list[Dropped] = []
    rules = level(
        options.clean,
        is_bookcorpus=options.front_matter,
        group_rows=options.group_rows,
        min_characters=options.min_chars,
        max_characters=options.max_chars,
    )
    # an ordinary `kill` ends the run like any error: nothing half-written
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        paths = list(chain.from_iterable(map(find, options.input)))
        _clean_files(paths, options, rules, counts, sample)
    except UnusableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (DataError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; nothing was written", file=sys.stderr)
        return 128 + signal.SIGINT
    for where, reason, excerpt in sample:
        print(f"{where}: {reason}: {excerpt!r}", file=sys.stderr)
    print(json.dumps(described(rules, counts), indent=1))
    return 0


def _clean_files(
    paths: list[Path], options: argparse.Namespace, rules: CleanRules, counts: Counter[str], sample: list[Dropped]
) -> None:
    if options.output.resolve() in {path.resolve() for path in paths}:
        raise UnusableError(f"{options.output}: is one of the inputs; name another output")

    def show(dropped: Dropped) -> None:
        if counts[dropped.reason] <= options.show_dropped:
            sample.append(dropped)

    bar = tqdm(
        desc=f"clean {paths[0].name}" + (f" and {len(paths) - 1} more" if paths[1:] else ""),
        total=sum(path.stat().st_size for path in paths),
        unit="B",
        unit_scale=True,
        delay=_BAR_DELAY_SECONDS,
        disable=None,
    )
    with bar:
        found = records(
            paths,
            options.column,
            text_unit=options.text_unit,
            on_bad=options.on_bad,
            counts=counts,
            dropped=show,
            progress=bar.update,
        )
        write_documents(clean(found, rules, counts, sample, options.show_dropped), options.output)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m data.clean",
        description=__doc__.split("\n\n", 1)[0],
        epilog="\n\n".join(__doc__.split("\n\n")[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("input", nargs="+", type=Path, metavar="IN", help="file, folder or glob")
    parser.add_argument("--output", type=Path, required=True, help="JSONL file to write, whole or not at all")
    parser.add_argument("--column", default="text", help="key or column of the text (default: text)")
    parser.add_argument(
        "--text-unit", choices=TEXT_UNITS, default="file", help="one document of a .txt (default: file)"
    )
    parser.add_argument("--on-bad", choices=ON_BAD, default="error", help="for a bad record (default: error)")
    parser.add_argument("--clean", choices=LEVELS, default="light", help="what is done (default: light)")
    parser.add_argument("--front-matter", action="store_true", help="remove lines of imprint, as for BookCorpus")
    parser.add_argument("--group-rows", type=_positive, default=1, help="rows joined to one document (default: 1)")
    parser.add_argument("--min-chars", type=_positive, help="shortest document (default: 1, with --clean none 0)")
    parser.add_argument("--max-chars", type=_positive, help="longest document (default: no limit)")
    parser.add_argument("--show-dropped", type=_positive, default=0, help="dropped records to print for each reason")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a whole number from 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
