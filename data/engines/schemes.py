"""Tokenizer schemes that the fast engine is proven for: normalizer, pre-tokenizer and BPE switches of tokenizer.json.

A tokenizer has a scheme only if these three match it exactly. `data/engines/guard.py` checks vocabulary, merges and
added tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3_SPLIT = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""tokenizer.json of Llama 3 and 3.1."""
QWEN2_SPLIT = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""tokenizer.json of Qwen 2 and 2.5."""


@dataclass(frozen=True)
class Scheme:
    """Normalisation and splitting of text before BPE merges."""

    name: str
    normalizer: dict[str, Any] | None
    pre_tokenizer: dict[str, Any]

    @property
    def normalizes(self) -> bool:
        """True if the text is changed before it is split."""
        return self.normalizer is not None


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(regex: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


SCHEMES = (
    Scheme("gpt2", None, _byte_level(use_regex=True)),
    Scheme("llama3", None, _split(LLAMA3_SPLIT)),
    Scheme("qwen2", {"type": "NFC"}, _split(QWEN2_SPLIT)),
)
MODEL_SWITCHES = {
    "type": ("BPE",),
    "dropout": (None,),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (None, False),
    "fuse_unk": (None, False, True),  # all 256 bytes have a token, so nothing is unknown
    "unk_token": (None, "<|endoftext|>"),
    "ignore_merges": (None, False, True),
}
"""Allowed values of the BPE model's switches; a model with any other key besides vocab and merges is not supported."""


def scheme_of(tokenizer: dict[str, Any]) -> Scheme | None:
    """Return the scheme of a parsed tokenizer.json, None if it has none."""
    model = tokenizer.get("model") or {}
    for key, value in model.items():
        if key not in ("vocab", "merges") and value not in MODEL_SWITCHES.get(key, ()):
            return None
    if model.get("type") != "BPE" or tokenizer.get("truncation") or tokenizer.get("padding"):
        return None
    found = _without_offsets(tokenizer.get("pre_tokenizer"))
    for scheme in SCHEMES:
        if tokenizer.get("normalizer") == scheme.normalizer and found == _without_offsets(scheme.pre_tokenizer):
            return scheme
    return None


def byte_letters() -> list[str]:
    """Return the character that stands for each byte in a byte-level vocabulary (GPT-2's `bytes_to_unicode`)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]


def _without_offsets(node: Any) -> Any:
    """Remove the option that changes only the offsets of tokens in the text, which are not used here."""
    if isinstance(node, dict):
        return {key: _without_offsets(value) for key, value in node.items() if key != "trim_offsets"}
    return [_without_offsets(child) for child in node] if isinstance(node, list) else node
