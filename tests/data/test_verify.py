"""Every fault of a pair is found and explained; checks that were not done are reported as not done."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron_reference import TEXTS, megatron_pair, write_jsonl
from standins import write_llama3, write_qwen2, write_sentencepiece

from data.encoding.pair import encode
from data.verify import main, verify, write_manifest
from utils.dataset.indexed import load_manifest
from utils.errors import DataError, UnusableError
from utils.provenance.digests import sha256_file


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory, plain_tokenizer: Path) -> Path:
    folder = tmp_path_factory.mktemp("encoded")
    encode(write_jsonl(folder / "in.jsonl", TEXTS), plain_tokenizer, folder / "out")
    return folder


@pytest.fixture
def prefix(encoded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(encoded, tmp_path / "copy")) / "out"


def change_token(prefix: Path, place: int, value: int) -> None:
    tokens = np.memmap(f"{prefix}.bin", dtype=np.uint16, mode="r+")
    tokens[place] = value
    tokens.flush()


def without_manifest(prefix: Path) -> None:
    prefix.with_suffix(".json").unlink()


def change_manifest(prefix: Path, **changes: Any) -> None:
    prefix.with_suffix(".json").write_text(json.dumps({**load_manifest(prefix), **changes}))


@pytest.mark.parametrize("kind", ["plain", "bos", "large"])
def test_a_good_pair_passes_every_check(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    tokenizer = request.getfixturevalue(f"{kind}_tokenizer")
    source = write_jsonl(tmp_path / "in.jsonl", TEXTS)
    manifest = encode(source, tokenizer, tmp_path / "out")
    summary = verify(tmp_path / "out", tokenizer, source)
    assert summary.documents == summary.lines_encoded_again == len(TEXTS)
    assert summary.empty_documents == (0 if kind == "bos" else TEXTS.count(""))
    assert (summary.tokens, summary.dtype) == (manifest["tokens"], manifest["dtype"])
    assert summary.has_manifest
    assert summary.text is not None and summary.text.sampled == summary.documents - summary.empty_documents
    # all but the text with a special token in it, which decoding leaves out, and with BOS the empty ones too
    assert summary.text.kept >= summary.text.sampled - 1


def test_the_summary_is_readable(prefix: Path, plain_tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(prefix), "--tokenizer", str(plain_tokenizer), "--input", str(prefix.with_name("in.jsonl"))]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    tokens = prefix.with_suffix(".bin").stat().st_size // 2
    assert "documents   9 (3 empty)" in said
    text_bytes = sum(len(text.encode()) for text in TEXTS)
    assert f"tokens      {tokens:,} of uint16\n" in said
    assert f"text        {text_bytes:,} bytes in UTF-8, {text_bytes / tokens:.3f} per token\n" in said
    assert f"lengths     mean {tokens / 6:,.1f}, median " in said
    assert "manifest    agrees, digests too" in said and "9 sampled lines have these ids" in said


def test_what_was_not_checked_is_said(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(prefix)]) == 0
    said = capsys.readouterr().out
    assert "not checked: no --tokenizer" in said and "not checked: no --input" in said


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: change_token(p, 1, 5), "bin_sha256 is"),
        (lambda p: change_manifest(p, idx_sha256="0" * 64), "idx_sha256 is 0000"),
        (lambda p: change_manifest(p, documents=8), "documents is 8, the files have 9"),
        (lambda p: change_manifest(p, tokens=1), "tokens is 1"),
        (lambda p: change_manifest(p, dtype="int32"), "dtype is int32, the files have uint16"),
        (lambda p: change_manifest(p, tokenizer={"sha256": "0" * 64}), "the data was encoded with 0000"),
        (lambda p: p.with_suffix(".bin").write_bytes(p.with_suffix(".bin").read_bytes()[:-2]), "shorter than"),
    ],
)
def test_what_the_manifest_contradicts_is_exit_1(
    prefix: Path,
    plain_tokenizer: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], Any],
    message: str,
) -> None:
    damage(prefix)
    assert main([str(prefix), "--tokenizer", str(plain_tokenizer)]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and message in said.err


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (3, 600, r"out\.bin: token 3 is 600, wanted below 600"),
        (-2, 65535, "is 65535, wanted below 600"),
        (-1, 7, "document 7 ends with 7, wanted the end-of-document token 0; it was encoded without --append-eod"),
    ],
)
def test_ids_that_cannot_be_are_found_without_a_manifest(
    prefix: Path, plain_tokenizer: Path, place: int, value: int, message: str
) -> None:
    without_manifest(prefix)
    change_token(prefix, place, value)
    with pytest.raises(DataError, match=message):
        verify(prefix, plain_tokenizer)


def test_ids_are_checked_to_the_last_piece(
    prefix: Path, plain_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.checking.checks.CHUNK_TOKENS", 7)
    monkeypatch.setattr("data.checking.checks.CHUNK_DOCUMENTS", 2)
    monkeypatch.setattr("utils.dataset.indexed._CHUNK_ENTRIES", 2)
    whole = verify(prefix, plain_tokenizer)
    assert whole.lengths.documents == 9 and whole.empty_documents == 3
    without_manifest(prefix)
    for place in (-1, 20):
        change_token(prefix, place, 601)
        with pytest.raises(DataError, match=f"token {place % whole.tokens:,} is 601"):
            verify(prefix, plain_tokenizer)


def test_a_wrong_tokenizer_of_the_same_size_is_found_without_a_manifest(
    prefix: Path, tmp_path: Path, plain_tokenizer: Path
) -> None:
    without_manifest(prefix)
    other = tmp_path / "other"
    shutil.copytree(plain_tokenizer, other)
    content = json.loads((other / "tokenizer.json").read_text())
    # the ids of the 256 bytes in reverse: nothing decodes to what it was
    spelled = sorted((number, piece) for piece, number in content["model"]["vocab"].items() if 1 <= number <= 256)
    content["model"]["vocab"] |= {piece: 257 - number for number, piece in spelled}
    content["model"]["merges"] = []
    (other / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="the pair has another tokenizer"):
        verify(prefix, other)


def test_an_input_with_other_text_or_another_number_of_lines_is_found(prefix: Path, plain_tokenizer: Path) -> None:
    source = prefix.with_name("in.jsonl")
    write_jsonl(source, [*TEXTS[:-2], "y", ""])
    with pytest.raises(DataError, match=r"in\.jsonl: sha256 is .* was encoded from in\.jsonl with"):
        verify(prefix, plain_tokenizer, source)
    without_manifest(prefix)
    with pytest.raises(DataError, match=r"in\.jsonl:8: has other ids than document 7"):
        verify(prefix, plain_tokenizer, source)
    write_jsonl(source, TEXTS[:-1])
    with pytest.raises(DataError, match="got 8 lines, .* has 9 documents"):
        verify(prefix, plain_tokenizer, source)


def test_a_pair_without_manifest_or_tokenizer_cannot_be_verified(
    prefix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without_manifest(prefix)
    assert main([str(prefix)]) == 2
    assert "--tokenizer" in capsys.readouterr().err


def test_a_pair_of_megatron_gets_the_manifest_that_ours_has(tmp_path: Path, plain_tokenizer: Path) -> None:
    megatron_pair(tmp_path / "theirs", TEXTS, plain_tokenizer)
    ours = encode(write_jsonl(tmp_path / "in.jsonl", TEXTS), plain_tokenizer, tmp_path / "ours")
    assert main([str(tmp_path / "theirs"), "--tokenizer", str(plain_tokenizer), "--write-manifest"]) == 0
    # what only the program that read the text can know stays unknown
    unknown = dict.fromkeys(("input", "bytes_of_text", "engine", "bad_lines"))
    theirs = load_manifest(tmp_path / "theirs")
    assert theirs == {**ours, **unknown, "versions": theirs["versions"]}
    assert theirs["versions"].items() <= ours["versions"].items()
    assert main([str(tmp_path / "theirs")]) == 0


def test_a_manifest_keeps_the_dtype_of_the_files(tmp_path: Path, plain_tokenizer: Path) -> None:
    # datatrove and others choose int32 for small vocabularies too
    np.array([5, 6, 0], dtype=np.int32).tofile(tmp_path / "wide.bin")
    from utils.dataset.indexed import write_index

    write_index(tmp_path / "wide.idx", np.dtype(np.int32), [3], [0, 1])
    manifest = write_manifest(tmp_path / "wide", plain_tokenizer, sha256_file(tmp_path / "wide.bin"))
    assert (manifest["dtype"], manifest["bin_bytes"]) == ("int32", 12)
    assert verify(tmp_path / "wide").tokens == 3


HEADER_BYTES = 34


def change_bytes(path: Path, offset: int, content: bytes) -> None:
    whole = bytearray(path.read_bytes())
    whole[offset : offset + len(content)] = content
    path.write_bytes(whole)


def swap_pointers(prefix: Path) -> None:
    whole = prefix.with_suffix(".idx").read_bytes()
    first = HEADER_BYTES + 4 * int.from_bytes(whole[18:26], "little")
    change_bytes(prefix.with_suffix(".idx"), first + 8, whole[first + 16 : first + 24] + whole[first + 8 : first + 16])


def swap_lengths(prefix: Path) -> None:
    whole = prefix.with_suffix(".idx").read_bytes()
    change_bytes(prefix.with_suffix(".idx"), HEADER_BYTES, whole[HEADER_BYTES + 4 : HEADER_BYTES + 8])


def merge_last_documents(prefix: Path) -> None:
    """The text before the last one loses its end: two documents look like one."""
    end = HEADER_BYTES + 12 * 6 + 8 * 8
    change_bytes(prefix.with_suffix(".idx"), end, (5).to_bytes(8, "little"))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def take_index_of_a_longer_pair(prefix: Path) -> None:
    other = prefix.with_name("longer")
    encode(write_jsonl(prefix.with_name("longer.jsonl"), [*TEXTS, "more"]), prefix.parent / "tokenizer", other)
    shutil.copy(other.with_suffix(".idx"), prefix.with_suffix(".idx"))


def take_manifest_of_another_pair(prefix: Path) -> None:
    other = prefix.with_name("other")
    encode(write_jsonl(prefix.with_name("other.jsonl"), TEXTS[::-1]), prefix.parent / "tokenizer", other)
    shutil.copy(other.with_suffix(".json"), prefix.with_suffix(".json"))


# Every damage that was planted: what it is, how it is named without a manifest (None: nobody can see it), and with one
# where its digest sees it first.
DAMAGES: list[tuple[Callable[[Path], Any], str | None, str | None]] = [
    (lambda p: cut(p.with_suffix(".bin"), -2), r"out\.bin: got .* bytes, shorter than", None),
    (lambda p: cut(p.with_suffix(".bin"), 1001), r"out\.bin: got 1,001 bytes, shorter than", None),
    (lambda p: p.with_suffix(".bin").open("ab").write(b"\0\0"), r"out\.bin: got .* bytes, longer than", None),
    (lambda p: change_bytes(p.with_suffix(".idx"), 17, b"\4"), "does not start where the one before it ends", None),
    (lambda p: change_bytes(p.with_suffix(".idx"), 17, b"\7"), "got dtype code 7", None),
    (lambda p: change_bytes(p.with_suffix(".idx"), 17, b"\3"), None, "dtype is uint16, the files have int16"),
    (swap_pointers, "sequence 1 does not start where the one before it ends", None),
    (swap_lengths, "sequence 1 does not start where the one before it ends", None),
    (merge_last_documents, None, "idx_sha256 is"),
    (lambda p: change_bytes(p.with_suffix(".idx"), 34 + 12 * 6 + 8, b"\7"), "document indices do not rise", None),
    (
        lambda p: change_bytes(p.with_suffix(".idx"), p.with_suffix(".idx").stat().st_size - 8, b"\5"),
        "do not rise",
        None,
    ),
    (lambda p: cut(p.with_suffix(".idx"), -8), r"out\.idx: got .* bytes, wanted", None),
    (lambda p: cut(p.with_suffix(".idx"), 20), r"out\.idx: got 20 bytes, wanted at least the 34", None),
    (lambda p: cut(p.with_suffix(".idx"), 0), r"out\.idx: got 0 bytes", None),
    (take_index_of_a_longer_pair, r"out\.bin: got .* bytes, shorter than", None),
    (lambda p: change_token(p, 5, 600), "token 5 is 600, wanted below 600", "bin_sha256 is"),
    (lambda p: change_token(p, -1, 9), "document 7 ends with 9, wanted the end-of-document token 0", "bin_sha256 is"),
    (lambda p: change_token(p, 5, 7), None, "bin_sha256 is"),
    (take_manifest_of_another_pair, None, "idx_sha256 is .* the manifest belongs to another pair"),
]


@pytest.mark.parametrize("number", range(len(DAMAGES)))
def test_every_planted_damage_is_exit_1_with_what_it_is_and_what_to_do(
    prefix: Path, plain_tokenizer: Path, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    damage, without, with_manifest = DAMAGES[number]
    shutil.copytree(plain_tokenizer, prefix.parent / "tokenizer")
    damage(prefix)
    expect_exit_1(prefix, plain_tokenizer, capsys, with_manifest or without)
    if without is not None:
        without_manifest(prefix)
        expect_exit_1(prefix, plain_tokenizer, capsys, without)


def expect_exit_1(prefix: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str], message: str | None) -> None:
    capsys.readouterr()
    assert main([str(prefix), "--tokenizer", str(tokenizer)]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert message is not None and re.search(message, said.err)
    assert re.search("again|another prefix", said.err), "it says what to do"


def test_lines_that_were_skipped_are_skipped_again(tmp_path: Path, plain_tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", TEXTS)
    source.write_bytes(b"oops\n" + source.read_bytes() + b"{}\n")
    encode(source, plain_tokenizer, tmp_path / "out", on_bad_line="skip")
    assert verify(tmp_path / "out", plain_tokenizer, source).lines_encoded_again == len(TEXTS)


def test_several_inputs_are_compared_in_their_order(tmp_path: Path, plain_tokenizer: Path) -> None:
    sources = [write_jsonl(tmp_path / "1.jsonl", TEXTS[:4]), write_jsonl(tmp_path / "2.jsonl", TEXTS[4:])]
    encode(sources, plain_tokenizer, tmp_path / "out")
    assert verify(tmp_path / "out", plain_tokenizer, sources).lines_encoded_again == len(TEXTS)
    with pytest.raises(DataError, match=r"2\.jsonl: sha256 is .* was encoded from 1\.jsonl"):
        verify(tmp_path / "out", plain_tokenizer, sources[::-1])
    with pytest.raises(DataError, match="number of input files is 2, got 1"):
        verify(tmp_path / "out", plain_tokenizer, sources[0])


@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_missing_files_are_exit_2(prefix: Path, capsys: pytest.CaptureFixture[str], ending: str) -> None:
    prefix.with_suffix(ending).unlink()
    assert main([str(prefix)]) == 2
    assert f"out{ending}: no such file" in capsys.readouterr().err


def test_an_input_needs_its_tokenizer(prefix: Path) -> None:
    with pytest.raises(UnusableError, match="--tokenizer"):
        verify(prefix, source=prefix.with_name("in.jsonl"))


CHATS = {
    "qwen": "<|im_start|>user\n{0}<|im_end|>\n<|im_start|>assistant\n{1} <tool_call>{0}</tool_call><|im_end|>\n",
    "llama": "<|begin_of_text|>user\n\n{0}<|reserved_special_token_0|> {1}<|end_of_text|>",
    "first": "[INST]{0}[/INST] {1}</s><s>[INST] {1} [/INST]{0}</s>",
    "always": "[INST]{0}[/INST]{1}</s><s>[INST]{1}[/INST][/INST]{0}</s>",
}


def chat_tokenizer(kind: str, folder: Path) -> Path:
    if kind in ("first", "always"):
        return write_sentencepiece(folder, kind)
    return write_qwen2(folder) if kind == "qwen" else write_llama3(folder)


@pytest.mark.parametrize("kind", CHATS)
def test_special_tokens_in_the_text_are_text(tmp_path: Path, kind: str) -> None:
    tokenizer = chat_tokenizer(kind, tmp_path / "tokenizer")
    texts = [CHATS[kind].format(f"question {number} , please", "an answer.") for number in range(100)]
    source = write_jsonl(tmp_path / "in.jsonl", texts)
    encode(source, tokenizer, tmp_path / "out")
    for _ in ("with a manifest", "without"):
        summary = verify(tmp_path / "out", tokenizer)
        assert summary.text is not None and summary.text.kept == summary.text.sampled == 64
        assert summary.text.excerpt.startswith(CHATS[kind][:6])
        assert verify(tmp_path / "out", tokenizer, source).lines_encoded_again == 64
        tmp_path.joinpath("out.json").unlink(missing_ok=True)
    # another vocabulary with the same special tokens at the same ids
    other = Path(shutil.copytree(tokenizer, tmp_path / "other"))
    content = json.loads((other / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    moved = [piece for piece in vocabulary if not piece.startswith(("<", "["))]
    ids = [vocabulary[piece] for piece in moved]
    content["model"] |= {"vocab": vocabulary | dict(zip(moved, ids[::-1], strict=True)), "merges": []}
    (other / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="the pair has another tokenizer"):
        verify(tmp_path / "out", other)


def test_a_tokenizer_that_loses_text_is_proven_by_the_input(tmp_path: Path, plain_tokenizer: Path) -> None:
    folder = Path(shutil.copytree(plain_tokenizer, tmp_path / "tokenizer"))
    content = json.loads((folder / "tokenizer.json").read_text())
    content["decoder"] = {"type": "Replace", "pattern": {"Regex": "."}, "content": "?"}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    source = write_jsonl(tmp_path / "in.jsonl", [f"some words {number}" for number in range(9)])
    encode(source, folder, tmp_path / "out")
    with pytest.raises(DataError, match="the pair has another tokenizer: .* with --input"):
        verify(tmp_path / "out", folder)
    summary = verify(tmp_path / "out", folder, source)
    assert summary.text is not None and (summary.text.kept, summary.lines_encoded_again) == (0, 9)


LIES: list[tuple[dict[str, Any], str]] = [
    ({"vocab_size": 601}, "vocab_size is 601, the tokenizer has 600"),
    ({"vocab_size": 599}, "vocab_size is 599, the tokenizer has 600"),
    ({"eod_token_id": 7}, "eod_token_id is 7, the tokenizer has 0"),
    ({"eod_token_id": 600}, "eod_token_id 600 does not agree with vocab_size 600"),
    ({"append_eod": False}, "got append_eod False, wanted true"),
    ({"bytes_of_text": 1}, "bytes_of_text is 1, the input has"),
    ({"bytes_of_text": 10**6}, "bytes_of_text 1000000 does not agree with the input"),
    ({"bytes_of_text": None}, "bytes_of_text None does not agree with the input"),
    ({"input": None}, "bytes_of_text .* does not agree with the input None"),
    ({"input": {"name": "in.jsonl", "sha256": "0" * 64, "bytes": 10**6}}, r"in\.jsonl: sha256 is .* with 0000"),
    ({"sequences": 5}, "sequences is 5, the files have 6"),
    ({"bin_bytes": 2}, "bin_bytes is 2"),
    ({"bad_lines": 2}, "bad_lines is 2, the input has 0"),
    ({"versions": {"numpy": "2", "tokenizers": "1"}}, "got versions .* wanted the versions of numpy"),
    ({"versions": {"numpy": "2", "tokenizers": "1", "transformers": "any"}}, "got versions"),
    (
        {"engine": {"name": "gigatoken"}, "versions": {"numpy": "2", "tokenizers": "1", "transformers": "5"}},
        "versions .* does not agree with engine gigatoken",
    ),
]


@pytest.mark.parametrize(("lie", "message"), LIES, ids=[message[:40] for _, message in LIES])
def test_a_manifest_that_contradicts_pair_tokenizer_or_input_is_exit_1(
    prefix: Path, plain_tokenizer: Path, capsys: pytest.CaptureFixture[str], lie: dict[str, Any], message: str
) -> None:
    change_manifest(prefix, **lie)
    arguments = [str(prefix), "--tokenizer", str(plain_tokenizer), "--input", str(prefix.with_name("in.jsonl"))]
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and re.search(message, said.err)


def test_an_input_of_another_size_than_recorded_is_found(prefix: Path, plain_tokenizer: Path) -> None:
    source = prefix.with_name("in.jsonl")
    change_manifest(prefix, input={**load_manifest(prefix)["input"], "bytes": 10**6})
    with pytest.raises(DataError, match=r"in\.jsonl: bytes is \d+, .* was encoded from in\.jsonl with 1000000"):
        verify(prefix, plain_tokenizer, source)


def test_a_bin_of_the_same_size_of_another_text_is_found(prefix: Path, plain_tokenizer: Path) -> None:
    letters = str.maketrans("aeiou", "eioua")
    source = write_jsonl(prefix.with_name("other.jsonl"), [f"{text} tail".translate(letters) for text in TEXTS])
    encode(source, plain_tokenizer, prefix.with_name("other"))
    mine, other = (
        np.fromfile(path.with_suffix(".bin"), dtype=np.uint16) for path in (prefix, prefix.with_name("other"))
    )
    mine[mine != 0] = np.resize(other[other != 0], np.count_nonzero(mine))  # ends of documents stay
    mine.tofile(prefix.with_suffix(".bin"))
    with pytest.raises(DataError, match="bin_sha256 is"):
        verify(prefix)
    # a manifest that was edited to fit
    change_manifest(prefix, bin_sha256=sha256_file(prefix.with_suffix(".bin")))
    with pytest.raises(DataError, match=r"in\.jsonl:\d: has other ids than document"):
        verify(prefix, plain_tokenizer, prefix.with_name("in.jsonl"))


def test_an_input_with_a_byte_order_mark_is_the_input(tmp_path: Path, plain_tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", TEXTS)
    plain = encode(source, plain_tokenizer, tmp_path / "plain")
    source.write_bytes(b"\xef\xbb\xbf" + source.read_bytes())
    marked = encode(source, plain_tokenizer, tmp_path / "marked")
    assert (marked["bin_sha256"], marked["idx_sha256"]) == (plain["bin_sha256"], plain["idx_sha256"])
    assert marked["bytes_of_text"] == plain["bytes_of_text"]
    assert marked["input"] == {"name": "in.jsonl", "sha256": sha256_file(source), "bytes": source.stat().st_size}
    assert verify(tmp_path / "marked", plain_tokenizer, source).lines_encoded_again == len(TEXTS)
