"""HTML of text from strangers: everything that is not markup made here is escaped, by its type and in one place."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

from evaluate.report.tables import plain

VOID = frozenset({"line", "rect", "path"})
"""Elements of a drawing, which have no content and close themselves."""


class Html(str):
    """Markup; any other text is not, and is escaped wherever it goes in."""

    __slots__ = ()


def escaped(value: object) -> Html:
    """Return markup as it is, and anything else as text that HTML shows and does not act on."""
    return value if isinstance(value, Html) else Html(html.escape(plain(value)))


def joined(parts: Iterable[object]) -> Html:
    """Return the parts one behind the other."""
    return Html("".join(map(escaped, parts)))


def element(name: str, *children: object, **attributes: object) -> Html:
    """Return an element. `class_` is class, `aria_label` is aria-label; True is a bare attribute, None is left out."""
    said = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    return Html(f"<{name}{said}/>" if name in VOID else f"<{name}{said}>{joined(children)}</{name}>")


def items(lines: Iterable[object], **attributes: object) -> Html:
    """Return a list; nothing where there are no lines."""
    found = [element("li", line) for line in lines]
    return element("ul", *found, **attributes) if found else Html("")


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[object]], numbers: int | None = None) -> Html:
    """Return a table that scrolls inside its own box; columns from `numbers` on are numbers. The first names a row."""
    first = len(header) if numbers is None else numbers

    def side(column: int) -> str | None:
        return "number" if column >= first else None

    head = [element("th", name, scope="col", class_=side(column)) for column, name in enumerate(header)]
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell, class_=side(column)) for column, cell in enumerate(row[1:], start=1)),
        )
        for row in rows
    ]
    content = element(
        "table",
        element("caption", caption, class_="unseen"),
        element("thead", element("tr", *head)),
        element("tbody", *body),
    )
    return scrolling(caption, content)


def scrolling(label: str, content: object) -> Html:
    """Return a box that scrolls sideways, also by keyboard."""
    return element("div", content, class_="scroll", role="region", aria_label=label, tabindex=0)


def json_block(value: Any) -> Html:
    """Return JSON for a script element, in which no text can end the element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return Html(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(plain(value))}"'
