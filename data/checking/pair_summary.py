"""Findings of verifying a pair: counts, lengths of the documents, and what was checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LONGEST_COUNTED = 1 << 20
"""Tokens; all longer documents are counted as one length."""


class Lengths:
    """Number of documents of each length in tokens, the end-of-document token included; empty documents have 0.

    Lengths are exact up to a million tokens; memory is constant.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(LONGEST_COUNTED + 1, dtype=np.int64)
        self.longest = 0

    def add(self, lengths: npt.NDArray[np.int64]) -> None:
        """Count the lengths of more documents."""
        if lengths.size:
            # without minlength, which would allocate a million entries on each call
            counts = np.bincount(np.minimum(lengths, LONGEST_COUNTED))
            self._counts[: len(counts)] += counts
            self.longest = max(self.longest, int(lengths.max()))

    @property
    def documents(self) -> int:
        """Number of documents, including empty ones."""
        return int(self._counts.sum())

    @property
    def empty(self) -> int:
        """Number of documents without a token."""
        return int(self._counts[0])

    def quantile(self, share: float) -> int | None:
        """Return the smallest length that at least `share` (above 0, up to 1) of the filled documents do not exceed.

        None if no document is filled, and if the quantile is above a million tokens.
        """
        filled = np.cumsum(self._counts[1:])
        if not filled[-1]:
            return None
        length = 1 + int(np.searchsorted(filled, share * filled[-1]))
        if length == LONGEST_COUNTED and self.longest > length:
            return None
        return length

    def bins(self) -> tuple[list[float], list[int]]:
        """Return edges in tokens (1, 2, 3, 4, 6, 8, 11, 16, 23, ...) and numbers of the filled documents between them.

        Bins are half an octave wide and run from the first to the last one with a document. The bin of a million tokens
        and more is open; its second edge is where it would end if it were as wide as the others.
        """
        half_octaves = np.arange(2 * LONGEST_COUNTED.bit_length() - 1)
        # the first ones are equal when rounded
        edges = np.unique(np.rint(2 ** (half_octaves / 2))).astype(np.int64)
        counts = np.add.reduceat(self._counts, edges)
        filled = np.flatnonzero(counts)
        if not filled.size:
            return [], []
        first, last = filled[[0, -1]].tolist()
        all_edges = [*edges.tolist(), 2**0.5 * LONGEST_COUNTED]
        return all_edges[first : last + 2], counts[first : last + 1].tolist()

    def as_text(self, tokens: int) -> str:
        """Return mean, median, 99th percentile and maximum of the filled documents, which have `tokens` in all."""
        mean = tokens / (self.documents - self.empty)
        median, high = self._quantile_as_text(0.5), self._quantile_as_text(0.99)
        return f"mean {mean:,.1f}, median {median}, 99th percentile {high}, longest {self.longest:,}"

    def _quantile_as_text(self, share: float) -> str:
        length = self.quantile(share)
        return f"above {LONGEST_COUNTED:,}" if length is None else f"{length:,}"


@dataclass(frozen=True)
class TextCheck:
    """Result of decoding a sample of documents and encoding it again."""

    sampled: int
    kept: int
    """Documents with the same ids after decoding and encoding; normalised text need not have them."""
    excerpt: str
    """Start of the first sampled document."""


@dataclass(frozen=True)
class PairSummary:
    """Content and checks of a pair; None for a check that was not done, for lack of manifest, tokenizer or input."""

    documents: int
    empty_documents: int
    tokens: int
    bytes_of_text: int | None
    """Bytes in UTF-8; None if the program that encoded the text did not record them."""
    dtype: str
    vocabulary_size: int
    largest_id: int
    eod: int
    lengths: Lengths
    bin_sha256: str
    has_manifest: bool
    """True if the digests and counts of a manifest were checked; a difference is an error."""
    text: TextCheck | None
    lines_encoded_again: int | None
    """Number of sampled input lines whose ids equal those of the pair; a difference is an error."""

    @property
    def bytes_per_token(self) -> float | None:
        """UTF-8 bytes of text per token; special and end-of-document tokens count as tokens."""
        return None if self.bytes_of_text is None else self.bytes_of_text / self.tokens

    def __str__(self) -> str:
        """Return the summary for people."""
        density = "unknown: no manifest records the bytes of text"
        if self.bytes_per_token is not None:
            density = f"{self.bytes_of_text:,} bytes in UTF-8, {self.bytes_per_token:.3f} per token"
        manifest = "agrees, digests too" if self.has_manifest else "none; digests not checked"
        round_trip = "not checked: no --tokenizer"
        if self.text:
            round_trip = f"{self.text.kept} of {self.text.sampled} documents"
        input_lines = "not checked: no --input"
        if self.lines_encoded_again is not None:
            input_lines = f"{self.lines_encoded_again} sampled lines have these ids"
        lines = [
            f"documents   {self.documents:,} ({self.empty_documents:,} empty)",
            f"tokens      {self.tokens:,} of {self.dtype}",
            f"text        {density}",
            f"lengths     {self.lengths.as_text(self.tokens)} tokens",
            f"ids         largest {self.largest_id:,}, vocabulary {self.vocabulary_size:,}",
            f"ends        every document that has tokens ends with {self.eod}",
            f"manifest    {manifest}",
            f"round trip  {round_trip}",
            f"input       {input_lines}",
        ]
        if self.text:
            lines.append(f"excerpt     {self.text.excerpt!r}")
        return "\n".join(lines)
