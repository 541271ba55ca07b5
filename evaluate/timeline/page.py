"""history.html: one file that opens from disk, makes no request and needs no script; for screens of any width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from evaluate.page import page as comparison_page
from evaluate.timeline import charts, words
from evaluate.timeline.content import DEFINITIONS, TITLE
from evaluate.timeline.history import LOSS, SLOWER, History, Story, Track

CHANGES = ("Change", "Since (UTC)", "Size", "On record")
VERSIONS = ("Versions", "Days", "Runs", "tokens/s/GPU", "MFU (%)", "Peak memory (GB)", "Last loss (nats/token)")
HERE = Path(__file__).parent


def page(history: History) -> str:
    """Return the whole page."""
    style = comparison_page.asset("page.css") + (HERE / "templates" / "history.css").read_text(encoding="utf8")
    template = comparison_page.environment(HERE / "templates").get_template("history.html")
    return template.render(
        title=TITLE,
        policy=comparison_page.policy(style, None),
        style=Markup(style),
        headline=words.headline(history),
        band=f"{history.band:.1%}",
        stories=[_story(story) for story in history.stories],
        left_out=words.not_in_a_series(history),
        files=words.file_lines(history),
        hint=words.hint(history),
        definitions=DEFINITIONS,
    )


def _story(story: Story) -> dict[str, Any]:
    return {
        "name": story.series.name,
        "word": "loss changed" if story.loss_changes else story.speed.word,
        "kind": "bad" if story.loss_changes or story.speed.word == SLOWER else "plain",
        "platform": story.series.key["platform"],
        "sentence": words.sentence(story),
        "details": words.details(story),
        "charts": list(charts.charts(story)),
        "changes_header": CHANGES,
        "changes": [row for track in story.tracks for row in _changes(track)],
        "versions_header": VERSIONS,
        "versions": words.version_rows(story),
        "steps": [
            (f"{run.started:%Y-%m-%d %H:%M} UTC", ", ".join(one.text for one in what))
            for run, what in reversed(story.version_changes)
        ],
    }


def _changes(track: Track) -> list[tuple[str, ...]]:
    title = charts.TITLES[track.quantity] + (f", seed {track.seed}" if track.quantity == LOSS else "")
    return [
        (
            f"{charts.mark(place)}: {title}",
            f"{change.first_after.started:%Y-%m-%d %H:%M}",
            words.size_text(track, change),
            words.cause(change),
        )
        for place, change in enumerate(track.changes)
    ]
