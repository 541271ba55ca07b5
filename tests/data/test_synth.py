"""Generated text: the same bytes everywhere, and more structure to learn than word frequencies."""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from data import synth
from data.language import language
from utils.errors import UnusableError


def texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf8").splitlines()]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("synth") / "sample.jsonl"
    synth.write_documents(path, seed=42, words=400_000)
    return texts(path)


@pytest.mark.parametrize(
    ("seed", "digest"),
    [
        (42, "e8c30a77a48f2eb768e675e0d1376e8bc3aad4067c695a303a7e3231b174b5d0"),
        (7, "8544908c7d785d685591abb8c14ccff461ec6e406dca7c8679e90fd14a8000b8"),
    ],
)
def test_bytes_are_the_same_on_every_machine(tmp_path: Path, seed: int, digest: str) -> None:
    """The one number here that is our own output: pinned, so that another numpy, processor or edit cannot change the
    data of a comparison unnoticed. A deliberate change of the language changes it, and every data set made before."""
    synth.write_documents(tmp_path / "text.jsonl", seed=seed, documents=300)
    assert hashlib.sha256((tmp_path / "text.jsonl").read_bytes()).hexdigest() == digest


def test_raw_draws_are_those_that_the_generator_publishes() -> None:
    # numpy/random/tests/data/pcg64-testset-2.csv of numpy 2.4: the first output for seed 0 is 0xa30febcfd9c2825f
    drawn = language.draws_of(np.random.PCG64(0), 1, 4)[0].tolist()
    assert drawn == [0x825F, 0xD9C2, 0xEBCF, 0xA30F]


@pytest.mark.parametrize("asked", [1, 10, 256, 257])
def test_the_first_documents_do_not_depend_on_how_many_are_asked_for(tmp_path: Path, asked: int) -> None:
    synth.write_documents(tmp_path / "few.jsonl", seed=3, documents=asked)
    synth.write_documents(tmp_path / "many.jsonl", seed=3, documents=600)
    few = (tmp_path / "few.jsonl").read_bytes()
    assert few.count(b"\n") == asked
    assert (tmp_path / "many.jsonl").read_bytes().startswith(few)


@pytest.mark.parametrize("asked", [1, 500, 60_000])
def test_words_end_with_the_document_that_reaches_them(tmp_path: Path, asked: int) -> None:
    counts = synth.write_documents(tmp_path / "text.jsonl", seed=3, words=asked)
    found = [len(text.split()) for text in texts(tmp_path / "text.jsonl")]
    assert sum(found) >= asked > sum(found[:-1])
    size = sum(len(text.encode()) for text in texts(tmp_path / "text.jsonl"))
    assert counts == synth.Counts(documents=len(found), words=sum(found), bytes=size)


def test_another_seed_is_other_text_in_the_same_language(tmp_path: Path, sample: list[str]) -> None:
    synth.write_documents(tmp_path / "other.jsonl", seed=43, words=100_000)
    other = texts(tmp_path / "other.jsonl")
    assert not set(other) & set(sample)
    known = {word for text in sample for word in re.findall(r"\w+", text.lower())}
    words = [word for text in other for word in re.findall(r"\w+", text.lower())]
    assert sum(word in known for word in words) / len(words) > 0.98


def test_documents_are_of_varied_length_and_never_repeat(sample: list[str]) -> None:
    lengths = [len(text.split()) for text in sample]
    assert len(set(sample)) == len(sample)
    assert 25 < min(lengths) < 60 and 350 < max(lengths) < 700
    assert np.percentile(lengths, 25) < 150 < np.percentile(lengths, 75)


def test_frequencies_fall_like_zipf_over_thousands_of_words(sample: list[str]) -> None:
    counts = Counter(word for text in sample for word in re.findall(r"\w+", text.lower()))
    assert 5000 < len(counts) < 12000
    ranked = np.array(sorted(counts.values(), reverse=True)[10:2000], dtype=float)
    slope = np.polyfit(np.log(np.arange(10, 10 + len(ranked))), np.log(ranked), 1)[0]
    assert -1.6 < slope < -0.7  # 1 for Zipf's law


def gain_of_one_word_back(streams: list[list[str]]) -> float:
    """Return by how many bits a token, on text not seen, a model that knows the word before beats one that knows
    frequencies only: cross entropy of a unigram model (add one) less that of a bigram model (0.8, rest unigram)."""
    seen, unseen = streams[: len(streams) * 3 // 4], streams[len(streams) * 3 // 4 :]
    single = Counter(token for stream in seen for token in stream)
    before = Counter(token for stream in seen for token in stream[:-1])
    pairs = Counter(pair for stream in seen for pair in zip(stream, stream[1:], strict=False))
    total, size = sum(single.values()), len(single) + 1
    without = with_one = 0.0
    tested = [pair for stream in unseen for pair in zip(stream, stream[1:], strict=False)]
    for previous, token in tested:
        unigram = (single[token] + 1) / (total + size)
        share = pairs[previous, token] / before[previous] if before[previous] else 0.0
        without -= math.log2(unigram)
        with_one -= math.log2(0.8 * share + 0.2 * unigram)
    return (without - with_one) / len(tested)


def test_there_is_more_to_learn_than_frequencies(sample: list[str]) -> None:
    streams = [re.findall(r"\w+|[.,!?]", text) for text in sample]
    assert gain_of_one_word_back(streams) > 1.0
    # the same words without their order: nothing to gain
    shuffled = [random.Random(0).sample(stream, len(stream)) for stream in streams[:600]]
    assert gain_of_one_word_back(shuffled) < 0.0


def test_a_noun_has_adjectives_of_its_own(sample: list[str]) -> None:
    """Of frequent nouns, the 16 adjectives seen most in one half of the text cover nearly all uses in the other; any
    16 words of a Zipf distribution over 800 cover (1/2 + ... + 1/17) / (1/2 + ... + 1/801), 0.39."""
    pairs = re.findall(r"\b(?:these|those|many|some|few|most) (\w*[^s\W]) (\w+s)\b", " ".join(sample))
    half = len(pairs) // 2
    uses: dict[str, Counter[str]] = {}
    for adjective, noun in pairs[:half]:
        uses.setdefault(noun, Counter())[adjective] += 1
    own = {noun: {word for word, _ in count.most_common(16)} for noun, count in uses.items() if count.total() >= 25}
    covered = [adjective in own[noun] for adjective, noun in pairs[half:] if noun in own]
    assert len(covered) > 300 and sum(covered) / len(covered) > 0.7


def test_a_document_has_a_topic(sample: list[str]) -> None:
    # without names, which are a document's own too, and without words that most documents use
    documents = [re.findall(r"\b[a-z]+\b", text) for text in sample if len(text.split()) > 250][:200]
    spread = Counter(word for words in documents for word in set(words))
    halves = [[{word for word in half if spread[word] <= 20} for half in (ws[:120], ws[120:])] for ws in documents]
    within = sum(len(first & second) for first, second in halves)
    between = sum(len(halves[i - 1][0] & halves[i][1]) for i in range(len(halves)))
    assert len(documents) == 200 and within > 2 * between


def test_determiners_agree_with_their_nouns(sample: list[str]) -> None:
    text = " ".join(sample)
    # no singular noun or adjective ends in s, so `this` is never followed by such a word, while one of the two words
    # behind `these` (adjective or not) does
    singular = re.findall(r"\b[Tt]his (\w+)", text)
    plural = re.findall(r"\b[Tt]hese (\w+)[.,!?]? (\w+)", text)
    assert len(singular) > 1000 and not any(word.endswith("s") for word in singular)
    assert len(plural) > 1000 and all(any(word.endswith("s") for word in words) for words in plural)


def test_a_document_keeps_to_one_tense(sample: list[str]) -> None:
    # a clause has its verb right behind the pronoun: `it jailed` / `it jails` / `they jail`
    for text in sample[:500]:
        verbs = re.findall(r"\b(?:it|they) (\w+)", text)
        assert len({verb.endswith("ed") for verb in verbs}) <= 1


def test_text_is_sentences_with_capitals_and_punctuation(sample: list[str]) -> None:
    for text in sample[:200]:
        assert re.fullmatch(r"(?:[A-Z]\w*,?(?: \w+,?)*[.!?] )*[A-Z]\w*,?(?: \w+,?)*[.!?]", text)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({}, "exactly one"),
        ({"documents": 1, "words": 1}, "exactly one"),
        ({"documents": 0}, "documents: got 0"),
        ({"words": -5}, "words: got -5"),
        ({"documents": 1, "seed": -1}, "seed: got -1"),
    ],
)
def test_a_size_that_cannot_be_is_refused(tmp_path: Path, size: dict[str, int], message: str) -> None:
    with pytest.raises(UnusableError, match=message):
        synth.write_documents(tmp_path / "text.jsonl", **{"seed": 1, **size})
    assert not list(tmp_path.iterdir())


def test_the_command_writes_text_and_tokenizer_and_says_how_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "text.jsonl"
    arguments = ["--output", str(output), "--documents", "3", "--tokenizer-output", str(tmp_path / "new" / "tok")]
    assert synth.main([*arguments, "--vocabulary-size", "300"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == len(texts(output)) == 3
    assert sorted(path.name for path in output.parent.iterdir()) == [".text.jsonl.tprimat", "text.jsonl", "tok"]


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--words", "0"], 2), (["--words", "9", "--tokenizer-output", "{tmp}"], 2)]
)
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    (tmp_path / "mine").write_text("not a tokenizer")
    filled = [argument.format(tmp=tmp_path) for argument in arguments]
    assert synth.main(["--output", str(tmp_path / "text.jsonl"), *filled]) == code
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1
    assert (tmp_path / "mine").exists()


def test_a_disk_that_says_no_is_failed_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert synth.main(["--output", str(tmp_path / "file" / "text.jsonl"), "--words", "9"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
