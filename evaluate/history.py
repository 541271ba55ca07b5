"""Show the results of many days side by side, and what got slower with which change.

Usage:   ./shell/history.sh FOLDER|ZIP ... [OPTION ...]
Reads:   train_*.json (and benchmark_*.json of earlier formats) below the folders; output.zip of shell/wrap.sh
Writes:  history.{html,json} into the folder of --output (default: the input if it is one folder, else history/)
Exits:   0 no series got slower beyond the band; 3 one did (or what --fail-on names); 1 no result can be used, or an
         output cannot be written; 2 bad input, or no result found
Example: ./shell/history.sh nightly/* --output nightly-history

Sorts the results into series of comparable runs and finds changes of level of speed, MFU, memory and loss. Archives are
checked first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from evaluate.command_lines import FAILURES, HISTORY, HISTORY_FOLDER

if __name__ == "__main__":
    HISTORY.parse_first()

from evaluate.bundle import as_input
from evaluate.report import renderers, tables
from evaluate.timeline import blocks, content, history
from evaluate.timeline.history import CHANGED, MORE, SLOWER, History
from utils import redact
from utils.arguments import refusing, run
from utils.errors import ForeignFileError
from utils.files import MODE, written_whole
from utils.own_files import require_ours
from utils.results import store

REGRESSION = 3
WORDS = dict(zip(FAILURES, (SLOWER, MORE, CHANGED), strict=True))
"""Names of --fail-on, and the word of a track that it means."""


@refusing((store.ResultError, ForeignFileError))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = HISTORY.parse_args(arguments)
    # an input that is one folder holds its report; archives and folders of several places are not changed
    is_folder = len(options.places) == 1 and options.places[0].is_dir()
    output: Path = options.output or (options.places[0] if is_folder else HISTORY_FOLDER)
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
    return REGRESSION if words & {WORDS[name] for name in options.fail_on} else 0


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


if __name__ == "__main__":
    sys.exit(run(main))
