"""How long the documents of a data set are, counted exactly up to a million tokens and in constant memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LONGEST_COUNTED = 1 << 20
"""Tokens; longer documents are counted together."""


class Bin(NamedTuple):
    """Documents of `low` tokens or more and fewer than `high`."""

    low: int
    high: int
    documents: int


class Lengths:
    """The number of documents of each length in tokens, the end-of-document token included; empty ones have 0."""

    def __init__(self) -> None:
        self._counts = np.zeros(LONGEST_COUNTED + 1, dtype=np.int64)
        self.longest = 0

    def add(self, lengths: npt.NDArray[np.int64]) -> None:
        """Count the lengths of more documents."""
        if lengths.size:
            # minlength would make an array of a million entries for each few documents
            counts = np.bincount(np.minimum(lengths, LONGEST_COUNTED))
            self._counts[: len(counts)] += counts
            self.longest = max(self.longest, int(lengths.max()))

    @property
    def documents(self) -> int:
        """Number of documents, the empty ones too."""
        return int(self._counts.sum())

    @property
    def empty(self) -> int:
        """Number of documents without a token."""
        return int(self._counts[0])

    def quantile(self, share: float) -> int | None:
        """Return the smallest length that at least `share` (above 0, up to 1) of the filled documents do not exceed.

        None where no document is filled, and where it is above a million tokens.
        """
        filled = np.cumsum(self._counts[1:])
        if not filled[-1]:
            return None
        length = 1 + int(np.searchsorted(filled, share * filled[-1]))
        return length if length < LONGEST_COUNTED or self.longest == length else None

    def bins(self) -> list[Bin]:
        """Return the filled documents in bins of half an octave: 1, 2, 3, 4-5, 6-7, 8-10, 11-15, 16-22, ...

        From the first bin that holds a document to the last; the last bin has no end, where documents of more than a
        million tokens are in it.
        """
        exponents = np.arange(0, 2 * int(np.log2(LONGEST_COUNTED)) + 1)
        edges = np.unique(np.rint(2 ** (exponents / 2)).astype(np.int64)).tolist()
        bins = [
            Bin(low, high, int(self._counts[low:high].sum()))
            for low, high in zip(edges, [*edges[1:], LONGEST_COUNTED + 1], strict=True)
        ]
        filled = [number for number, found in enumerate(bins) if found.documents]
        return bins[filled[0] : filled[-1] + 1] if filled else []
