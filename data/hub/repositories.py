"""Where text and tokenizers come from on the Hugging Face Hub: the one table of identities, fallbacks and licences.

Order is preference: the canonical repository first, then copies of the same content. docs/data.md has the sources of
what is said here, and what could not be checked.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TextSource:
    """A data set on the hub and how to read it."""

    repo: str
    config: str | None
    """Configuration as `datasets` knows it; None = the only one, or the default."""
    column: str
    licence: str


@dataclass(frozen=True)
class Vocabulary:
    """What identifies a tokenizer: a copy that differs in one of these is not the same."""

    size: int
    """Entries with added tokens, as `len(tokenizer)` says."""
    eos_token_id: int
    bos_token_id: int | None
    """The token that begins every document; None where none does."""


TEXTS: dict[str, tuple[TextSource, ...]] = {
    "c4": (TextSource("allenai/c4", "en", "text", "ODC-BY, and Common Crawl's terms of use"),),
    # bookcorpus/bookcorpus itself is a loading script, which datasets has not run since version 4
    "bc": (
        TextSource("SamuelYang/bookcorpus", None, "text", "unknown"),
        TextSource("rojagtap/bookcorpus", None, "text", "unknown"),
    ),
}
"""Data sets by the name that DATASET gives them; each tuple in the order in which they are tried."""

TOKENIZERS: dict[str, tuple[str, ...]] = {
    "llama": ("meta-llama/Llama-3.1-8B", "unsloth/Meta-Llama-3.1-8B", "NousResearch/Meta-Llama-3.1-8B"),
    "qwen": ("Qwen/Qwen2.5-7B",),
    "mistral": ("mistralai/Mistral-7B-v0.1", "unsloth/mistral-7b"),
}
"""Repositories that hold the tokenizer of a model, the canonical one first; llama's and mistral's are gated."""

_VOCABULARIES = {
    "llama": Vocabulary(size=128_256, eos_token_id=128_001, bos_token_id=128_000),
    "qwen": Vocabulary(size=151_665, eos_token_id=151_643, bos_token_id=None),
    "mistral": Vocabulary(size=32_000, eos_token_id=2, bos_token_id=1),
}
VOCABULARIES: dict[str, Vocabulary] = {
    repo: vocabulary for model, vocabulary in _VOCABULARIES.items() for repo in TOKENIZERS[model]
}
"""What the tokenizer in a repository must be; one that is not in this table is taken as it is."""

UNGATED = {
    "meta-llama/Llama-3.1-8B": "unsloth/Meta-Llama-3.1-8B",
    "mistralai/Mistral-7B-v0.1": "unsloth/mistral-7b",
}
"""A copy that needs no access, to name in the message about a gated repository."""
