"""Generated text: the same bytes everywhere, however much is asked for."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from data import synth
from data.checking import pair_summary, plot
from data.language import language


def texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf8").splitlines()]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("synth") / "sample.jsonl"
    synth.write_documents(path, seed=42, words=400_000)
    return texts(path)


@pytest.mark.parametrize(
    ("seed", "digest"),
    [
        (42, "e8c30a77a48f2eb768e675e0d1376e8bc3aad4067c695a303a7e3231b174b5d0"),
        (7, "8544908c7d785d685591abb8c14ccff461ec6e406dca7c8679e90fd14a8000b8"),
    ],
)
def test_bytes_are_the_same_on_every_machine(tmp_path: Path, seed: int, digest: str) -> None:
    """The one number here that is our own output: pinned, so that another numpy, processor or edit cannot change the
    data of a comparison unnoticed. A deliberate change of the language changes it, and every data set made before."""
    synth.write_documents(tmp_path / "text.jsonl", seed=seed, documents=300)
    assert hashlib.sha256((tmp_path / "text.jsonl").read_bytes()).hexdigest() == digest


def test_raw_draws_are_those_that_the_generator_publishes() -> None:
    # numpy/random/tests/data/pcg64-testset-2.csv of numpy 2.4: the first output for seed 0 is 0xa30febcfd9c2825f
    drawn = language.draws_of(np.random.PCG64(0), 1, 4)[0].tolist()
    assert drawn == [0x825F, 0xD9C2, 0xEBCF, 0xA30F]


@pytest.mark.parametrize("asked", [1, 10, 256, 257])
def test_the_first_documents_do_not_depend_on_how_many_are_asked_for(tmp_path: Path, asked: int) -> None:
    for name, count in (("few", asked), ("many", 600)):
        synth.write_documents(tmp_path / name, seed=3, documents=count)
    few = (tmp_path / "few").read_bytes()
    assert few.count(b"\n") == asked and (tmp_path / "many").read_bytes().startswith(few)


@pytest.mark.parametrize("asked", [1, 500, 60_000])
def test_words_end_with_the_document_that_reaches_them(tmp_path: Path, commands, asked: int) -> None:
    said = commands.run(synth.main, "--output", tmp_path / "text.jsonl", "--seed", "3", "--words", asked)
    written = texts(tmp_path / "text.jsonl")
    found = [len(text.split()) for text in written]
    assert sum(found) >= asked > sum(found[:-1])
    size = sum(len(text.encode()) for text in written)
    assert json.loads(said.out) == {"documents": len(found), "words": sum(found), "bytes": size}


def test_another_seed_is_other_text_in_the_same_language(tmp_path: Path, sample: list[str]) -> None:
    synth.write_documents(tmp_path / "other.jsonl", seed=43, words=100_000)
    other = texts(tmp_path / "other.jsonl")
    assert not set(other) & set(sample)
    known = {word for text in sample for word in re.findall(r"\w+", text.lower())}
    words = [word for text in other for word in re.findall(r"\w+", text.lower())]
    assert sum(word in known for word in words) / len(words) > 0.98


# Lengths of documents are counted exactly; their plot shows every document once, with units and a caption.

LIMIT = 1 << 20
"""All longer documents are counted as one length."""


def lengths_of(*pieces: list[int]) -> pair_summary.Lengths:
    lengths = pair_summary.Lengths()
    for piece in pieces:
        lengths.add(np.array(piece, dtype=np.int64))
    return lengths


def summary_of(lengths: list[int]) -> pair_summary.PairSummary:
    size = {"documents": len(lengths), "empty_documents": lengths.count(0), "tokens": sum(lengths)}
    ids = {"dtype": "uint16", "vocabulary_size": 4096, "largest_id": 4000, "eod": 0}
    checks = {"bin_sha256": "0" * 64, "has_manifest": True, "text": None, "lines_encoded_again": None}
    return pair_summary.PairSummary(
        **size, **ids, **checks, bytes_of_text=4 * sum(lengths), lengths=lengths_of(lengths)
    )


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 100))), st.floats(0.01, 1))
def test_counts_and_quantiles_are_those_of_the_list(pieces: list[list[int]], share: float) -> None:
    values = [value for piece in pieces for value in piece]
    filled = sorted(value for value in values if value)
    lengths = lengths_of(*pieces)
    assert (lengths.documents, lengths.empty, lengths.longest) == (len(values), values.count(0), max(values, default=0))
    quantile = next((value for number, value in enumerate(filled, 1) if number >= share * len(filled)), None)
    assert lengths.quantile(share) == quantile
    assert sum(lengths.bins()[1]) == len(filled)


def test_bins_are_half_octaves_from_the_shortest_to_the_longest_document() -> None:
    # 2^(k/2) rounded: 1 1.4 2 2.8 4 5.7 8 11.3 16 22.6
    wanted = [3, 4, 6, 8, 11, 16, 23], [1, 2, 0, 2, 0, 1]
    assert lengths_of([0, 3, 4, 5, 8, 10, 22]).bins() == wanted
    assert lengths_of([0, 0]).bins() == ([], []) == lengths_of().bins()


def test_what_is_too_long_to_count_is_not_guessed() -> None:
    lengths = lengths_of([5, LIMIT + 7, LIMIT + 7, LIMIT + 9])
    assert (lengths.longest, lengths.quantile(0.25), lengths.quantile(0.5)) == (LIMIT + 9, 5, None)
    assert lengths.bins()[1][-1] == 3
    assert lengths_of([LIMIT]).quantile(0.5) == LIMIT
    last = plot.draw(summary_of([1000, LIMIT + 5, 4 * LIMIT]), "long").axes[0].patches[-1]
    assert (last.get_x(), last.get_height()) == (pytest.approx(LIMIT), 2) and last.get_width() > 0.4 * last.get_x()


LENGTHS = [0, 3, 5, 5, 40, 41, 1000]


def test_each_filled_document_is_in_one_bar_with_units_a_median_and_a_caption() -> None:
    figure = plot.draw(summary_of(LENGTHS), "c4 $x$")
    axes = figure.axes[0]
    assert sum(bar.get_height() for bar in axes.patches) == 6
    assert axes.get_ylim()[0] == 0 and axes.get_xscale() == "log"
    tall = max(axes.patches, key=lambda bar: bar.get_height())
    assert tall.get_x() <= 5 < tall.get_x() + tall.get_width()
    assert "tokens" in axes.get_xlabel() and axes.get_ylabel() == "documents"
    assert [text.get_text() for text in axes.texts] == ["median 5"]
    said = figure.texts[0].get_text().replace("\n", " ")
    for fact in ("7 documents (1 empty, not drawn), 1,094 tokens, 4.00 bytes of text per token", "longest 1,000"):
        assert fact in said


@pytest.mark.parametrize("lengths", [[1], [7] * 5, [4, 33_927], [1, LIMIT], [1000, LIMIT + 5]])
def test_any_lengths_can_be_drawn_and_nothing_is_cut(lengths: list[int]) -> None:
    figure = plot.draw(summary_of(lengths), "/a/folder" * 20 + "/mine")
    FigureCanvasAgg(figure).draw()
    axes, inside = figure.axes[0], figure.bbox
    assert axes.title.get_text().endswith("/a/folder/mine"), "a long name keeps its end"
    for text in (*figure.texts, axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *axes.get_xticklabels()):
        box = text.get_window_extent()
        assert inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1, text


def test_the_same_data_give_the_same_picture_and_a_name_is_no_formula(tmp_path: Path) -> None:
    for name in ("1.png", "2.png"):
        plot.write_plot(tmp_path / name, summary_of(LENGTHS), r"costs $\frac$")  # as a formula it ends in an error
    assert (tmp_path / "1.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "1.png").read_bytes() == (tmp_path / "2.png").read_bytes()
