"""Show the results of many days side by side, and what got slower with which change.

Usage:   ./shell/history.sh FOLDER|ZIP ... [OPTION ...]   options: python -m evaluate.history --help
Reads:   train_*.json (and benchmark_*.json of earlier formats) below the folders; output.zip of shell/wrap.sh
Writes:  history.{html,json} into the folder of --output (default: the input if it is one folder, else history/)
Exits:   0 no series got slower beyond the band; 3 one did; 1 no result can be used, or an output cannot be written;
         2 bad input, or no result found
Example: ./shell/history.sh nightly/* --output nightly-history

Sorts the results into series of comparable runs and finds changes of level of speed, MFU, memory and loss. Archives are
checked first. Exit codes: see EXIT_CODES.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from evaluate.bundle import as_input
from evaluate.comparing.arguments import band, names_of
from evaluate.report import renderers, tables
from evaluate.timeline import blocks, content, history
from evaluate.timeline.history import CHANGED, MORE, SLOWER, History
from evaluate.timeline.series import JOINABLE
from evaluate.verdict.inference import BAND
from utils import redact
from utils.arguments import Parser, refusing, run
from utils.errors import ForeignFileError
from utils.files import MODE, written_whole
from utils.own_files import require_ours
from utils.results import store
from utils.results.schema import time_of

EXIT_CODES = (
    "Exit codes: 0 no series got slower beyond the band; 3 one did (or what --fail-on names); 1 no result can be used, "
    "or an output cannot be written; 2 bad input, or no result found."
)
REGRESSION = 3
OUTPUT = Path("history")
"""Folder of the report on inputs of several places, and on archives: none of the inputs is changed."""
FAILURES = {"slower": SLOWER, "memory": MORE, "loss": CHANGED}
"""Names of --fail-on, and the word of a track that it means."""


@refusing((store.ResultError, ForeignFileError))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = Parser(
        OPTIONS,
        prog="python -m evaluate.history",
        description="Show the results of many days side by side, and what got slower with which change.",
        epilog=EXIT_CODES,
    )
    options = parser.parse_args(arguments)
    # an input that is one folder holds its report; archives and folders of several places are not changed
    is_folder = len(options.places) == 1 and options.places[0].is_dir()
    output: Path = options.output or (options.places[0] if is_folder else OUTPUT)
    store.require_folder(output)
    for name, is_ours in content.RECOGNISERS.items():
        require_ours(is_ours, output / name)
    loaded = as_input.load(options.places)
    found = history.build(loaded, options.places, options.band, options.join, options.since)
    if found.stories:
        try:
            write(found, output)
        except (OSError, ForeignFileError, store.ResultError) as error:
            return tables.not_written(output, error, "; name another with --output")
    print(tables.shown_on(sys.stdout, renderers.terminal(blocks.blocks(found), renderers.terminal_width())))
    if not found.stories:
        after = f" that started after {found.since:%Y-%m-%d %H:%M} UTC" if found.since else ""
        print(f"error: no result{after} is ok, valid and has a start time; see the reasons above", file=sys.stderr)
        return 1
    print(f"wrote {', '.join(tables.plain(output / name) for name in content.RECOGNISERS)}", file=sys.stderr)
    words = {track.word for story in found.stories for track in story.tracks}
    return REGRESSION if words & {FAILURES[name] for name in options.fail_on} else 0


def write(found: History, folder: Path) -> None:
    """Write history.html and history.json into `folder`, both or none.

    Raises ForeignFileError for a file that this command did not write, OSError if a file cannot be written, and
    ResultError for a value that JSON cannot hold.
    """
    from evaluate.page.page import page  # which loads matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in content.RECOGNISERS]
    with written_whole(*paths, is_ours=lambda path: content.RECOGNISERS[path.name](path)) as temporaries:
        texts = (
            redact.text(page(content.TITLE, blocks.blocks(found))),
            store.json_text(content.as_json(found), paths[1]),
        )
        for temporary, text in zip(temporaries, texts, strict=True):
            temporary.write_text(text, encoding="utf8")
            temporary.chmod(MODE)


def _since(text: str) -> datetime:
    try:
        return time_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"got {text}, wanted a UTC date or time, e.g. 2026-11-01") from error


OPTIONS: dict[str, dict[str, Any]] = {
    "places": {
        "nargs": "+",
        "type": Path,
        "metavar": "FOLDER|ZIP",
        "help": "folders to search for results, output.zip of shell/wrap.sh, or single result files, in any order",
    },
    "--output": {
        "type": Path,
        "metavar": "DIR",
        "help": f"folder for history.{{html,json}} (default: the input if it is one folder, else {OUTPUT}/)",
    },
    "--band": {
        "type": band,
        "default": BAND,
        "metavar": "SHARE",
        "help": "largest relative difference in speed and memory that counts as none, from 0 to below 1 "
        "(default: %(default)s)",
    },
    "--since": {
        "type": _since,
        "metavar": "TIME",
        "help": "leave out runs that started before this UTC date or time, e.g. 2026-11-01: for a change that is "
        "accepted (default: none)",
    },
    "--join": {
        "type": names_of(JOINABLE),
        "default": (),
        "metavar": "NAMES",
        "help": f"any of {','.join(JOINABLE)}: runs that differ in it share a series, e.g. on a cluster that gives "
        "another node each day (default: none)",
    },
    "--fail-on": {
        "type": names_of(tuple(FAILURES)),
        "default": ("slower",),
        "metavar": "NAMES",
        "help": f"what makes exit code 3, any of {','.join(FAILURES)} (default: slower)",
    },
}
"""Options with the arguments of their `add_argument`."""


if __name__ == "__main__":
    sys.exit(run(main))
