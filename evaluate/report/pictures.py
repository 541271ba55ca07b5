"""Panels as SVG inside a page and as one PNG, drawn by the same functions of matplotlib. Lengths are in inches.

Matplotlib takes half a second to load, so only the functions that draw import it: terminal and Markdown have no panel.
A page follows the colour scheme of its reader: the SVG has the page's own variables in place of the colours here.
"""

from __future__ import annotations

import io
import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evaluate.report.blocks import Block, Picture, Pictures, flat
from evaluate.report.tables import plain, wrapped
from utils.own_files import PNG_MARK

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

INK, GRID, BAND, PAPER = "#222222", "#dddddd", "#e6e9ee", "#ffffff"
# The palette of Okabe and Ito (2008), distinguishable with any common colour blindness.
PLATFORM_COLOURS = {"nvd": "#009e73", "amd": "#d55e00", "cpu": "#0072b2"}
OTHER_COLOUR = "#7f7f7f"
VARIABLES = {INK: "ink", GRID: "rule", BAND: "band", PAPER: "paper", OTHER_COLOUR: "other"}
VARIABLES |= {colour: platform for platform, colour in PLATFORM_COLOURS.items()}
"""Variables of page.css that stand for the colours of a panel."""
SETTINGS: dict[str, Any] = {
    # Names are untrusted text: a dollar sign in one must not start a formula, also if the user's matplotlib has TeX.
    "text.parse_math": False,
    "text.usetex": False,
    "text.color": INK,
    "font.size": 9,
    "svg.fonttype": "none",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}
WIDTH, TITLE, LINE, GAP = 6.0, 0.4, 0.17, 0.25
CHARACTERS = 180
DPI, LARGEST_PIXELS = 110, 60_000
"""Agg draws fewer than 2**16 pixels per side; a taller figure gets a lower resolution."""
_STYLE = re.compile(r"([\w-]+): *([^;]+)")


def svg(picture: Picture, number: int) -> Markup:
    """Return a panel as inline SVG; `number` is another one for each panel of a page, whose ids must differ."""
    from xml.etree import ElementTree

    from markupsafe import Markup
    from matplotlib.figure import Figure

    with drawing({"svg.hashsalt": str(number)}):
        figure = Figure(figsize=(WIDTH, picture.height), layout="constrained")
        picture.draw(figure.subplots())
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(stream.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}style", "}metadata")):
                parent.remove(child)
    # ids of several pictures on a page must not meet; most are never used
    used = set(re.findall(r"#([\w.]+)", stream.getvalue()))
    for element in root.iter():
        _inline(element, used)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": plain(picture.label)}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def png(headline: Sequence[str], blocks: Sequence[Block]) -> bytes:
    """Return all panels of the blocks as one PNG of ours, below the lines of the headline."""
    from matplotlib.figure import Figure

    rows, heights = [], []
    for block in flat(blocks):
        if isinstance(block, Pictures):
            panels = block.panels()
            rows.append((block, panels))
            strips = sum(height + GAP for height in _strips(panels))
            heights.append(TITLE + LINE * len(_lines(block)) + strips)
    title = TITLE + LINE * len(headline)
    with drawing():
        figure = Figure(figsize=(2 * WIDTH, title + sum(heights)), layout="constrained")
        parts = figure.subfigures(1 + len(rows), 1, height_ratios=[title, *heights], squeeze=False)[:, 0]
        parts[0].text(0.01, 0.5, "\n".join(headline), va="center", size=10)
        for part, row in zip(parts[1:], rows, strict=True):
            _draw_row(part, *row)
        return saved(figure)


def saved(figure: Figure) -> bytes:
    """Return a figure as a PNG of ours."""
    stream = io.BytesIO()
    # a figure of a hundred rows would exceed what Agg can draw
    dpi = min(DPI, LARGEST_PIXELS / max(figure.get_size_inches()))
    figure.savefig(stream, format="png", dpi=dpi, metadata=PNG_MARK)
    return stream.getvalue()


@contextmanager
def drawing(more: dict[str, Any] | None = None) -> Iterator[None]:
    """Draw with the settings of all our pictures."""
    import matplotlib as mpl

    with mpl.rc_context(SETTINGS | (more or {})), warnings.catch_warnings():
        # a box is drawn in the place of a letter; runs of a few minutes have fewer marks on an axis of dates
        warnings.filterwarnings("ignore", "Glyph .* missing from font|AutoDateLocator was unable to pick")
        yield


def _lines(row: Pictures) -> list[str]:
    return [short for line in row.lines for short in wrapped(line, 2, CHARACTERS)]


def _strips(panels: Sequence[Picture]) -> list[float]:
    """Return the height of each strip of two panels."""
    strips = [panels[place : place + 2] for place in range(0, len(panels), 2)]
    return [max(panel.height for panel in strip) for strip in strips]


def _draw_row(part: Any, row: Pictures, panels: Sequence[Picture]) -> None:
    part.suptitle("\n".join([plain(row.title), *_lines(row)]), x=0.01, ha="left", size=9)
    if not panels:
        return
    heights = _strips(panels)
    axes = part.subplots(len(heights), min(2, len(panels)), squeeze=False, height_ratios=heights)
    for place, panel in itertools.zip_longest(axes.flat, panels):
        if panel is None:
            place.set_axis_off()
        else:
            panel.draw(place)


def _inline(element: Any, used: set[str]) -> None:
    """Make an element of matplotlib's SVG one of a page: without namespace, unused id, and style attribute.

    The content security policy of the page forbids style attributes.
    """
    element.tag = element.tag.rpartition("}")[2]
    attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    for name, value in _STYLE.findall(attributes.pop("style", "")):
        attributes[name] = value.strip()
    if attributes.get("id") not in used:
        attributes.pop("id", None)
    if element.tag == "text":
        attributes["font-family"] = "inherit"
        attributes.setdefault("fill", INK)
    for name in ("fill", "stroke"):
        if attributes.get(name) in VARIABLES:
            attributes[name] = f"var(--{VARIABLES[attributes[name]]})"
    element.attrib = attributes
