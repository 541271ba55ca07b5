"""Text and tokenizers for the benchmark of encoding, made without a network and the same on every machine.

    python -m benchmarks.texts FOLDER [--megabytes 100]

English: invented words of syllables, with the word statistics of English prose (Zipf-Mandelbrot frequencies over
200,000 words, so that new words keep coming; capitals, numbers, punctuation, paragraphs). Mixed: the same with
documents in other scripts between, many with combining marks. The tokenizers have the split and size of Llama 3.1's and
Qwen 2.5's, with merges learnt from the mixed text.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from utils.arguments import Parser, first_line, run

WORDS, WORDS_OF_OTHERS = 200_000, 30_000
EXPONENT, SHIFT = 1.05, 2.7
"""Constants of the Zipf-Mandelbrot law for English (Mandelbrot 1953; 2.7 is the usual fit)."""
TRAINING_BYTES = 10_000_000
OTHER_EVERY = 4
"""One document of this many is in another script."""
ONSETS = list("bcdfghjklmnprstvwyz")
ONSETS += ["br", "ch", "cl", "dr", "fr", "gr", "pl", "pr", "sh", "sp", "st", "str", "th", "tr", ""]
NUCLEI = [*"aeiou", "ai", "ea", "ee", "io", "ou"]
CODAS = ["", "", "", "n", "r", "s", "t", "l", "d", "m", "ck", "ng", "nt", "st"]
SCRIPTS = {
    "vietnamese": ("aăâeêioôơuưyđbcghklmnpqrstvx", "\u0301\u0300\u0309\u0303\u0323"),
    "german": ("abcdefghiklmnoprstuwzäöüß", ""),
    "russian": ("абвгдежзиклмнопрстуфхцчшыьюя", "\u0301"),
    "greek": ("αβγδεζηθικλμνξοπρστυφχψω", "\u0301"),
    "arabic": ("ابتثجحخدذرزسشصضطظعغفقكلمنهوي", "\u064e\u064f\u0650\u0651\u0652"),
    "hebrew": ("אבגדהוזחטיכלמנסעפצקרשת", "\u05b4\u05b8\u05bc"),
    "hindi": ("अआइईउकखगघचजटडतदनपबमयरलवसह", "\u093e\u093f\u0940\u0947\u0941\u094d\u0902"),
    "thai": ("กขคงจชดตทนบปพมยรลวสหอ", "\u0e31\u0e34\u0e35\u0e48\u0e49\u0e38"),
    "korean": ("".join(map(chr, range(0xAC00, 0xD7A4, 7))), ""),
    "chinese": ("".join(map(chr, range(0x4E00, 0x6E00))), ""),
    "japanese": ("".join(map(chr, [*range(0x3041, 0x3097), *range(0x30A1, 0x30F7)])), "\u3099"),
}


def write_text(path: Path, megabytes: float, *, is_mixed: bool, seed: int = 13) -> None:
    """Write JSON lines with about this many MB of text."""
    with path.open("w", encoding="utf8") as file:
        for text in some_documents(megabytes * 1e6, seed, is_mixed=is_mixed):
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def some_documents(size_bytes: float, seed: int, *, is_mixed: bool) -> Iterator[str]:
    """Yield documents with about this many bytes of text."""
    for text in documents(seed, is_mixed=is_mixed):
        yield text
        size_bytes -= len(text.encode("utf8"))
        if size_bytes <= 0:
            return


def documents(seed: int, *, is_mixed: bool) -> Iterator[str]:
    """Yield documents of about 4,000 bytes, without end."""
    generator = np.random.Generator(np.random.PCG64(seed))
    english = Words(generator, WORDS, ONSETS, NUCLEI, CODAS)
    scripts = []
    if is_mixed:
        for letters, marks in SCRIPTS.values():
            # marks of a script follow its letters
            parts = list(letters), ["", *letters], ["", "", *marks]
            scripts.append(Words(generator, WORDS_OF_OTHERS, *parts))
    for number in itertools.count(1):
        words = english
        if scripts and number % OTHER_EVERY == 0:
            words = scripts[number // OTHER_EVERY % len(scripts)]
        yield words.prose(max(20, int(generator.lognormal(6.2, 0.7))))


class Words:
    """Invented words of a script and prose of them."""

    def __init__(self, generator: np.random.Generator, count: int, *parts_of_syllables: list[str]) -> None:
        self._generator = generator
        parts = [np.array(part, dtype=object) for part in parts_of_syllables]
        words = np.full(count, "", dtype=object)
        # frequent words are short: the number of syllables grows with the rank
        ranks = np.arange(count)
        syllables = 1 + (ranks > 300) + (ranks > 10_000) * generator.integers(0, 3, count)
        for number in range(1, 5):
            longer = np.flatnonzero(syllables >= number)
            for part in parts:
                words[longer] += part[generator.integers(0, len(part), len(longer))]
        self._words = words
        chances = 1 / (ranks + 1 + SHIFT) ** EXPONENT
        self._sums = np.cumsum(chances / chances.sum())

    def prose(self, count: int) -> str:
        """Return about `count` words in sentences and paragraphs, with some numbers, quotes and names."""
        draws = self._generator.random((2, count))
        words = self._words[np.minimum(np.searchsorted(self._sums, draws[0]), len(self._words) - 1)].tolist()
        shown, begins = [], True
        for word, draw in zip(words, draws[1].tolist(), strict=True):
            if 0.5 < draw < 0.51:
                shown.append(str(int(draw * 1e6) % 2100))
                begins = False
                continue
            if begins or draw > 0.97:
                word = word.capitalize()  # noqa: PLW2901
            begins = draw < 0.06
            if draw < 0.05:
                word += "."  # noqa: PLW2901
            elif begins:
                word += "?\n\n"  # noqa: PLW2901
            elif draw < 0.12:
                word += ","  # noqa: PLW2901
            elif draw < 0.13:
                word += "'s"  # noqa: PLW2901
            shown.append(word)
        return " ".join(shown)


def write_tokenizer(folder: Path, kind: str) -> None:
    """Write a tokenizer of the size and scheme of Llama 3.1 (`llama3`) or Qwen 2.5 (`qwen2`), as transformers 4 did."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = Tokenizer(models.BPE())
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLITS[kind]), behavior="isolated")
    bytes_as_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_as_letters])
    tokenizer.decoder = decoders.ByteLevel()
    entries, specials, config = SHAPES[kind]
    trainer = trainers.BpeTrainer(
        vocab_size=entries, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(some_documents(TRAINING_BYTES, 1, is_mixed=True), trainer)
    # after training, so that their numbers follow those of the vocabulary
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    if kind == "llama3":
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{specials[0]} $A", special_tokens=[(specials[0], tokenizer.token_to_id(specials[0]))]
        )
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {str(number): token.__getstate__() for number, token in tokenizer.get_added_tokens_decoder().items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "added_tokens_decoder": added}))


LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SPLITS = {"llama3": LLAMA3_SPLIT, "qwen2": LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")}
"""Regular expressions of tokenizer.json of Llama 3.1 and Qwen 2.5."""
SHAPES: dict[str, tuple[int, list[str], dict[str, Any]]] = {
    "llama3": (
        128_000,
        ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_special_token_{n}|>" for n in range(254))],
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|end_of_text|>",
        },
    ),
    "qwen2": (
        151_643,
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
         "bos_token": None, "unk_token": None, "add_prefix_space": False, "errors": "replace"},
    ),
}  # fmt: skip
"""Entries without special tokens, special tokens and settings of each tokenizer."""


OPTIONS: dict[str, dict[str, Any]] = {
    "folder": {"type": Path, "help": "new folder for english.jsonl, mixed.jsonl and the tokenizers"},
    "--megabytes": {"type": float, "default": 100, "help": "MB of each text (default: %(default)s)"},
}


def main(arguments: list[str] | None = None) -> int:
    """Write texts and tokenizers of all cases into a folder; see docs/hardware.md."""
    parser = Parser(OPTIONS, prog="python -m benchmarks.texts", description=first_line(__doc__))
    options = parser.parse_args(arguments)
    for kind in SHAPES:
        write_tokenizer(options.folder / kind, kind)
    for name in ("english", "mixed"):
        write_text(options.folder / f"{name}.jsonl", options.megabytes, is_mixed=name == "mixed")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
