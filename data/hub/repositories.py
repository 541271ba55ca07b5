"""Repositories of text and tokenizers on the Hugging Face Hub, with identities, copies and licences.

Order is preference: the canonical repository first, then copies of the same content. utils/models.py declares the
tokenizers. docs/data.md has the sources, and what could not be checked.
"""

from __future__ import annotations

from dataclasses import dataclass

from utils.models import MODELS, ModelTokenizer


@dataclass(frozen=True)
class TextSource:
    """A data set on the hub and how to read it."""

    repo: str
    config: str | None
    """Configuration as `datasets` knows it; None = the only one, or the default."""
    column: str
    licence: str


TEXTS: dict[str, tuple[TextSource, ...]] = {
    "c4": (TextSource("allenai/c4", "en", "text", "ODC-BY, and Common Crawl's terms of use"),),
    # bookcorpus/bookcorpus itself is a loading script, which datasets has not run since version 4
    "bc": (
        TextSource("SamuelYang/bookcorpus", None, "text", "unknown"),
        TextSource("rojagtap/bookcorpus", None, "text", "unknown"),
    ),
}
"""Data sets by the name that DATASET gives them; each tuple in the order in which they are tried."""

TOKENIZERS: dict[str, tuple[str, ...]] = {name: model.repositories for name, model in MODELS.items()}
"""Repositories that hold the tokenizer of a model, the release first."""
VOCABULARIES: dict[str, ModelTokenizer] = {
    repo: model.tokenizer for model in MODELS.values() for repo in model.repositories
}
"""Identity of the tokenizer in a repository; one that is not in this table is used unchecked."""
UNGATED = {model.release: model.tokenizer.copies[0] for model in MODELS.values() if model.tokenizer.is_gated}
"""A copy that needs no access request, for the message about a gated repository."""
