"""The blocks of a report as one HTML file that opens from disk, makes no request, and can be read without JavaScript.

The content security policy of the page forbids every request, and every style and script except the two whose hashes
it lists. The template escapes every text (autoescape); only what this package marks as `Markup` is inserted as it is.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from evaluate.report.blocks import Block, Heading, flat
from evaluate.report.pictures import svg
from evaluate.report.tables import plain
from utils.arguments import VERSION

HERE = Path(__file__).parent


def page(title: str, blocks: Sequence[Block]) -> str:
    """Return the whole page."""
    style = (HERE / "assets/page.css").read_text(encoding="utf8")
    script = (HERE / "assets/page.js").read_text(encoding="utf8")
    shown = list(flat(blocks))
    contents = []
    for block in shown:
        if isinstance(block, Heading) and block.level == 2 and block.anchor:
            contents.append(block)
    # each SVG needs ids of its own
    numbers = itertools.count(1)
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: value if isinstance(value, Markup) else plain(value),
    )
    return environment.get_template("page.html").render(
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        title=title,
        version=VERSION,
        blocks=shown,
        contents=contents,
        kind=lambda block: type(block).__name__,
        svg=lambda picture: svg(picture, next(numbers)),
    )


def _policy(style: str, script: str) -> str:
    """Return the content security policy of a page: inline texts by their hashes (W3C, CSP 3, section 2.3.1)."""
    allowed = f"style-src 'sha256-{_hash(style)}'; script-src 'sha256-{_hash(script)}'"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
