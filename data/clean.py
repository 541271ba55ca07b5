"""Clean text files into one JSONL file of documents, and count the records that each rule dropped or changed.

    python -m data.clean IN [IN ...] --output OUT.jsonl [--clean light|none|full] [--group-rows N] [--show-dropped N]

IN is a file, a folder or a glob; data/reading/records.py describes the formats. The rules of each level, in order:

    none    no rule: every record is a document unchanged, including empty ones
    light   remove control characters; drop documents without text and exact copies of earlier ones
    full    light, with ftfy before it (wrong encodings, HTML entities) and Unicode's normal form C after it

With --front-matter, used for BookCorpus, light and full also remove lines with an ISBN or a copyright notice.
--group-rows joins N rows into one document; BookCorpus needs it because its rows are sentences. docs/data.md gives
the reasons, and the setting that trains on the same documents as Megatron's own tools.
The same input always gives the same bytes. Memory holds one record, and about 20 bytes per document to detect copies.

Prints the counts as JSON.
Exit codes: 0 success; 1 bad record or failed work; 2 bad arguments; 130 interrupted; 143 terminated.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

from data.cleaning.documents import LEVELS, clean, described, level, write_documents
from data.reading.progress import progress_bar
from data.reading.records import ON_BAD, TEXT_UNITS, Dropped, records
from data.reading.sources import find, require_each_once
from data.reading.written_text import record_of
from utils import redact
from utils.arguments import Parser, exit_code, first_line, from_one, run
from utils.errors import DataError, UnusableError
from utils.own_files import require_apart

OPTIONS: dict[str, dict[str, Any]] = {
    "input": {"nargs": "+", "type": Path, "metavar": "IN", "help": "file, folder or glob"},
    "--output": {"type": Path, "required": True, "help": "JSONL file to write, whole or not at all"},
    "--column": {"default": "text", "help": "key or column of the text (default: %(default)s)"},
    "--text-unit": {
        "choices": TEXT_UNITS,
        "default": "file",
        "help": "a document of a .txt file (default: %(default)s)",
    },
    "--on-bad": {
        "choices": ON_BAD,
        "default": "error",
        "help": "end at a bad record, or skip it (default: %(default)s)",
    },
    "--clean": {"choices": LEVELS, "default": "light", "help": "level of cleaning (default: %(default)s)"},
    "--front-matter": {
        "action": "store_true",
        "help": "remove lines with an ISBN or a copyright notice, for BookCorpus",
    },
    "--group-rows": {
        "type": from_one,
        "default": 1,
        "help": "number of rows joined to a document (default: %(default)s)",
    },
    "--min-chars": {"type": from_one, "help": "shortest document, in characters (default: 1, with --clean none 0)"},
    "--max-chars": {"type": from_one, "help": "longest document, in characters (default: no limit)"},
    "--show-dropped": {
        "type": from_one,
        "default": 0,
        "help": "dropped records printed per reason (default: %(default)s)",
    },
}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = Parser(
        OPTIONS,
        prog="python -m data.clean",
        description=first_line(__doc__),
        epilog="\n\n".join((__doc__ or "").split("\n\n")[2:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options = parser.parse_args(arguments)
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
        if counts[dropped.reason] <= options.show_dropped:
            sample.append(dropped)

    def work() -> None:
        paths = list(chain.from_iterable(map(find, options.input)))
        require_each_once(paths)
        require_apart([options.output, record_of(options.output)], paths)
        title = f"clean {paths[0].name}" + (f" and {len(paths) - 1} more" if paths[1:] else "")
        with progress_bar(title, sum(path.stat().st_size for path in paths), "B") as bar:
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
        for where, reason, excerpt in sample:
            print(redact.text(f"{where}: {reason}: {excerpt!r}"), file=sys.stderr)
        print(json.dumps(described(rules, counts), indent=1))

    return exit_code(work, (UnusableError,), (DataError,), "; nothing was written")


if __name__ == "__main__":
    sys.exit(run(main))
