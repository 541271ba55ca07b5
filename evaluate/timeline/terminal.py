"""A history for the terminal: the verdict, what changed, a line for each other series, and what does not count."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path

from evaluate.report.tables import number, plain, text_table
from evaluate.timeline.history import STEADY, TOO_FEW, History, Story, Track
from evaluate.timeline.series import dates
from evaluate.timeline.words import details, headline, hint, not_in_a_series, sentence

MOST_ROWS = 12
"""Series without anything to tell; history.html has all."""
MOST_LINES = 5
"""Results that are in no series; history.json has all."""


def terminal(history: History, width: int) -> str:
    """Return the history as plain text: the verdict, what changed, one line for each series, what does not count."""
    parts = [textwrap.fill(headline(history), width)]
    told = [story for story in history.stories if story.speed.word not in (STEADY, TOO_FEW) or details(story)]
    told += [story for story in history.stories if story.loss_changes and story not in told]
    for story in told:
        lines = [textwrap.fill(f"{plain(story.series.name)}: {plain(sentence(story))}", width, subsequent_indent="  ")]
        lines += [_bullet(line, width) for line in details(story)]
        parts.append("\n".join(lines))
    if rest := [story for story in history.stories if story not in told]:
        rows = [(s.series.name, s.speed.word, _latest_rate(s.speed), str(len(s.series.runs)), _span(s)) for s in rest]
        parts.append(text_table(("series", "speed", "tokens/s/GPU", "runs", "days"), rows[:MOST_ROWS], width))
        if len(rows) > MOST_ROWS:
            parts.append(f"and {len(rows) - MOST_ROWS} more series, all in history.html.")
    if refused := not_in_a_series(history):
        lines = [_bullet(f"{name}, {_short(path)}: {reason}", width) for name, path, reason in refused[:MOST_LINES]]
        if len(refused) > MOST_LINES:
            lines.append(_bullet(f"and {len(refused) - MOST_LINES} more, all in history.json", width))
        parts.append("\n".join(["In no series:", *lines]))
    if copies := len(history.copies):
        parts.append(f"{copies} {'copy' if copies == 1 else 'copies'} of runs in several folders: counted once.")
    if history.unreadable:
        lines = [_bullet(error, width) for _, error in history.unreadable[:MOST_LINES]]
        parts.append("\n".join([f"Not readable ({len(history.unreadable)}):", *lines]))
    parts += [textwrap.fill(text, width) for text in filter(None, [hint(history)])]
    return "\n\n".join(parts)


def _bullet(line: str, width: int) -> str:
    return textwrap.fill(plain(line), width, initial_indent="  - ", subsequent_indent="    ")


def _latest_rate(track: Track) -> str:
    return number(math.exp(track.levels.found[-1].value))


def _span(story: Story) -> str:
    return " to ".join(dates(story.series.runs))


def _short(path: str) -> str:
    """Return the last two parts of a path."""
    return str(Path(*Path(path).parts[-2:]))
