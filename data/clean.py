"""Clean text files into one JSONL file of documents, and count the records that each rule dropped or changed.

IN is a file, a folder or a glob; data/reading/records.py describes the formats. The rules of each level, in order:

    none    no rule: every record is a document unchanged, including empty ones
    light   remove control characters; drop documents without text and exact copies of earlier ones
    full    light, with ftfy before it (wrong encodings, HTML entities) and Unicode's normal form C after it

With --front-matter, used for BookCorpus, light and full also remove lines with an ISBN or a copyright notice.
--group-rows joins N rows into one document; BookCorpus needs it because its rows are sentences. docs/data.md gives
the reasons, and the setting that trains on the same documents as Megatron's own tools.
The same input always gives the same bytes. Memory holds one record, and about 20 bytes per document to detect copies.

Usage:   python -m data.clean IN [IN ...] --output OUT.jsonl [--clean light|none|full] [--group-rows N] [OPTION ...]
Reads:   IN
Writes:  OUT.jsonl, whole or not at all; the counts as JSON on stdout
Exits:   0 success; 1 bad record or failed work; 2 bad arguments; 130 interrupted; 143 terminated
Example: python -m data.clean books --output books.jsonl --clean full
"""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter

from data.command_lines import CLEAN

if __name__ == "__main__":
    CLEAN.parse_first()

from data.cleaning.documents import clean, described, level, write_documents
from data.reading.records import Dropped, records
from data.reading.sources import find, require_each_once
from data.reading.unchanged import progress_bar, record_of
from utils import redact
from utils.arguments import refusing, run
from utils.errors import DataError, UnusableError
from utils.own_files import require_apart


@refusing((UnusableError,), (OSError, DataError), interrupted="; nothing was written")
def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = CLEAN.parse_args(arguments)
    counts: Counter[str] = Counter()
    sample: list[Dropped] = []
    rules = level(
        options.clean,
        is_bookcorpus=options.front_matter,
        group_rows=options.group_rows,
        min_characters=options.min_chars,
        max_characters=options.max_chars,
    )
    # SIGTERM ends the run like an error: no file is left half-written
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def show(dropped: Dropped) -> None:
        # counted under its reason if it could not be read, and else as dropped
        if counts[dropped.reason] + counts[f"dropped: {dropped.reason}"] <= options.show_dropped:
            sample.append(dropped)

    paths = []
    for source in options.input:
        paths += find(source)
    require_each_once(paths)
    require_apart([options.output, record_of(options.output)], paths)
    title = f"clean {paths[0].name}"
    if len(paths) > 1:
        title += f" and {len(paths) - 1} more"
    with progress_bar(title, sum(path.stat().st_size for path in paths), "B") as bar:
        read = records(
            paths,
            options.column,
            text_unit=options.text_unit,
            on_bad=options.on_bad,
            counts=counts,
            dropped=show,
            progress=bar.update,
        )
        write_documents(clean(read, rules, counts, show), options.output)
    for where, reason, excerpt in sample:
        print(redact.text(f"{where}: {reason}: {excerpt!r}"), file=sys.stderr)
    print(json.dumps(described(rules, counts), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
