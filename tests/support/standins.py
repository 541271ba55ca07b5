"""Small tokenizers with the exact shape of Llama 3.1, Qwen 2.5, GPT-2 and Mistral 7B, and texts in every script."""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import parquet
from tokenizers import (
    AddedToken,
    Regex as Pattern,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

# the published patterns
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
BLOCK = 64


def scripts(step: int = BLOCK) -> Iterator[str]:
    """Yield texts with every code point except surrogates up to the last assigned block, `step` code points in each,
    alone and among letters, spaces, digits and punctuation."""
    for start in (*range(0, 0x34000, step), *range(0xE0000, 0xE0200, step)):
        characters = [chr(point) for point in range(start, start + step) if not 0xD800 <= point < 0xE000]
        yield "".join(characters)
        yield " ".join(f"a{character}b {character} 1{character}2 '{character}." for character in characters)


def write_llama3(folder: Path, vocabulary_size: int = 1500) -> Path:
    """Write a tokenizer with Llama 3's split, special tokens and beginning of text."""
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>"]
    tokenizer = _trained(LLAMA3_SPLIT, None, specials, vocabulary_size)
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]
    )
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    config = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    return _write(folder, tokenizer, {**config, "tokenizer_class": "PreTrainedTokenizerFast"}, ignore_merges=True)


def write_qwen2(folder: Path, vocabulary_size: int = 1500) -> Path:
    """Write a tokenizer with Qwen 2.5's split, NFC, special tokens and settings."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    tokenizer = _trained(QWEN2_SPLIT, normalizers.NFC(), specials, vocabulary_size)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    added = json.loads(tokenizer.to_str())["added_tokens"]
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "unk_token": None,
        "add_bos_token": False,
        "add_prefix_space": False,
        "split_special_tokens": False,
        "errors": "replace",
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "added_tokens_decoder": {str(token.pop("id")): token for token in added},
    }
    return _write(folder, tokenizer, config)


def write_gpt2(folder: Path, vocabulary_size: int = 1500) -> Path:
    """Write a tokenizer with GPT-2's split and its one special token, which the vocabulary contains."""
    tokenizer = _trained(None, None, [], vocabulary_size)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False)
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"]["<|endoftext|>"] = vocabulary_size
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=True)])
    tokens = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    config = {**tokens, "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
    return _write(folder, tokenizer, config)


def write_mistral(folder: Path, vocabulary_size: int = 1500) -> Path:
    """Write a tokenizer with the vocabulary of SentencePiece (bytes as fallback), a normalizer for spaces, `<s>`."""
    tokenizer = _of_sentencepiece(["<unk>", "<s>", "</s>"], None, _training_texts(), vocabulary_size)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "legacy": True}
    return _write(folder, tokenizer, {**OF_SENTENCEPIECE, **config, "sp_model_kwargs": {}, "pad_token": None})


def write_sentencepiece(folder: Path, prepend: str, vocabulary_size: int = 600) -> Path:
    """Write a tokenizer of the kind of Llama 2 and Mistral: `prepend` is "always" (also after each special token, as in
    the older form) or "first" (before the text only), with `<s>` before each text and `[INST]` in it."""
    specials, texts = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], (argparse_words() * 3).split("\n")
    tokenizer = _of_sentencepiece(specials, prepend, texts, vocabulary_size)
    spaces = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*spaces, decoders.Strip(content=" ", left=1, right=0)])
    return _write(folder, tokenizer, {**OF_SENTENCEPIECE, "tokenizer_class": "PreTrainedTokenizerFast"})


OF_SENTENCEPIECE = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def _of_sentencepiece(specials: list[str], prepend: str | None, texts: Iterable[str], size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    split = pre_tokenizers.Metaspace(prepend_scheme=prepend or "always", split=prepend is None)
    tokenizer.pre_tokenizer = split
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=pieces, show_progress=False, max_token_length=12)
    tokenizer.train_from_iterator(texts, trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in specials]
    content["pre_tokenizer"] = content["pre_tokenizer"] if prepend else None
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def changed(source: Path, folder: Path, change: Callable[[Any, Any], Any]) -> Path:
    """Copy a tokenizer to a new folder and change the content of its configuration and of its tokenizer.json there."""
    shutil.copytree(source, folder)
    config, content = (json.loads((source / name).read_text()) for name in ("tokenizer_config.json", "tokenizer.json"))
    change(config, content)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def _trained(split: str | None, normalizer: Any, specials: list[str], vocabulary_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    parts = [] if split is None else [pre_tokenizers.Split(Pattern(split), behavior="isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*parts, whole]) if parts else whole
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_training_texts(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return tokenizer


def _training_texts() -> Iterator[str]:
    yield from (unicodedata.__doc__ or "", sys.copyright, json.__doc__ or "", argparse_words())
    yield from (text for text in list(scripts())[: 0x600 // BLOCK * 2])


def argparse_words() -> str:
    """Return some English text that every machine has."""
    return (argparse.__doc__ or "") * 3 + (textwrap.__doc__ or "") + (Path.__doc__ or "")


def _write(folder: Path, tokenizer: Tokenizer, config: dict[str, Any], *, ignore_merges: bool = False) -> Path:
    folder.mkdir(parents=True)
    content = json.loads(tokenizer.to_str())
    content["model"]["ignore_merges"] = ignore_merges
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 131072, **config}))
    return folder


# Lines of JSON of every kind, good and hostile, and what the library json alone makes of them.

MARK = b"\xef\xbb\xbf"
GOOD = b'{"text": "fine words"}'
NEARLY_GOOD = [
    *(
        b"",
        b"\r",
        b" ",
        b"{}",
        b"null",
        b"[]",
        b'"text"',
        b'["text"]',
        b'{"Text": "a"}',
        b'{"text": "a"} {"text": "b"}',
    ),
    *(b'{"text": null}', b'{"text": 1}', b'{"text": {"text": "a"}}', b'{"text": "\\ud800"}', b'{"text": "\xff"}'),
    *(b'{"text": "\\ud83d\\ude42"}', b'{"text": "\xe2\x82', b'{"text": "cut', b"\x00", b"\x1f\x8b\x08", b"[" * 5000),
    *(b'{"text": "\\u0000"}', b'{"text": "tab\tand nul\x00"}', b'{"text": "a", "text": "b"}', b'  {"text" : "a" }  '),
    *(b'{"a": NaN, "text": "b"}', b'{"a": "\\ud800", "text": "b"}', b'{"n": 1e999, "m": -Infinity, "text": "b"}'),
    *(b'{"text": "' + b"long " * 3000 + b'"}', MARK + GOOD, MARK),
]
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("text"), inner, max_size=3),
    max_leaves=8,
)
_lines = st.one_of(
    st.just(GOOD),
    st.sampled_from(NEARLY_GOOD),
    st.text(max_size=20).map(lambda text: json.dumps({"text": text}).encode()),
    st.text(max_size=20).map(lambda text: json.dumps({"text": text}, ensure_ascii=False).encode("utf8", "replace")),
    st.binary(max_size=60),
    _values.map(lambda value: json.dumps(value).encode()),
    # JSON with a piece changed
    st.builds(
        lambda text, place, piece: (whole := json.dumps({"text": text}).encode())[:place] + piece + whole[place + 1 :],
        st.text(max_size=20),
        st.integers(0, 40),
        st.binary(max_size=3) | st.sampled_from([b"\\ud800", b"\\udc00", b"\xed\xa0\x80", b"\x00", b"\r", b"\x7f"]),
    ),
).map(lambda line: line.replace(b"\n", b" "))
contents = st.builds(
    lambda lines, ends, last: b"".join(line + end for line, end in zip(lines, ends, strict=False)) + last,
    st.lists(_lines, max_size=6),
    st.lists(st.sampled_from([b"\n", b"\n", b"\r\n"]), min_size=6, max_size=6),
    st.just(b"") | _lines,
)
"""Strategy: the bytes of a file."""


def texts_by_json(content: bytes) -> list[str | None]:
    """Return the text of each line of a file by json alone, None for a bad one."""
    content = content.removeprefix(MARK)
    return [_text(line) for line in (content.removesuffix(b"\n").split(b"\n") if content else [])]


def _text(line: bytes) -> str | None:
    try:
        text = json.loads(line.decode("utf8"))["text"]
        return text if isinstance(text, str) and text.encode("utf8") is not None else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def write_jsonl(path: Path, texts: list[str]) -> Path:
    """Write one document a line."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf8")
    return path


def parquet_of(values: Any, name: str = "text", **options: Any) -> bytes:
    """Return a Parquet file with these values in one column, and numbers in another."""
    sink = io.BytesIO()
    parquet.write_table(pa.table({"id": range(len(values)), name: values}), sink, **options)
    return sink.getvalue()
