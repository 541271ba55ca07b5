"""Every fault of a pair is found and explained; checks that were not done are reported as not done."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from standins import MARK, changed, write_jsonl, write_llama3, write_qwen2, write_sentencepiece
from toydata import TEXTS, megatron_pair, write_pair

from data import verify
from data.checking import pair_summary, plot

HEADER_BYTES = 34


@pytest.fixture
def prefix(tmp_path: Path, plain_tokenizer: Path, encoded) -> Path:
    """A pair of ten texts beside its input `in.jsonl` and a copy of its tokenizer."""
    shutil.copytree(plain_tokenizer, tmp_path / "tokenizer")
    encoded(write_jsonl(tmp_path / "in.jsonl", TEXTS), tmp_path / "tokenizer", tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def accepted(commands) -> Callable[..., str]:
    """Return what verifies a good pair and gives back the summary."""
    return lambda prefix, *more: commands.run(verify.main, prefix, *more).out


def change_manifest(prefix: Path, **changes: Any) -> None:
    path = prefix.with_suffix(".json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_bytes(path: Path, offset: int, content: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[offset : offset + len(content)] = content
    path.write_bytes(whole)


def token(place: int, value: int) -> Callable[[Path, Path], None]:
    return lambda data, _: change_bytes(data, 2 * place % data.stat().st_size, value.to_bytes(2, "little"))


def swap_pointers(_: Path, index: Path) -> None:
    whole = index.read_bytes()
    first = HEADER_BYTES + 4 * int.from_bytes(whole[18:26], "little")
    change_bytes(index, first + 8, whole[first + 16 : first + 24] + whole[first + 8 : first + 16])


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


# What was planted; how it is named without a manifest (None: nobody can see it), and with one where that sees it first.
DAMAGES: dict[str, tuple[Callable[[Path, Path], Any], str | None, str | None]] = {
    "cut by a token": (lambda data, index: cut(data, -2), r"out\.bin: got .* bytes, shorter than", None),
    "cut in a token": (lambda data, index: cut(data, 1001), r"out\.bin: got 1,001 bytes, shorter than", None),
    "a token more": (lambda data, index: data.open("ab").write(b"\0\0"), r"out\.bin: got .* bytes, longer than", None),
    "int32": (lambda data, index: change_bytes(index, 17, b"\4"), "does not start where the one before it ends", None),
    "an unknown type": (lambda data, index: change_bytes(index, 17, b"\7"), "got dtype code 7", None),
    "int16": (lambda data, index: change_bytes(index, 17, b"\3"), None, "dtype is uint16, the files have int16"),
    "swapped pointers": (swap_pointers, "sequence 1 does not start where the one before it ends", None),
    "another length": (
        lambda data, index: change_bytes(index, HEADER_BYTES, index.read_bytes()[HEADER_BYTES + 4 :][:4]),
        "sequence 1 does not start where the one before it ends",
        None,
    ),
    # the text before the last one loses its end: two documents look like one
    "merged documents": (
        lambda data, index: change_bytes(index, HEADER_BYTES + 12 * 6 + 8 * 8, b"\5"),
        None,
        "idx_sha256 is",
    ),
    "a first index": (lambda data, index: change_bytes(index, 34 + 12 * 6 + 8, b"\7"), "indices do not rise", None),
    "a last index": (lambda data, index: change_bytes(index, index.stat().st_size - 8, b"\5"), "do not rise", None),
    "cut index": (lambda data, index: cut(index, -8), r"out\.idx: got .* bytes, wanted", None),
    "cut header": (lambda data, index: cut(index, 20), r"out\.idx: got 20 bytes, wanted at least the 34", None),
    "empty index": (lambda data, index: cut(index, 0), r"out\.idx: got 0 bytes", None),
    "a first id too large": (token(5, 600), "token 5 is 600, wanted below 600", "bin_sha256 is"),
    "an id of a later piece": (token(20, 601), "token 20 is 601, wanted below 600", "bin_sha256 is"),
    "a last id too large": (token(-2, 65535), "is 65535, wanted below 600", "bin_sha256 is"),
    "no end of document": (token(-1, 9), "document 7 ends with 9, wanted .* --append-eod", "bin_sha256 is"),
    "another id": (token(5, 7), None, "bin_sha256 is"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_every_planted_damage_is_exit_1_with_what_it_is_and_what_to_do(
    prefix, commands, accepted, monkeypatch, name
) -> None:
    monkeypatch.setattr("data.checking.checks.CHUNK_TOKENS", 7)
    monkeypatch.setattr("utils.dataset.indexed._CHUNK_ENTRIES", 2)
    given = ("--tokenizer", prefix.with_name("tokenizer"))
    assert "documents   9 (3 empty)" in accepted(prefix, *given)
    damage, without, with_manifest = DAMAGES[name]
    damage(prefix.with_suffix(".bin"), prefix.with_suffix(".idx"))
    for message in (with_manifest or without, without):
        if message is not None:
            error = commands.error(verify.main, prefix, *given)
            assert re.search(message, error) and re.search("again|another prefix", error)
        prefix.with_suffix(".json").unlink(missing_ok=True)


SOURCE = {"name": "in.jsonl", "sha256": "0" * 64, "bytes": 10**6}
LIES: list[tuple[dict[str, Any], str]] = [
    ({"idx_sha256": "0" * 64}, "idx_sha256 is 0000.* the manifest belongs to another pair"),
    ({"documents": 8}, "documents is 8, the files have 9"),
    ({"tokens": 1}, "tokens is 1"),
    ({"dtype": "int32"}, "dtype is int32, the files have uint16"),
    ({"tokenizer": {"sha256": "0" * 64}}, "the data was encoded with 0000"),
    ({"vocab_size": 599}, "vocab_size is 599, the tokenizer has 600"),
    ({"eod_token_id": 7}, "eod_token_id is 7, the tokenizer has 0"),
    ({"eod_token_id": 600}, "eod_token_id 600 does not agree with vocab_size 600"),
    ({"append_eod": False}, "append_eod: got False, wanted true"),
    ({"bytes_of_text": 1}, "bytes_of_text is 1, the input has"),
    ({"bytes_of_text": 10**6}, "bytes_of_text 1000000 does not agree with the input"),
    ({"input": None}, "bytes_of_text .* does not agree with the input None"),
    ({"input": SOURCE}, r"in\.jsonl: sha256 is .* with 0000"),
    ({"input": "of another size"}, r"in\.jsonl: bytes is \d+, .* was encoded from in\.jsonl with 1000000"),
    ({"sequences": 5}, "sequences is 5, the files have 6"),
    ({"bin_bytes": 2}, "bin_bytes is 2"),
    ({"bad_lines": 2}, "bad_lines is 2, the input has 0"),
    ({"versions": {"numpy": "2", "tokenizers": "1"}}, "versions: got .* wanted the versions of numpy"),
    ({"versions": {"numpy": "2", "tokenizers": "1", "transformers": "any"}}, "versions: got"),
]


@pytest.mark.parametrize(("lie", "message"), LIES, ids=[message[:40] for _, message in LIES])
def test_a_manifest_that_contradicts_pair_tokenizer_or_input_is_exit_1(prefix, commands, lie, message) -> None:
    source = prefix.with_name("in.jsonl")
    if lie.get("input") == "of another size":
        lie = {"input": SOURCE | {"sha256": hashlib.sha256(source.read_bytes()).hexdigest()}}
    change_manifest(prefix, **lie)
    error = commands.error(verify.main, prefix, "--tokenizer", prefix.with_name("tokenizer"), "--input", source)
    assert re.search(message, error)


@pytest.mark.parametrize("kind", ["plain", "bos", "large"])
def test_a_good_pair_passes_every_check_and_its_summary_is_readable(
    tmp_path, tokenizers, encoded, accepted, kind
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", TEXTS)
    made = encoded(source, tokenizers[kind], tmp_path / "out")
    more = ("--tokenizer", tokenizers[kind], "--input", source, "--plot", tmp_path / "out.png")
    said = accepted(tmp_path / "out", *more)
    empty = 0 if kind == "bos" else TEXTS.count("")
    tokens, filled = made["tokens"], len(TEXTS) - empty
    size = sum(len(text.encode()) for text in TEXTS)
    for line in (
        f"documents   {len(TEXTS)} ({empty} empty)\n",
        f"tokens      {tokens:,} of {made['dtype']}\n",
        f"text        {size:,} bytes in UTF-8, {size / tokens:.3f} per token\n",
        f"lengths     mean {tokens / filled:,.1f}, median ",
        "manifest    agrees, digests too",
        "9 sampled lines have these ids",
        f" of {filled} documents",
    ):
        assert line in said
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    said = accepted(tmp_path / "out")
    assert "not checked: no --tokenizer" in said and "not checked: no --input" in said


INPUTS = [
    ([*TEXTS[:-2], "y", ""], True, r"in\.jsonl: sha256 is .* was encoded from in\.jsonl with"),
    ([*TEXTS[:-2], "y", ""], False, r"in\.jsonl:8: has other ids than document 7"),
    (TEXTS[:-1], False, "got 8 lines, .* has 9 documents"),
]


@pytest.mark.parametrize(("texts", "has_manifest", "message"), INPUTS)
def test_an_input_with_other_text_or_another_number_of_lines_is_found(
    prefix, commands, accepted, texts, has_manifest, message
) -> None:
    given = ("--tokenizer", prefix.with_name("tokenizer"), "--input", prefix.with_name("in.jsonl"))
    if not has_manifest:
        prefix.with_suffix(".json").unlink()
    assert "9 sampled lines have these ids" in accepted(prefix, *given)
    write_jsonl(prefix.with_name("in.jsonl"), texts)
    assert re.search(message, commands.error(verify.main, prefix, *given))


def test_several_inputs_with_marks_and_skipped_lines_are_compared_in_their_order(
    tmp_path, plain_tokenizer, encoded, commands, accepted
) -> None:
    sources = [write_jsonl(tmp_path / "1.jsonl", TEXTS[:4]), write_jsonl(tmp_path / "2.jsonl", TEXTS[4:])]
    sources[0].write_bytes(MARK + sources[0].read_bytes() + b"{}\n")
    encoded(sources, plain_tokenizer, tmp_path / "out", "--on-bad-line", "skip")
    given = ("--tokenizer", plain_tokenizer, "--input")
    assert "9 sampled lines have these ids" in accepted(tmp_path / "out", *given, *sources)
    error = commands.error(verify.main, tmp_path / "out", *given, *sources[::-1])
    assert re.search(r"2\.jsonl: sha256 is .* was encoded from 1\.jsonl", error)
    error = commands.error(verify.main, tmp_path / "out", *given, sources[0])
    assert "number of input files is 2, got 1" in error


@pytest.mark.parametrize(
    ("ending", "more", "message"),
    [
        (".bin", (), "out.bin: no such file"),
        (".idx", (), "out.idx: no such file"),
        (".json", (), "--tokenizer"),  # the vocabulary is unknown
        ("", ("--input", "in.jsonl"), "--tokenizer"),
        ("", ("--write-manifest",), "--tokenizer"),
    ],
)
def test_what_is_not_there_is_exit_2(prefix, commands, monkeypatch, ending, more, message) -> None:
    monkeypatch.chdir(prefix.parent)
    if ending:
        prefix.with_suffix(ending).unlink()
    assert message in commands.error(verify.main, prefix, *more, wanted=2)


def test_a_pair_of_megatron_gets_the_manifest_that_ours_has(prefix: Path, accepted) -> None:
    theirs = prefix.with_name("theirs")
    megatron_pair(theirs, TEXTS, prefix.with_name("tokenizer"))
    accepted(theirs, "--tokenizer", prefix.with_name("tokenizer"), "--write-manifest")
    # what only the program that read the text can know stays unknown
    unknown = dict.fromkeys(("input", "bytes_of_text", "engine", "bad_lines"))
    ours = json.loads(prefix.with_suffix(".json").read_text())
    assert json.loads(theirs.with_suffix(".json").read_text()) == ours | unknown
    accepted(theirs)


def test_a_manifest_keeps_the_dtype_of_the_files(tmp_path: Path, plain_tokenizer: Path, accepted) -> None:
    # datatrove and others choose int32 for small vocabularies too
    wide = write_pair(tmp_path / "wide", [[5, 6, 0]], np.int32)
    accepted(wide, "--tokenizer", plain_tokenizer, "--write-manifest")
    manifest = json.loads(wide.with_suffix(".json").read_text())
    assert (manifest["dtype"], manifest["bin_bytes"]) == ("int32", 12) and "3 of int32" in accepted(wide)


CHATS = {
    "qwen": "<|im_start|>user\n{0}<|im_end|>\n<|im_start|>assistant\n{1} <tool_call>{0}</tool_call><|im_end|>\n",
    "llama": "<|begin_of_text|>user\n\n{0}<|reserved_special_token_0|> {1}<|end_of_text|>",
    "first": "[INST]{0}[/INST] {1}</s><s>[INST] {1} [/INST]{0}</s>",
    "always": "[INST]{0}[/INST]{1}</s><s>[INST]{1}[/INST][/INST]{0}</s>",
}


@pytest.mark.parametrize("kind", CHATS)
def test_special_tokens_in_the_text_are_text(tmp_path: Path, commands, encoded, accepted, kind: str) -> None:
    if kind == "qwen":
        tokenizer = write_qwen2(tmp_path / "tokenizer")
    elif kind == "llama":
        tokenizer = write_llama3(tmp_path / "tokenizer")
    else:
        tokenizer = write_sentencepiece(tmp_path / "tokenizer", kind)
    texts = [CHATS[kind].format(f"question {number} , please", "an answer.") for number in range(100)]
    source = write_jsonl(tmp_path / "in.jsonl", texts)
    encoded(source, tokenizer, tmp_path / "out")
    for _ in ("with a manifest", "without"):
        said = accepted(tmp_path / "out", "--tokenizer", tokenizer, "--input", source)
        assert "64 of 64 documents" in said and "64 sampled lines" in said and CHATS[kind][:6] in said
        (tmp_path / "out.json").unlink(missing_ok=True)
    error = commands.error(verify.main, tmp_path / "out", "--tokenizer", changed(tokenizer, tmp_path / "other", turned))
    assert "the pair has another tokenizer" in error


def turned(_: Any, content: Any) -> None:
    """Make it another vocabulary with the same special tokens at the same ids."""
    vocabulary = content["model"]["vocab"]
    moved = [piece for piece in vocabulary if not piece.startswith(("<", "["))]
    vocabulary |= dict(zip(moved, [vocabulary[piece] for piece in moved[::-1]], strict=True))
    content["model"]["merges"] = []


def test_a_tokenizer_that_loses_text_is_proven_by_the_input(
    tmp_path, plain_tokenizer, commands, encoded, accepted
) -> None:
    decoder = {"type": "Replace", "pattern": {"Regex": "."}, "content": "?"}
    folder = changed(plain_tokenizer, tmp_path / "tokenizer", lambda _, content: content.update(decoder=decoder))
    source = write_jsonl(tmp_path / "in.jsonl", [f"some words {number}" for number in range(9)])
    encoded(source, folder, tmp_path / "out")
    error = commands.error(verify.main, tmp_path / "out", "--tokenizer", folder)
    assert re.search("the pair has another tokenizer: .* with --input", error)
    said = accepted(tmp_path / "out", "--tokenizer", folder, "--input", source)
    assert "round trip  0 of 9 documents" in said and "9 sampled lines have these ids" in said


def test_a_bin_of_another_text_whose_manifest_was_edited_to_fit_is_found(prefix: Path, commands) -> None:
    tokens = np.fromfile(prefix.with_suffix(".bin"), dtype=np.uint16)
    tokens[(tokens > 0) & (tokens < 500)] += 1  # ends of documents stay
    tokens.tofile(prefix.with_suffix(".bin"))
    change_manifest(prefix, bin_sha256=hashlib.sha256(tokens.tobytes()).hexdigest())
    given = ("--tokenizer", prefix.with_name("tokenizer"), "--input", prefix.with_name("in.jsonl"))
    assert re.search(r"in\.jsonl:\d: has other ids than document", commands.error(verify.main, prefix, *given))


# Lengths of documents are counted exactly; their plot shows every document once, with units and a caption.

LIMIT = 1 << 20
"""All longer documents are counted as one length."""


def lengths_of(*pieces: list[int]) -> pair_summary.Lengths:
    lengths = pair_summary.Lengths()
    for piece in pieces:
        lengths.add(np.array(piece, dtype=np.int64))
    return lengths


def summary_of(lengths: list[int]) -> pair_summary.PairSummary:
    return pair_summary.PairSummary(
        documents=len(lengths),
        empty_documents=lengths.count(0),
        tokens=sum(lengths),
        bytes_of_text=4 * sum(lengths),
        dtype="uint16",
        vocabulary_size=4096,
        largest_id=4000,
        eod=0,
        lengths=lengths_of(lengths),
        bin_sha256="0" * 64,
        has_manifest=True,
        text=None,
        lines_encoded_again=None,
    )


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 100))), st.floats(0.01, 1))
def test_counts_and_quantiles_are_those_of_the_list(pieces: list[list[int]], share: float) -> None:
    values = [value for piece in pieces for value in piece]
    filled = sorted(value for value in values if value)
    lengths = lengths_of(*pieces)
    assert lengths.documents == len(values) and lengths.empty == values.count(0)
    assert lengths.longest == max(values, default=0)
    quantile = None
    for number, value in enumerate(filled, 1):
        if number >= share * len(filled):
            quantile = value
            break
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


def test_each_filled_document_is_in_one_bar_with_units_a_median_and_a_caption() -> None:
    figure = plot.draw(summary_of([0, 3, 5, 5, 40, 41, 1000]), "c4 $x$")
    axes = figure.axes[0]
    assert sum(bar.get_height() for bar in axes.patches) == 6
    assert "tokens" in axes.get_xlabel() and axes.get_ylabel() == "documents" and axes.get_ylim()[0] == 0
    assert [text.get_text() for text in axes.texts] == ["median 5"]
    said = figure.texts[0].get_text().replace("\n", " ")
    assert "7 documents (1 empty, not drawn), 1,094 tokens, 4.00 bytes of text per token" in said


@pytest.mark.parametrize("lengths", [[1], [7] * 5, [4, 33_927], [1, LIMIT], [1000, LIMIT + 5]])
def test_any_lengths_can_be_drawn_and_nothing_is_cut(lengths: list[int]) -> None:
    figure = plot.draw(summary_of(lengths), "/a/folder" * 20 + "/mine")
    FigureCanvasAgg(figure).draw()
    axes, inside = figure.axes[0], figure.bbox
    for text in (*figure.texts, axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *axes.get_xticklabels()):
        box = text.get_window_extent()
        assert inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1, text


def test_a_name_is_no_formula(tmp_path: Path) -> None:
    plot.write_plot(tmp_path / "1.png", summary_of([3, 5]), r"costs $\frac$")  # as a formula it ends in an error
    assert (tmp_path / "1.png").read_bytes().startswith(b"\x89PNG")
