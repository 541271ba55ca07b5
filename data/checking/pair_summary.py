"""What verifying a pair found, for people."""

from __future__ import annotations

from dataclasses import dataclass

from data.checking.lengths import LONGEST_COUNTED, Lengths
from data.checking.samples import TextCheck


@dataclass(frozen=True)
class Summary:
    """What a pair holds and what was checked; None for what was not, for want of manifest, tokenizer or input."""

    documents: int
    empty_documents: int
    tokens: int
    bytes_of_text: int | None
    """In UTF-8; None where the program that read the text did not say."""
    dtype: str
    vocabulary_size: int
    largest_id: int
    eod: int
    lengths: Lengths
    has_manifest: bool
    """Its digests and counts have been checked; one that differs is an error."""
    text: TextCheck | None
    lines_encoded_again: int | None
    """Sampled lines of the input whose ids are those of the pair; one that differs is an error."""

    @property
    def bytes_per_token(self) -> float | None:
        """Text in UTF-8 for each token; what the tokenizer or the end of a document adds counts as tokens."""
        return self.bytes_of_text / self.tokens if self.bytes_of_text is not None else None

    def __str__(self) -> str:
        """Return the summary for people."""
        text, again = self.text, self.lines_encoded_again
        density = (
            "unknown: no manifest says how much text"
            if self.bytes_per_token is None
            else (f"{self.bytes_of_text:,} bytes in UTF-8, {self.bytes_per_token:.3f} a token")
        )
        lines = (
            f"documents   {self.documents:,} ({self.empty_documents:,} empty)",
            f"tokens      {self.tokens:,} of {self.dtype}",
            f"text        {density}",
            f"lengths     {lengths_text(self.lengths, self.tokens)} tokens",
            f"ids         up to {self.largest_id:,}, below the {self.vocabulary_size:,} of the vocabulary",
            f"ends        every document that has tokens ends with {self.eod}",
            f"manifest    {'agrees, digests too' if self.has_manifest else 'none; digests not checked'}",
            f"round trip  {f'{text.kept} of {text.sampled} documents' if text else 'not checked: no --tokenizer'}",
            f"input       {'not checked: no --input' if again is None else f'{again} sampled lines have these ids'}",
        )
        return "\n".join(lines) + (f"\nexcerpt     {text.excerpt!r}" if text else "")


def lengths_text(lengths: Lengths, tokens: int) -> str:
    """Return mean, median, 99th percentile and maximum of the documents that are not empty, in tokens."""
    filled = lengths.documents - lengths.empty
    median, high = (_quantile_text(lengths.quantile(share)) for share in (0.5, 0.99))
    return f"mean {tokens / filled:,.1f}, median {median}, 99th percentile {high}, longest {lengths.longest:,}"


def _quantile_text(length: int | None) -> str:
    return f"{length:,}" if length is not None else f"above {LONGEST_COUNTED:,}"
