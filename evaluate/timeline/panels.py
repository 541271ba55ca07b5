"""The panels of a history: the runs of each track of a series over time, with levels and changes."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from evaluate.report.blocks import Picture
from evaluate.report.groups import letter_of
from evaluate.report.pictures import GRID, INK, OTHER_COLOUR, PAPER, PLATFORM_COLOURS
from evaluate.timeline.history import UNITS, Story, Track

HEIGHT = 2.6
LEAST_SPAN = 0.04
"""Relative height of an axis at the least, so that noise of a thousandth does not fill the panel."""
CHANGE = "#d55e00"


def tracks(story: Story) -> list[Picture]:
    """Return a panel for each track of a series: throughput, peak memory, and the loss of each seed."""
    pictures = []
    for track in story.tracks:
        counts = f"{len(track.runs)} runs, {len(track.changes)} changes of level"
        label = f"{track.title} ({UNITS[track.quantity]}) over time: {counts}"
        pictures.append(Picture(label, HEIGHT, partial(_draw, story=story, track=track)))
    return pictures


def _draw(axes: Any, story: Story, track: Track) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    colour = PLATFORM_COLOURS.get(story.series.key["platform"], OTHER_COLOUR)
    odd = {id(run) for place in track.levels.odd for run in track.blocks[place]}
    values = []
    for run in track.runs:
        value = run.values[track.quantity]
        if value is not None:
            values.append(value)
            face = PAPER if id(run) in odd else colour
            axes.plot(run.started, value, "o", markersize=4, color=face, markeredgecolor=colour)
    for level in track.levels.found:
        ends = [track.blocks[level.first][0].started, track.blocks[level.last][-1].started]
        axes.plot(ends, [math.exp(level.value)] * 2, color=INK, linewidth=1.8, marker="_", markersize=8)
    # noise of a thousandth must not fill the panel
    room = max(0.08 * (max(values) - min(values)), LEAST_SPAN * max(map(abs, values)) / 2)
    axes.set(ylim=(min(values) - room, max(values) + room), xlabel="UTC", ylabel=UNITS[track.quantity])
    for place, change in enumerate(track.changes):
        middle = change.last_before.started + (change.first_after.started - change.last_before.started) / 2
        axes.axvline(middle, color=CHANGE, linestyle="--", linewidth=1)
        axes.text(middle, 1, letter_of(place), transform=axes.get_xaxis_transform(), va="bottom", weight="bold")
    for run, _ in story.version_changes:
        axes.plot(run.started, 0.03, "^", markersize=5, color=OTHER_COLOUR, transform=axes.get_xaxis_transform())
    locator = AutoDateLocator(maxticks=6)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.grid(axis="y", color=GRID)
    axes.set_title(track.title, loc="left")
