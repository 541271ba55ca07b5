"""Both engines give the ids of transformers for any text; the fast one never gets unproven input."""

from __future__ import annotations

import hashlib
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standins import scripts, write_llama3, write_qwen2
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from data.engines import fast
from data.engines import guard as guard_module
from data.engines.backend import Backend, load_backend
from data.engines.engines import Engine, EngineSpec, choose
from data.engines.guard import Guard, guard_of, stored, why_unusable
from data.engines.schemes import SCHEMES
from utils.errors import UnusableError

needs_gigatoken = pytest.mark.skipif(why_unusable() is not None, reason=str(why_unusable()))
TRICKY = [
    "",
    " ",
    "\n",
    "\r\n \n\n  x",
    "'s 'S 'T 'LL 're 'RE x's x'S '\u017f a'\u017f '\u212a",
    "12345678 1 22 333 \u0664\u0665\u0666\u0667 \u2167\u2168",
    "<|begin_of_text|>",
    "a<|end_of_text|> <|endoftext|>b <|im_start|><|im_end|>",
    "<|end_of_text <|endoftext| > <tool_call>x</tool_call> </tool_call",
    "e\u0301 \u00e9 \u1100\u1161\u11a8 \uac01 A\u030a \u212b \u0344 \u0958 \ufb1d \u2126",
    "\u0916\u093c \u0e40\u0e01\u0e48 \u05e9\u05c1\u05d0 \u0627\u064e\u0654",
    "\u088f\u0c5c\ua7ce\U00010940\U000323b0 \u0897\u1adb\U0001e6e3",
    "\x00\x01\x7f\x80\x85\xa0\u2028\u3000\ufeff\uffff",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "a" * 1000 + " " * 100 + "=" * 333 + "\t" * 50 + "ha" * 99,
    "x" + " \n" * 70,
]


@pytest.fixture(scope="session")
def folders(
    tmp_path_factory: pytest.TempPathFactory, plain_tokenizer: Path, bos_tokenizer: Path, large_tokenizer: Path
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("standins")
    standins = {"llama3": write_llama3(folder / "llama3"), "qwen2": write_qwen2(folder / "qwen2")}
    return standins | {"plain": plain_tokenizer, "bos": bos_tokenizer, "large": large_tokenizer}


def rows_of(engine: Engine, texts: list[str]) -> list[list[int]]:
    before, behind = engine.before.tolist(), engine.behind.tolist()
    content = [text.encode("utf8") for text in texts]
    rows = list(engine.unguarded_rows(content))
    rest = engine.guarded_rows([text for text, row in zip(content, rows, strict=True) if row is None])
    found = [before + (next(rest) if row is None else row).tolist() + behind for row in rows]
    assert next(rest, None) is None
    return found


def guarded(engine: Engine, texts: list[str]) -> int:
    return sum(row is None for row in engine.unguarded_rows([text.encode("utf8") for text in texts]))


KINDS = ("llama3", "qwen2", "plain", "bos", "large")


def engine_of(folder: Path, name: str, tmp_path: Path) -> Engine:
    backend = load_backend(folder)
    (tmp_path / "tokenizer.json").write_bytes(backend.content or b"")
    return EngineSpec(*choose(name, backend)[:1], tmp_path / "tokenizer.json", choose(name, backend)[1]).build()


@needs_gigatoken
@pytest.mark.parametrize(
    ("kind", "name"), [*((kind, "gigatoken") for kind in KINDS), ("llama3", "hf"), ("qwen2", "hf")]
)
def test_ids_are_those_of_transformers_in_every_script(
    tmp_path: Path, folders: dict[str, Path], kind: str, name: str
) -> None:
    engine = engine_of(folders[kind], name, tmp_path)
    texts = [*TRICKY, *scripts()]
    expected = AutoTokenizer.from_pretrained(folders[kind])(texts).input_ids
    found = rows_of(engine, texts)
    wrong = [ascii(text[:80]) for text, a, b in zip(texts, expected, found, strict=True) if a != b]
    assert wrong == []
    if name == "gigatoken":
        assert 0 < guarded(engine, texts) < len(texts)


@needs_gigatoken
@pytest.mark.parametrize("kind", ["llama3", "qwen2", "plain"])
def test_ids_are_those_of_transformers_for_any_text(
    tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path], kind: str
) -> None:
    engine = engine_of(folders[kind], "gigatoken", tmp_path_factory.mktemp(kind))
    reference = AutoTokenizer.from_pretrained(folders[kind])
    pieces = st.sampled_from([*TRICKY, "'", " ", "\n", "\r", "1", "word", "\u00e9", "\u4e2d", "\u0301", "<|", "|>"])
    texts = st.lists(st.one_of(pieces, st.text(max_size=8)), max_size=12).map("".join)

    @settings(max_examples=150, deadline=None)
    @given(st.lists(texts, min_size=1, max_size=4))
    def check(batch: list[str]) -> None:
        assert rows_of(engine, batch) == reference(batch).input_ids

    check()


UNPROVEN: dict[str, Any] = {
    "split text": lambda c, t: t["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=r"\s+"),
    "not normalise": lambda c, t: t.update(normalizer={"type": "NFKC"}),
    "one of the": lambda c, t: t["model"].update(dropout=0.1),
    "compared ways": lambda c, t: t["model"].update(byte_fallback=True),
    "post-processor": lambda c, t: t.update(
        post_processor={"type": "RobertaProcessing", "sep": ["a", 1], "cls": ["b", 2], "trim_offsets": True}
    ),
    "single character": lambda c, t: t["added_tokens"].append({**t["added_tokens"][0], "id": 0, "content": "!"}),
    "not a sequence of bytes": lambda c, t: t["model"]["vocab"].update({"\u2581the": 9999}),
    "no token of its own": lambda c, t: t["model"]["vocab"].pop("\u0100"),
    "share an id": lambda c, t: t["model"]["vocab"].update({"ee!": 5}),
    "twice": lambda c, t: t["model"]["merges"].append(t["model"]["merges"][0]),
}


@needs_gigatoken
@pytest.mark.parametrize("reason", UNPROVEN)
def test_a_tokenizer_of_another_shape_goes_to_the_reference_and_says_why(
    tmp_path: Path, folders: dict[str, Path], capsys: pytest.CaptureFixture[str], reason: str
) -> None:
    folder = changed(folders["llama3"], tmp_path / "changed", UNPROVEN[reason])
    backend = Backend(folder, (folder / "tokenizer.json").read_bytes(), 1500, 1, "TokenizersBackend")
    assert choose("auto", backend) == ("hf", None)
    assert reason in capsys.readouterr().err
    with pytest.raises(UnusableError, match=reason):
        choose("gigatoken", backend)


@pytest.mark.parametrize("library", ["tokenizers", "gigatoken"])
def test_another_version_of_a_library_goes_to_the_reference_and_says_why(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], library: str
) -> None:
    real = metadata.version
    monkeypatch.setattr(
        guard_module.metadata,
        "version",
        lambda name: "9.9" if name == library else stored()["versions"].get(name) or real(name),
    )
    assert choose("auto", load_backend(folders["llama3"])) == ("hf", None)
    assert f"{library} is 9.9, but " in capsys.readouterr().err


def test_without_gigatoken_the_reference_is_used_and_it_is_said(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    backend = load_backend(folders["llama3"])
    monkeypatch.setattr(guard_module.metadata, "version", absent)
    assert choose("auto", backend) == ("hf", None)
    assert "is not installed" in capsys.readouterr().err


@needs_gigatoken
@pytest.mark.parametrize(
    ("kind", "text", "is_risky"),
    [
        ("llama3", "plain words", False),
        ("llama3", "Gr\u00fc\u00dfe, \u6771\u4eac \U0001f642 e\u0301", False),
        ("llama3", "x \u088f", True),
        ("llama3", "x \U00010940", True),
        ("llama3", "x <|reserved_special_token_0|>", False),  # cut out, see below
        ("qwen2", "Gr\u00fc\u00dfe, \u6771\u4eac \uac01 \U0001f642", False),
        ("qwen2", "e\u0301", False),  # composes, in both engines alike
        ("qwen2", "\u1100\u1161", False),  # Hangul jamo compose
        ("qwen2", "\u212b", False),  # has another normal form
        ("qwen2", "\u0915\u093c\u094d \u0e38\u0e48 \u05e9\u05bc\u05c1", False),  # marks that change places
        ("qwen2", "a\u1ac1", True),  # a mark of Unicode 14, of no combining class in the reference
        ("qwen2", "\U00011935\U00011930", True),  # compose since Unicode 13
        ("qwen2", "\U000105d2\u0307", True),  # compose since Unicode 16
        ("qwen2", "\U0001fa8a", True),  # not assigned before Unicode 17
    ],
)
def test_the_guard_keeps_what_is_not_proven_from_the_fast_engine(
    folders: dict[str, Path], kind: str, text: str, is_risky: bool
) -> None:
    guard = guard_of(load_backend(folders[kind]))
    assert isinstance(guard, Guard)
    assert guard.risky([b"fine", text.encode("utf8"), "\u00e9".encode()]) == ([1] if is_risky else [])


@pytest.mark.parametrize("scheme", [scheme.name for scheme in SCHEMES])
def test_every_guarded_code_point_is_found_and_no_other(scheme: str) -> None:
    points = [point for point in range(0x80, sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]
    texts = [f"a{chr(point)}" for point in points]
    found = guard_module._with_guarded_characters([text.encode("utf8") for text in texts], [*range(len(texts))], scheme)
    guarded = stored()["schemes"][scheme]
    assert [points[place] for place in found] == [
        point for first, last in guarded for point in range(first, last + 1) if not 0xD800 <= point < 0xE000
    ]


ADDED = ("<|im|>", "<|im|><|x", "<|im", "im|>", "|><|", "<tool>")
"""They overlap, and one begins with another: only one way of looking for them is the reference's."""


def with_added_tokens(source: Path, folder: Path, **flags: bool) -> Path:
    def add(config: Any, content: Any) -> None:
        usual = {**content["added_tokens"][0], "special": False}
        first = len({**content["model"]["vocab"], **{token["content"]: 0 for token in content["added_tokens"]}})
        new = [{**usual, "id": first + place, "content": text} for place, text in enumerate(ADDED)]
        content["added_tokens"] += [{**token, **flags} for token in new]
        config.pop("added_tokens_decoder", None)  # it would have to name them too

    return changed(source, folder, add)


@needs_gigatoken
@pytest.mark.parametrize("kind", ["llama3", "qwen2"])
def test_added_tokens_are_cut_out_as_the_reference_does(tmp_path: Path, folders: dict[str, Path], kind: str) -> None:
    engine = engine_of(with_added_tokens(folders[kind], tmp_path / "added"), "gigatoken", tmp_path)
    reference = Tokenizer.from_file(str(tmp_path / "added" / "tokenizer.json"))
    pieces = st.sampled_from([*ADDED, "<|", "|>", "<", "im", " ", "\n", "word", "'s", "\u00e9", "<|endoftext|>"])

    @settings(max_examples=300, deadline=None)
    @given(st.lists(pieces, max_size=12).map("".join))
    def check(text: str) -> None:
        assert rows_of(engine, [text]) == [reference.encode(text).ids]
        assert guarded(engine, [text]) == 0

    check()


@needs_gigatoken
@pytest.mark.parametrize("kind", ["llama3", "qwen2", "plain", "bos"])
def test_only_words_that_need_the_reference_go_to_it_and_the_ids_are_those_of_the_whole_text(
    tmp_path: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    engine: Any = engine_of(folders[kind], "gigatoken", tmp_path)
    reference = AutoTokenizer.from_pretrained(folders[kind])
    seen: list[bytes] = []
    real = engine._reference.guarded_rows
    monkeypatch.setattr(engine._reference, "guarded_rows", lambda texts: seen.extend(texts) or real(texts))
    text = "one\ntwo\nx \U00010940 y\nfour\nfive"
    assert rows_of(engine, [text]) == reference([text]).input_ids
    assert seen == [" \U00010940 y".encode()]
    ends = st.sampled_from(
        ["a", "K", "'s", "'", "a7", "1", "\u00e9", "e\u0301", "!", ".", "ha", "\U00010940", "\u4e2d", "a."]
    )
    spaces = st.sampled_from(
        [" ", "\n", "  ", " \n", "\n\n", "\n ", "\r\n", "\t", "", "\u3000", "\xa0", " \u0301", "\n\u0301"]
    )
    starts = st.sampled_from(
        ["b", "7", "'s", "s", "\u0301", "\u1161", "!\n", "\u00e9", "\U00010940", "<|endoftext|>", "="]
    )
    words = st.tuples(ends, spaces, starts).map("".join)

    @settings(max_examples=300, deadline=None)
    @given(st.lists(words, max_size=12).map("".join))
    def check(text: str) -> None:
        text = f"{text}\U00010940"
        assert rows_of(engine, [text]) == reference([text]).input_ids

    check()


@needs_gigatoken
def test_a_text_is_not_divided_within_an_added_token(tmp_path: Path, folders: dict[str, Path]) -> None:
    def add(_: Any, content: Any) -> None:
        number = max(token["id"] for token in content["added_tokens"]) + 1
        content["added_tokens"].append(
            {**content["added_tokens"][0], "id": number, "content": "ax b", "special": False}
        )

    folder = changed(folders["plain"], tmp_path / "added", add)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"][-1]["id"] = len(content["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(content))
    engine = engine_of(folder, "gigatoken", tmp_path)
    text = "max b\U00010940"
    assert rows_of(engine, [text]) == [Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids]


@needs_gigatoken
@pytest.mark.parametrize("flag", ["normalized", "lstrip", "rstrip"])
def test_a_text_with_a_token_that_is_not_simply_cut_out_goes_to_the_reference(
    tmp_path: Path, folders: dict[str, Path], flag: str
) -> None:
    folder = with_added_tokens(folders["llama3"], tmp_path / "added", **{flag: True})
    guard = guard_of(load_backend(folder))
    assert isinstance(guard, Guard)
    assert guard.risky([b"fine", b"a <tool> b", b"<|im", b"<|end_of_text|>"]) == [1, 2]
    assert guard.to_cut([b"fine", b"a <tool> b", b"<|im", b"<|end_of_text|>"]) == {3}


@needs_gigatoken
def test_a_tokenizer_that_was_built_before_is_used_once_and_only_for_the_same_content(
    monkeypatch: pytest.MonkeyPatch, folders: dict[str, Path]
) -> None:
    content = (folders["plain"] / "tokenizer.json").read_bytes()
    monkeypatch.setattr(fast, "_prebuilt", {})
    fast._prebuild(folders["plain"] / "tokenizer.json")
    prebuilt = fast._prebuilt[hashlib.sha256(content).hexdigest()]
    assert fast.build(content) is prebuilt
    assert fast.build(content) is not prebuilt
    fast._prebuild(folders["plain"] / "tokenizer.json")
    assert fast.build(content + b" ") is not None and fast._prebuilt == {}


@needs_gigatoken
@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"model": {"type": "WordPiece"}}'])
def test_what_cannot_be_built_before_is_left_to_those_who_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    monkeypatch.setattr(fast, "_prebuilt", {})
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    fast._prebuild(tmp_path / "tokenizer.json")
    assert fast._prebuilt == {}


@needs_gigatoken
def test_a_renewed_engine_goes_on_as_before(
    tmp_path: Path, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.engines.engines.RENEW_BYTES", 50)
    engine: Any = engine_of(folders["plain"], "gigatoken", tmp_path)
    first = engine._fast
    rows = [rows_of(engine, ["some words of it"]) for _ in range(9)]
    assert engine._fast is not first
    assert all(row == rows[0] for row in rows)


def changed(source: Path, folder: Path, change: Any) -> Path:
    folder.mkdir()
    config = json.loads((source / "tokenizer_config.json").read_text())
    content = json.loads((source / "tokenizer.json").read_text())
    change(config, content)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder
