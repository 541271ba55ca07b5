"""The content of history.json: every number of the report, with the formula and the source of each kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from evaluate.report.groups import run_label
from evaluate.report.own_files import html_titled
from evaluate.timeline import blocks
from evaluate.timeline.blocks import DEFINITIONS
from evaluate.timeline.history import UNITS, Change, History, Story, Track
from evaluate.timeline.series import LOSS, MEMORY, SPEED, Run, by_version
from utils.arguments import VERSION
from utils.own_files import Recogniser, json_with

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
    return {
        "name": story.series.name,
        "verdict": story.speed.word,
        "sentence": blocks.sentence(story),
        "details": blocks.details(story),
        "key": dict(story.series.key),
        "days": len({run.started.date() for run in story.series.runs}),
        "runs": [_run(run) for run in story.series.runs],
        "by_version": [figures for _, _, figures in by_version(story.series.runs)],
        "tracks": [_track(track) for track in story.tracks],
        "version_changes": [
            {"started_utc": _time(run), "file": str(run.entry.path), "differing": [vars(one) for one in what]}
            for run, what in story.version_changes
        ],
    }


def _run(run: Run) -> dict[str, Any]:
    return {
        "file": str(run.entry.path),
        "run": run.entry.result["run"],
        "attempt": run.entry.result["attempt"],
        "started_utc": _time(run),
        "seed": run.seed,
        SPEED: run.values[SPEED],
        "mfu_percent": run.mfu.value,
        "mfu_how": run.mfu.how,
        MEMORY: run.values[MEMORY],
        LOSS: run.values[LOSS],
        "framework_versions": run.entry.result["provenance"]["framework_versions"],
        "warnings": list(run.entry.findings.warnings),
    }


def _track(track: Track) -> dict[str, Any]:
    return {
        "quantity": track.quantity,
        "unit": UNITS[track.quantity],
        **({"seed": track.seed} if track.quantity == LOSS else {}),
        "band": track.band,
        "word": track.word,
        "resolution": track.levels.resolution,
        "levels": [
            {
                "value": math.exp(level.value),
                "runs": level.runs,
                "first_utc": _time(track.blocks[level.first][0]),
                "last_utc": _time(track.blocks[level.last][-1]),
            }
            for level in track.levels.found
        ],
        "changes": [_change(change) for change in track.changes],
        "latest": _change(track.latest) if track.latest else None,
        "odd": [
            {"first_utc": _time(block[0]), "files": [str(run.entry.path) for run in block]}
            for block in (track.blocks[place] for place in track.levels.odd)
        ],
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
        "changed_with_it": [vars(one) for one in change.differing],
        "one_step_apart": [vars(one) for one in change.near],
    }


def _time(run: Run) -> str:
    return run.started.isoformat(timespec="seconds")
