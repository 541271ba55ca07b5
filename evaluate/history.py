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

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluate.command_lines import FAILURES, HISTORY, HISTORY_FOLDER

if __name__ == "__main__":
    HISTORY.parse_first()

from evaluate.bundle import as_input
from evaluate.inputs.discover import require_folder
from evaluate.report import renderers, tables
from evaluate.report.groups import run_label
from evaluate.report.renderers import html_titled
from evaluate.timeline import blocks, history
from evaluate.timeline.blocks import DEFINITIONS
from evaluate.timeline.history import CHANGED, MORE, SLOWER, UNITS, Change, History, Story, Track
from evaluate.timeline.series import LOOP, LOSS, MEMORY, SPEED, Run, by_version
from evaluate.timeline.states import Differing
from utils import redact
from utils.arguments import VERSION, refusing, run
from utils.errors import ForeignFileError
from utils.files import MODE, written_whole
from utils.own_files import Recogniser, json_with, require_ours
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
    require_folder(output)
    for name, is_ours in RECOGNISERS.items():
        require_ours(is_ours, output / name)
    loaded = as_input.load(options.places)
    record = history.build(loaded, options.places, options.band, options.join, options.since)
    if record.stories:
        try:
            write(record, output)
        except (OSError, ForeignFileError, store.ResultError) as error:
            return tables.not_written(output, error, "; name another with --output")
    print(tables.shown_on(sys.stdout, renderers.terminal(blocks.blocks(record), renderers.terminal_width())))
    if not record.stories:
        after = f" that started after {record.since:%Y-%m-%d %H:%M} UTC" if record.since else ""
        print(f"error: no result{after} is ok, valid and has a start time; see the reasons above", file=sys.stderr)
        return 1
    print(f"wrote {', '.join(tables.plain(output / name) for name in RECOGNISERS)}", file=sys.stderr)
    words = {track.word for story in record.stories for track in story.tracks}
    # every track counts: memory and loss only if the option names them
    fails = any(WORDS[name] in words for name in options.fail_on)
    return REGRESSION if fails else 0


def write(record: History, folder: Path) -> None:
    """Write history.html and history.json into `folder`, both or none.

    Raises ForeignFileError for a file that this command did not write, OSError if a file cannot be written, and
    ResultError for a value that JSON cannot hold.
    """
    # which loads matplotlib
    from evaluate.report.page import page

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in RECOGNISERS]
    with written_whole(*paths, is_ours=lambda path: RECOGNISERS[path.name](path)) as temporaries:
        texts = (
            redact.text(page(TITLE, blocks.blocks(record))),
            store.json_text(as_json(record), paths[1]),
        )
        for temporary, text in zip(temporaries, texts, strict=True):
            temporary.write_text(text, encoding="utf8")
            temporary.chmod(MODE)


# The content of history.json: every number of the report, with the formula and the source of each kind.

HISTORY_VERSION = 1
TITLE = "History of training runs"
"""Title of every history.html."""
RECOGNISERS: Mapping[str, Recogniser] = {
    "history.html": html_titled(TITLE),
    "history.json": json_with("history_version", "series"),
}
"""Recogniser of each file by its name: only a file that it recognises is replaced."""


def as_json(history: History) -> dict[str, Any]:
    """Return the content of history.json."""
    return {
        "history_version": HISTORY_VERSION,
        "suite_version": VERSION,
        "headline": blocks.headline(history),
        "band": history.band,
        "since_utc": history.since.isoformat() if history.since else None,
        "join": list(history.join),
        "definitions": DEFINITIONS,
        "places": [str(place) for place in history.places],
        "series": [_story(story) for story in history.stories],
        "not_in_a_series": [
            {
                "file": str(entry.path),
                "run": run_label(entry.result),
                "status": entry.result["status"],
                "started_utc": entry.result["provenance"]["started_utc"],
                "reason": reason,
            }
            for entry, reason in history.left_out
        ],
        "copies": [{"file": str(copy), "same_as": str(first)} for copy, first in history.copies],
        "unreadable": [{"file": str(path), "reason": error} for path, error in history.unreadable],
    }


def _story(story: Story) -> dict[str, Any]:
    version_changes = []
    for after, differing in story.version_changes:
        place = {"started_utc": _time(after), "file": str(after.entry.path)}
        version_changes.append(place | {"differing": _each(differing)})
    return {
        "name": story.series.name,
        "verdict": story.word,
        "sentence": blocks.sentence(story),
        "details": blocks.details(story),
        "key": dict(story.series.key),
        "days": len({run.started.date() for run in story.series.runs}),
        "runs": [_run(run) for run in story.series.runs],
        "by_version": [figures for _, _, figures in by_version(story.series.runs)],
        "tracks": [_track(track) for track in story.tracks],
        "version_changes": version_changes,
    }


def _run(run: Run) -> dict[str, Any]:
    result = run.entry.result
    return {
        "file": str(run.entry.path),
        "run": result["run"],
        "attempt": result["attempt"],
        "started_utc": _time(run),
        "seed": run.seed,
        SPEED: run.values[SPEED],
        LOOP: run.values[LOOP],
        "mfu_percent": run.mfu.value,
        "mfu_how": run.mfu.how,
        MEMORY: run.values[MEMORY],
        LOSS: run.values[LOSS],
        "framework_versions": result["provenance"]["framework_versions"],
        "warnings": list(run.entry.findings.warnings),
    }


def _track(track: Track) -> dict[str, Any]:
    levels = []
    for level in track.levels.found:
        first, last = track.blocks[level.first][0], track.blocks[level.last][-1]
        value = math.exp(level.value)
        levels.append({"value": value, "runs": level.runs, "first_utc": _time(first), "last_utc": _time(last)})
    odd = []
    for place in track.levels.odd:
        block = track.blocks[place]
        odd.append({"first_utc": _time(block[0]), "files": [str(run.entry.path) for run in block]})
    content: dict[str, Any] = {"quantity": track.quantity, "unit": UNITS[track.quantity]}
    if track.quantity == LOSS:
        content["seed"] = track.seed
    return content | {
        "band": track.band,
        "word": track.word,
        "resolution": track.levels.resolution,
        "levels": levels,
        "changes": [_change(change) for change in track.changes],
        "latest": _change(track.latest) if track.latest else None,
        "odd": odd,
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "since_utc": _time(change.first_after),
        "until_utc": _time(change.last_before),
        "before": math.exp(change.before.value),
        "after": math.exp(change.after.value),
        "ratio": change.ratio,
        "interval": list(change.interval) if change.interval else None,
        "p_value": change.difference.p_value,
        "runs": [change.before.runs, change.after.runs],
        "changed_with_it": _each(change.differing),
    }


def _each(differing: Sequence[Differing]) -> list[dict[str, Any]]:
    return [vars(difference) for difference in differing]


def _time(run: Run) -> str:
    return run.started.isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(run(main))
