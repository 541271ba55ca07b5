"""Plot of the document lengths of a data set, `output/data_<dataset>.png`.

matplotlib is imported on use: the import takes a second.
"""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.checking.pair_summary import PairSummary
from utils.files import written_whole
from utils.own_files import PNG_MARK, is_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Blue of the palette of Okabe and Ito (2008), as in evaluate/report/pictures.py
COLOUR, INK, GRID = "#0072B2", "#222222", "#DDDDDD"
WIDTH_INCHES, HEIGHT_INCHES, DPI = 6.4, 3.6, 150
CAPTION_CHARACTERS, NAME_CHARACTERS, MOST_TICKS = 108, 60, 9
HALF_OCTAVE = 2**0.5


def write_plot(path: Path, summary: PairSummary, name: str) -> None:
    """Write a PNG of the document lengths; `name` is the name of the data set."""
    import matplotlib as mpl

    # the name is user input: a dollar sign in it must not start a formula
    with (
        mpl.rc_context({"text.parse_math": False, "font.size": 9}),
        written_whole(path, is_ours=is_png) as (temporary,),
    ):
        draw(summary, name).savefig(temporary, format="png", dpi=DPI, metadata=PNG_MARK)


def draw(summary: PairSummary, name: str) -> Figure:
    """Return a histogram of the documents by length in tokens, in bins of half an octave on a logarithmic axis."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES))
    axes = figure.add_axes((0.14, 0.29, 0.81, 0.6))
    edges, counts = summary.lengths.bins()
    axes.hist(edges[:-1], edges, weights=counts, color=COLOUR, edgecolor="white", linewidth=0.5)
    if len(name) > NAME_CHARACTERS:
        name = f"...{name[3 - NAME_CHARACTERS :]}"
    axes.set_title(f"Document lengths of {name}", fontsize=10)
    axes.set(
        xlabel="tokens per document with its end token (logarithmic, bins of half an octave)",
        ylabel="documents",
        # with room for the name of the median
        ylim=(0, 1.15 * max(counts)),
        axisbelow=True,
    )
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.grid(axis="y", color=GRID)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter("{x:,.6g}")
    _logarithmic(axes, edges[0], edges[-1])
    median = summary.lengths.quantile(0.5)
    if median is not None:
        axes.axvline(median, color=INK, linestyle="--", linewidth=1)
        axes.annotate(
            f"median {median:,}",
            (median, 1),
            xycoords=("data", "axes fraction"),
            xytext=(4, -2),
            textcoords="offset points",
            va="top",
            color=INK,
        )
    figure.text(0.02, 0.03, caption(summary), color=INK, fontsize=8, va="bottom")
    return figure


def caption(summary: PairSummary) -> str:
    """Return the text under the figure: size of the data set, and statistics of the lengths."""
    size = f"{summary.documents:,} documents ({summary.empty_documents:,} empty, not drawn), {summary.tokens:,} tokens"
    if summary.bytes_per_token is not None:
        size += f", {summary.bytes_per_token:.2f} bytes of text per token"
    size += f", vocabulary {summary.vocabulary_size:,}"
    lengths = f"Tokens per document: {summary.lengths.as_text(summary.tokens)}"
    return "\n".join(textwrap.wrap(size, CAPTION_CHARACTERS) + textwrap.wrap(lengths, CAPTION_CHARACTERS))


def _logarithmic(axes: Any, low: float, high: float) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    left, right = low / HALF_OCTAVE, high * HALF_OCTAVE
    powers = [1 << exponent for exponent in range(21) if left <= 1 << exponent <= high]
    step = math.ceil(len(powers) / MOST_TICKS)
    axes.set(xlim=(left, right), xticks=powers[::step])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,.0f}")
