"""Both engines give the ids of transformers for any text; the fast one never gets unproven input."""

from __future__ import annotations

import json
import random
import unicodedata
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from standins import changed, scripts, write_jsonl, write_llama3, write_qwen2
from tokenizers import normalizers

from data import encode
from data.engines import guard, make_guard, schemes

pytest.importorskip("gigatoken", reason="gigatoken is not installed: every text goes to the reference")
GUARD = json.loads((Path(encode.__file__).with_name("engines") / "guard.json").read_text())
TRICKY = [
    *("", " ", "\n", "\r\n \n\n  x", "'s 'S 'T 'LL 're 'RE x's x'S '\u017f a'\u017f '\u212a"),
    *("12345678 1 22 333 \u0664\u0665\u0666\u0667 \u2167\u2168", "<|begin_of_text|>"),
    *("a<|end_of_text|> <|endoftext|>b <|im_start|><|im_end|>", "x" + " \n" * 70),
    "<|end_of_text <|endoftext| > <tool_call>x</tool_call> </tool_call",
    "e\u0301 \u00e9 \u1100\u1161\u11a8 \uac01 A\u030a \u212b \u0344 \u0958 \ufb1d \u2126",
    "\u0916\u093c \u0e40\u0e01\u0e48 \u05e9\u05c1\u05d0 \u0627\u064e\u0654",
    "\u088f\u0c5c\ua7ce\U00010940\U000323b0 \u0897\u1adb\U0001e6e3",
    "\x00\x01\x7f\x80\x85\xa0\u2028\u3000\ufeff\uffff",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "a" * 1000 + " " * 100 + "=" * 333 + "\t" * 50 + "ha" * 99,
]
PIECES = [*TRICKY, "'", " ", "\n", "\r", "1", "word", "\u00e9", "\u4e2d", "\u0301", "<|", "|>"]
ENDS = ["a", "K", "'s", "'", "a7", "1", "\u00e9", "e\u0301", "!", ".", "ha", "\U00010940", "\u4e2d", "a."]
SPACES = [*(" ", "\n", "  ", " \n", "\n\n", "\n ", "\r\n", "\t", "", "\u3000", "\xa0", " \u0301", "\n\u0301")]
STARTS = ["b", "7", "'s", "s", "\u0301", "\u1161", "!\n", "\u00e9", "\U00010940", "<|endoftext|>", "="]
ANYTHING = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
ADDED = ("<|im|>", "<|im|><|x", "<|im", "im|>", "|><|", "<tool>")
"""They overlap, and one begins with another: only one way of looking for them is the reference's."""


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory, tokenizers: dict[str, Path]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("standins")
    return tokenizers | {"llama3": write_llama3(folder / "llama3"), "qwen2": write_qwen2(folder / "qwen2")}


def drawn(pieces: list[str], count: int, most: int = 12) -> list[str]:
    """Return texts of pieces drawn at random, the same on every machine."""
    pick = random.Random(len(pieces))
    return ["".join(pick.choices(pieces, k=pick.randrange(most))) for _ in range(count)]


def words(count: int) -> list[str]:
    """Return texts of words of which only some need the reference, the last one always."""
    pick = random.Random(1)
    word = [pick.choice(ENDS) + pick.choice(SPACES) + pick.choice(STARTS) for _ in range(count * 6)]
    return ["".join(pick.choices(word, k=pick.randrange(12))) + "\U00010940" for _ in range(count)]


@pytest.mark.parametrize(
    "kind",
    [
        "llama3",
        pytest.param("qwen2", marks=pytest.mark.full("ids of a second tokenizer of full size, about 10 s")),
        "plain",
        "bos",
        "large",
    ],
)
def test_ids_are_those_of_transformers_for_any_text(folders, like_transformers, kind: str) -> None:
    texts = [*TRICKY, *list(scripts())[:: 1 if kind in ("llama3", "qwen2") else 8], *drawn(PIECES, 500), *words(500)]
    made = like_transformers(folders[kind], [*texts, *drawn(ANYTHING, 300, 5)], "--engine", "gigatoken")
    assert 0 < made["engine"]["documents_by_reference"] < len(texts)
    like_transformers(folders[kind], texts[::20], "--engine", "hf")


def with_added_tokens(source: Path, folder: Path, **flags: bool) -> Path:
    def add(config: Any, content: Any) -> None:
        usual = {**content["added_tokens"][0], "special": False, **flags}
        first = len({**content["model"]["vocab"], **{token["content"]: 0 for token in content["added_tokens"]}})
        texts = enumerate((*ADDED, "ax b"), first)
        content["added_tokens"] += [{**usual, "id": number, "content": text} for number, text in texts]
        config.pop("added_tokens_decoder", None)  # it would have to name them too

    return changed(source, folder, add)


@pytest.mark.parametrize("kind", ["llama3", "qwen2", "plain"])
def test_added_tokens_are_cut_out_as_the_reference_does(tmp_path, folders, like_transformers, kind: str) -> None:
    folder = with_added_tokens(folders[kind], tmp_path / "added")
    texts = drawn([*ADDED, "<|", "|>", "<", "im", " ", "\n", "word", "'s", "\u00e9", "<|endoftext|>"], 1000)
    assert like_transformers(folder, texts, "--engine", "gigatoken")["engine"]["documents_by_reference"] == 0
    # a text is not divided within an added token
    like_transformers(folder, ["max b\U00010940", "a ax b b\U00010940", *words(200)], "--engine", "gigatoken")


@pytest.mark.parametrize("flag", ["normalized", "lstrip", "rstrip"])
def test_a_text_with_a_token_that_is_not_simply_cut_out_goes_to_the_reference(
    tmp_path, folders, like_transformers, flag: str
) -> None:
    folder = with_added_tokens(folders["llama3"], tmp_path / "added", **{flag: True})
    for texts, count in ((["fine", "a b", "<|end_of_text|>"], 0), (["a <tool> b", "<|im"], 2)):
        made = like_transformers(folder, texts, "--engine", "gigatoken")
        assert made["engine"]["documents_by_reference"] == count


UNPROVEN: dict[str, Any] = {
    "split text": lambda c, t: t["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=r"\s+"),
    "not normalise": lambda c, t: t.update(normalizer={"type": "NFKC"}),
    "compared ways": lambda c, t: t["model"].update(byte_fallback=True),
    "post-processor": lambda c, t: t.update(
        post_processor={"type": "RobertaProcessing", "sep": ["a", 1], "cls": ["b", 2], "trim_offsets": True}
    ),
    "single character": lambda c, t: t["added_tokens"].append({**t["added_tokens"][0], "id": 0, "content": "!"}),
    "not a sequence of bytes": lambda c, t: t["model"]["vocab"].update({"\u2581the": 1503}),
    "twice": lambda c, t: t["model"]["merges"].append(t["model"]["merges"][0]),
}


@pytest.mark.parametrize("reason", UNPROVEN)
def test_a_tokenizer_of_another_shape_goes_to_the_reference_and_says_why(
    tmp_path, folders, commands, like_transformers, capfd, reason: str
) -> None:
    folder = changed(folders["llama3"], tmp_path / "changed", UNPROVEN[reason])
    source = write_jsonl(tmp_path / "in.jsonl", ["a text"])
    given = ("--input", source, "--tokenizer", folder, "--output-prefix", tmp_path / "out")
    assert reason in commands.error(encode.main, *given, "--engine", "gigatoken", wanted=2)
    assert reason in commands.run(encode.main, *given).err
    assert like_transformers(folder, TRICKY)["engine"] == {"name": "hf"}


@pytest.mark.parametrize(
    ("library", "version", "said"),
    [
        ("tokenizers", "9.9", "tokenizers is 9.9, but "),
        ("gigatoken", "9.9", "gigatoken is 9.9, but "),
        ("gigatoken", None, "is not installed"),
    ],
)
def test_another_version_of_a_library_goes_to_the_reference_and_says_why(
    tmp_path, folders, commands, monkeypatch, library, version, said
) -> None:
    real = metadata.version

    def found(name: str) -> str:
        if (name, version) == (library, None):
            raise metadata.PackageNotFoundError(name)
        return (GUARD["versions"] | {library: version}).get(name) or real(name)

    monkeypatch.setattr(metadata, "version", found)
    source = write_jsonl(tmp_path / "in.jsonl", ["a text"])
    given = ("--input", source, "--tokenizer", folders["llama3"], "--output-prefix", tmp_path / "out")
    ran = commands.run(encode.main, *given)
    assert said in ran.err and json.loads(ran.out)["engine"] == {"name": "hf"}


PROVEN = {
    "llama3": ["plain words", "Gr\u00fc\u00dfe, \u6771\u4eac \U0001f642 e\u0301", "x <|reserved_special_token_0|>"],
    # composes in both engines alike, Hangul jamo too; another normal form; marks that change places
    "qwen2": [
        *("Gr\u00fc\u00dfe, \u6771\u4eac \uac01 \U0001f642", "e\u0301", "\u1100\u1161", "\u212b"),
        "\u0915\u093c\u094d \u0e38\u0e48 \u05e9\u05bc\u05c1",
    ],
}
NEWER = {
    "llama3": ["x \u088f", "x \U00010940"],
    # a mark of Unicode 14, of no combining class in the reference; compose since 13; since 16; assigned in 17
    "qwen2": ["a\u1ac1", "\U00011935\U00011930", "\U000105d2\u0307", "\U0001fa8a"],
}


@pytest.mark.parametrize("kind", ["llama3", "qwen2"])
def test_the_guard_keeps_what_is_not_proven_from_the_fast_engine_and_nothing_else(
    folders, like_transformers, kind: str
) -> None:
    ranges = GUARD["schemes"][kind]
    ends = {point for first, last in ranges for point in (first - 1, first, (first + last) // 2, last, last + 1)}
    points = [point for point in sorted(ends) if 0x80 <= point < 0x110000 and not 0xD800 <= point < 0xE000]
    guarded = [point for point in points if any(first <= point <= last for first, last in ranges)]
    assert 20 < len(guarded) < len(points)
    for texts, count in (
        (PROVEN[kind], 0),
        (NEWER[kind], len(NEWER[kind])),
        ([f"a{chr(point)}" for point in points], len(guarded)),
    ):
        made = like_transformers(folders[kind], texts, "--engine", "gigatoken")
        assert made["engine"]["documents_by_reference"] == count


def test_a_renewed_engine_goes_on_as_before(folders, like_transformers, monkeypatch) -> None:
    monkeypatch.setattr("data.engines.engines.RENEW_BYTES", 50)
    like_transformers(
        folders["plain"], [f"some words of it \U00010940 {n}" for n in range(99)], "--engine", "gigatoken"
    )


# Both engines normalise every text alike that contains no guarded code point; the comparison sees a difference.

needs_proven_engines = pytest.mark.skipif(guard.why_unusable() is not None, reason=str(guard.why_unusable()))
EVERY = 307
"""Share of the combinations that are tested here; data/engines/make_guard.py tests all of them."""
QWEN = next(scheme for scheme in schemes.SCHEMES if scheme.normalizes)
GUARDED = {point for first, last in guard.stored()["schemes"]["qwen2"] for point in range(first, last + 1)}


@pytest.fixture(scope="module")
def differ() -> make_guard.Differ:
    return make_guard.comparison(QWEN)


@needs_proven_engines
def test_engines_and_python_agree_on_combinations_that_normalisation_changes(differ: make_guard.Differ) -> None:
    texts = list(islice(make_guard.texts_to_agree(GUARDED, 30_000), 0, None, EVERY))
    assert len(texts) > 900
    assert [ascii(texts[number]) for number in differ(texts)] == []
    # the second source: Python's own tables
    normalize = normalizers.NFC().normalize_str
    assert [ascii(text) for text in texts if normalize(text) != unicodedata.normalize("NFC", text)] == []
    assert sum(text != unicodedata.normalize("NFC", text) for text in texts) > 50


@needs_proven_engines
def test_the_comparison_sees_characters_and_pairs_that_the_reference_does_not_know(differ: make_guard.Differ) -> None:
    # Unicode 14: combining classes 230 and 218; Unicode 13 and 16: compose
    for text in ("a\u0334\u1ac1b a\u1ac1\u0334b", "a\u0316\u1dfab", "\U00011935\U00011930", "\U000105d2\u0307"):
        assert differ(["e\u0301\u0316", text]) == [1] and {ord(character) for character in text} & GUARDED
    known = make_guard.pairs()
    different = {known[number] for number in differ([chr(first) + chr(second) for first, second in known])}
    assert (0x11935, 0x11930) in different
    assert {pair for pair in different if not GUARDED & {*pair}} == set()
