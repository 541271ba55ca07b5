"""Lengths of documents: the counts are exact for any division into pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.checking.pair_summary import LONGEST_COUNTED, Bin, Lengths


def lengths_of(*pieces: list[int]) -> Lengths:
    lengths = Lengths()
    for piece in pieces:
        lengths.add(np.array(piece, dtype=np.int64))
    return lengths


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 100))), st.floats(0.01, 1))
def test_counts_and_quantiles_are_those_of_the_list(pieces: list[list[int]], share: float) -> None:
    values = [value for piece in pieces for value in piece]
    filled = sorted(value for value in values if value)
    lengths = lengths_of(*pieces)
    assert (lengths.documents, lengths.empty, lengths.longest) == (len(values), values.count(0), max(values, default=0))
    quantile = next((value for number, value in enumerate(filled, 1) if number >= share * len(filled)), None)
    assert lengths.quantile(share) == quantile
    assert sum(found.documents for found in lengths.bins()) == len(filled)


def test_bins_are_half_octaves_from_the_shortest_to_the_longest_document() -> None:
    # 2^(k/2) rounded: 1 1.4 2 2.8 4 5.7 8 11.3 16 22.6
    assert lengths_of([0, 3, 4, 5, 8, 10, 22]).bins() == [
        Bin(3, 4, 1),
        Bin(4, 6, 2),
        Bin(6, 8, 0),
        Bin(8, 11, 2),
        Bin(11, 16, 0),
        Bin(16, 23, 1),
    ]
    assert lengths_of([0, 0]).bins() == [] and lengths_of().bins() == []


def test_what_is_too_long_to_count_is_not_guessed() -> None:
    lengths = lengths_of([5, LONGEST_COUNTED + 7, LONGEST_COUNTED + 7, LONGEST_COUNTED + 9])
    assert lengths.longest == LONGEST_COUNTED + 9
    assert lengths.quantile(0.25) == 5
    assert lengths.quantile(0.5) is None
    assert lengths.bins()[-1].documents == 3
    assert lengths_of([LONGEST_COUNTED]).quantile(0.5) == LONGEST_COUNTED


@pytest.mark.parametrize("values", [[], [0]])
def test_no_document_has_no_median(values: list[int]) -> None:
    assert lengths_of(values).quantile(0.5) is None
