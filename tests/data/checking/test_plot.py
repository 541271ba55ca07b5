"""The plot of a data set shows every document once, with units, and its caption has the counted values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from data.checking.pair_summary import Lengths, PairSummary
from data.checking.plot import caption, draw, write_plot


def summary_of(lengths: list[int], **changes: object) -> PairSummary:
    found = Lengths()
    found.add(np.array(lengths, dtype=np.int64))
    facts = {
        "documents": len(lengths),
        "empty_documents": lengths.count(0),
        "tokens": sum(lengths),
        "bytes_of_text": 4 * sum(lengths),
        "dtype": "uint16",
        "vocabulary_size": 4096,
        "largest_id": 4000,
        "eod": 0,
        "lengths": found,
        "bin_sha256": "0" * 64,
        "has_manifest": True,
        "text": None,
        "lines_encoded_again": None,
    }
    return PairSummary(**{**facts, **changes})


LENGTHS = [0, 3, 5, 5, 40, 41, 1000]


def test_each_document_that_is_not_empty_is_in_one_bar() -> None:
    axes = draw(summary_of(LENGTHS), "synth").axes[0]
    assert sum(bar.get_height() for bar in axes.patches) == 6
    assert axes.get_ylim()[0] == 0 and axes.get_xscale() == "log"
    tall = max(axes.patches, key=lambda bar: bar.get_height())
    assert tall.get_x() <= 5 < tall.get_x() + tall.get_width()


def test_documents_too_long_to_count_are_drawn_too() -> None:
    last = draw(summary_of([1000, (1 << 20) + 5, 1 << 22]), "long").axes[0].patches[-1]
    assert (last.get_x(), last.get_height()) == (1 << 20, 2) and last.get_width() > 0.4 * last.get_x()


def test_it_has_units_a_title_the_median_and_a_caption() -> None:
    figure = draw(summary_of(LENGTHS), "c4 $x$")
    axes = figure.axes[0]
    assert "tokens" in axes.get_xlabel() and axes.get_ylabel() == "documents"
    assert axes.get_title() == "Document lengths of c4 $x$"
    assert [text.get_text() for text in axes.texts] == ["median 5"]
    said = figure.texts[0].get_text().replace("\n", " ")
    assert "7 documents (1 empty, not drawn), 1,094 tokens, 4.00 bytes of text per token" in said
    assert "longest 1,000" in said


def test_a_long_name_keeps_its_end() -> None:
    title = draw(summary_of(LENGTHS), "/a/folder" * 20 + "/mine").axes[0].get_title()
    assert title.endswith("/a/folder/mine") and "..." in title and len(title) == len("Document lengths of ") + 60


def test_what_is_not_known_is_not_said() -> None:
    assert "bytes of text" not in caption(summary_of(LENGTHS, bytes_of_text=None))


@pytest.mark.parametrize("lengths", [[1], [7] * 5, [4, 33_927], [1, 1 << 20], [LENGTHS[-1], (1 << 20) + 5]])
def test_any_lengths_can_be_drawn_and_nothing_is_cut(tmp_path: Path, lengths: list[int]) -> None:
    write_plot(tmp_path / "data.png", summary_of(lengths), "a name")
    assert (tmp_path / "data.png").read_bytes().startswith(b"\x89PNG")
    figure = draw(summary_of(lengths), "a name")
    FigureCanvasAgg(figure).draw()
    axes = figure.axes[0]
    inside = figure.bbox
    for text in (*figure.texts, axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *axes.get_xticklabels()):
        box = text.get_window_extent()
        assert inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1, text


def test_a_name_with_dollar_signs_is_no_formula(tmp_path: Path) -> None:
    write_plot(tmp_path / "data.png", summary_of(LENGTHS), r"costs $\frac$")  # as a formula it ends in an error
    assert (tmp_path / "data.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_data_give_the_same_picture(tmp_path: Path) -> None:
    for name in ("1.png", "2.png"):
        write_plot(tmp_path / name, summary_of(LENGTHS), "synth")
    assert (tmp_path / "1.png").read_bytes() == (tmp_path / "2.png").read_bytes()
