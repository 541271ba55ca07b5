"""An artificial language that a model can learn: a lexicon, associations between words, and sentence templates.

Word frequencies follow Zipf's law. The structure beyond frequencies, from short to long range: the verb agrees with its
subject and the determiner with its noun; a noun has its own adjectives and verbs, a verb its own objects, adverbs and
prepositions; a sentence may continue about the noun of the previous one; a document keeps one tense, one topic and two
names. Content words are invented, function words are English.

Only integers and numpy's raw PCG64 stream are used: both are the same on every machine and in every numpy version.
`numpy.random.Generator` does not guarantee that for its methods.

The language has no published tokenizer, so a small byte-level BPE tokenizer is trained on its text. The same input
gives the same bytes in every process. The only special token is `<|endoftext|>`, for end of text and end of document.
There is no padding token and no beginning-of-text token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from data.reading.jsonl import text_of
from utils.errors import DataError, UnusableError
from utils.files import folder_written_whole, write_whole

Ids = npt.NDArray[np.int64]

PUNCTUATION = (",", ".", "!", "?")
OPENERS = ("later", "today", "meanwhile", "however", "often", "finally", "still", "then")
SINGULAR = ("the", "this", "that", "each", "every", "one", "another", "the")
PLURAL = ("the", "these", "those", "some", "many", "most", "few", "the")
PREPOSITIONS = ("in", "on", "near", "under", "behind", "with", "above", "beyond")
CONJUNCTIONS = ("and", "but", "so", "while")
PRONOUNS = ("it", "they")
NOUNS, VERBS, ADJECTIVES, ADVERBS, NAMES = 2000, 1000, 800, 256, 256
TOPICS, TOPIC_NOUNS = 64, 256
SHORT_WORDS = 200
"""The most frequent words of a class are shorter than the others."""
COMPANIONS = 16
"""Number of words associated with a word."""
IS_USUAL = 57344
"""Of 65,536 draws this many (7 of 8) take a companion, the others any word of the class."""

# One letter per slot of the longest sentence; a template lists the letters of the slots that it fills:
#   o: opener and comma; s: determiner, noun, verb, end; A and B: adjectives; D: adverb; O: object; P: place; C: clause
SLOTS = "oosAsDsOBOPPPCCCCCCs"
TEMPLATES = (
    *("sO", "sAO", "sOB", "sABO", "sOP", "sAOP", "sDP", "sADP"),
    *("osO", "osOP", "osAP", "sOC", "sAOC", "sAOBP", "sDOPC", "osAOBPC"),
)
DRAWS_PER_SENTENCE = 32
DRAWS_PER_DOCUMENT = 8

_ONSETS = [*"bdfghjklmnprstvw", "br", "cl", "dr", "fl", "gr", "pl", "st", "tr", "th", "sh", "ch", "sk"]
_NUCLEI = ["a", "e", "i", "o", "u", "ai", "ea", "ou"]
_CODAS = ["", "", "n", "r", "l", "t", "d", "m", "k", "nd", "rt", "lm"]
_LEXICON_SEED = 20


@dataclass(frozen=True)
class Language:
    """Spellings by id, the first id of each word class, and the companions of each word."""

    spellings: npt.NDArray[np.object_]
    """By id, with the space before a word; id 0 is an empty slot; the second half has the same words capitalised."""
    first: dict[str, int]
    """First id of each list of forms."""
    topic_nouns: Ids
    noun_adjectives: Ids
    noun_verbs: Ids
    verb_objects: Ids
    verb_adverbs: Ids


def draws_of(generator: np.random.PCG64, rows: int, columns: int) -> Ids:
    """Return independent uniform numbers from 0 to 65,535 as int64 (rows, columns); columns is a multiple of 4."""
    raw = generator.random_raw(rows * columns // 4).astype("<u8", copy=False)
    return raw.view("<u2").reshape(rows, columns).astype(np.int64)


@cache
def zipf_table(words: int) -> Ids:
    """Return a table of 65,536 ranks below `words`; a uniform draw gives rank r with a weight of about 1 / (r + 2)."""
    weights = (1 << 30) // (np.arange(words, dtype=np.int64) + 2)
    counts = np.maximum(weights * 65536 // weights.sum(), 1)
    counts[0] += 65536 - counts.sum()
    return np.repeat(np.arange(words, dtype=np.int64), counts)


@lru_cache(maxsize=1)
def language() -> Language:
    """Return the language; it is the same for every seed of the documents."""
    generator = np.random.PCG64(_LEXICON_SEED)
    seen = {*OPENERS, *SINGULAR, *PLURAL, *PREPOSITIONS, *CONJUNCTIONS, *PRONOUNS}
    nouns, verbs, adjectives, adverbs, names = (
        _invent(generator, size, seen) for size in (NOUNS, VERBS, ADJECTIVES, ADVERBS, NAMES)
    )
    lists = {
        "opener": OPENERS,
        "singular": SINGULAR,
        "plural": PLURAL,
        "preposition": PREPOSITIONS,
        "conjunction": CONJUNCTIONS,
        "pronoun": PRONOUNS,
        "noun": nouns,
        "nouns": [noun + "s" for noun in nouns],
        "verb": verbs,
        "verbs": [verb + "s" for verb in verbs],
        "verbed": [verb + "ed" for verb in verbs],
        "adjective": adjectives,
        "adverb": [adverb + "ly" for adverb in adverbs],
        "name": [name.capitalize() for name in names],
    }
    spellings, first = ["", *PUNCTUATION], {}
    for kind, forms in lists.items():
        first[kind] = len(spellings)
        spellings += [" " + form for form in forms]
    spellings += [spelling[:1] + spelling[1:2].upper() + spelling[2:] for spelling in spellings]

    def companions(of: int, words: int, each: int = COMPANIONS) -> Ids:
        return zipf_table(words)[draws_of(generator, of, each)]

    return Language(
        spellings=np.array(spellings, dtype=object),
        first=first,
        topic_nouns=draws_of(generator, TOPICS, TOPIC_NOUNS) % NOUNS,
        noun_adjectives=companions(NOUNS, ADJECTIVES),
        noun_verbs=companions(NOUNS, VERBS),
        verb_objects=companions(VERBS, NOUNS),
        verb_adverbs=companions(VERBS, ADVERBS),
    )


def sentences(generator: np.random.PCG64, lengths: Ids, documents: Ids) -> Ids:
    """Return the sentences of some documents as ids (sentences, slots), 0 for an empty slot.

    `lengths` has the number of sentences of each document, `documents` its DRAWS_PER_DOCUMENT draws; the last four of
    them determine topic, tense and names.
    """
    known = language()
    at = known.first
    owner = np.repeat(np.arange(len(lengths)), lengths)
    draws = iter(draws_of(generator, len(owner), DRAWS_PER_SENTENCE).T)
    topic, is_past, *names = documents[owner, -4:].T
    topic, is_past = topic % TOPICS, is_past & 1

    drawn = _usual(known.topic_nouns, topic, next(draws), zipf_table(NOUNS)[next(draws)])
    goes_on = (next(draws) < 16384) & (owner == np.roll(owner, 1))
    subject = np.where(goes_on, np.roll(drawn, 1), drawn)
    determiner, adjective, noun, is_plural = _noun_phrase(known, subject, draws)
    naming = next(draws)
    is_name = naming < 16384
    is_plural = np.where(is_name, 0, is_plural)
    name = at["name"] + np.where(naming & 1, *names) % NAMES
    form = np.where(is_past, at["verbed"], np.where(is_plural, at["verb"], at["verbs"]))

    verb, *thing = _predicate(known, subject, draws)
    place = _usual(known.topic_nouns, topic, next(draws), zipf_table(NOUNS)[next(draws)])
    place_determiner, _, place_noun, _ = _noun_phrase(known, place, draws)
    second_verb, other_determiner, _, other_noun = _predicate(known, subject, draws)
    comma = np.full(len(owner), 1 + PUNCTUATION.index(","))
    slots = (
        at["opener"] + (next(draws) & 7),
        comma,
        np.where(is_name, 0, determiner),
        np.where(is_name, 0, adjective),
        np.where(is_name, name, noun),
        at["adverb"] + known.verb_adverbs[verb, next(draws) & 3],
        form + verb,
        *thing,
        at["preposition"] + ((verb + (next(draws) & 1)) & 7),
        place_determiner,
        place_noun,
        comma,
        at["conjunction"] + (next(draws) & 3),
        at["pronoun"] + is_plural,
        form + second_verb,
        other_determiner,
        other_noun,
        _ends(next(draws)),
    )
    filled = np.array([[slot in template for slot in SLOTS] for template in TEMPLATES], dtype=np.int64)
    ids: Ids = np.stack(slots, axis=1) * filled[next(draws) % len(TEMPLATES)]
    ids[np.arange(len(ids)), (ids > 0).argmax(axis=1)] += len(known.spellings) // 2
    return ids


def _usual(companions: Ids, of: Ids, draw: Ids, any_word: Ids) -> Ids:
    # the low bits of a draw select a companion, its three high bits decide if it is used: they are independent
    return np.where(draw < IS_USUAL, companions[of, draw % companions.shape[1]], any_word)


def _noun_phrase(known: Language, noun: Ids, draws: Iterator[Ids]) -> tuple[Ids, Ids, Ids, Ids]:
    at, draw = known.first, next(draws)
    is_plural = (draw >= 40960).astype(np.int64)
    determiner = np.where(is_plural, at["plural"], at["singular"]) + (draw & 7)
    adjective = _usual(known.noun_adjectives, noun, next(draws), zipf_table(ADJECTIVES)[next(draws)])
    return determiner, at["adjective"] + adjective, np.where(is_plural, at["nouns"], at["noun"]) + noun, is_plural


def _predicate(known: Language, subject: Ids, draws: Iterator[Ids]) -> tuple[Ids, Ids, Ids, Ids]:
    verb = _usual(known.noun_verbs, subject, next(draws), zipf_table(VERBS)[next(draws)])
    thing = _usual(known.verb_objects, verb, next(draws), zipf_table(NOUNS)[next(draws)])
    determiner, adjective, noun, _ = _noun_phrase(known, thing, draws)
    return verb, determiner, adjective, noun


def _ends(draw: Ids) -> Ids:
    ends = [PUNCTUATION.index("!"), PUNCTUATION.index("?")] + [PUNCTUATION.index(".")] * 14
    ids: Ids = 1 + np.array(ends, dtype=np.int64)[draw & 15]
    return ids


def _invent(generator: np.random.PCG64, size: int, seen: set[str]) -> list[str]:
    """Return `size` pronounceable words, short and frequent first; none is in `seen` or looks inflected (-s, -ed)."""
    words: list[str] = []
    while len(words) < size:
        draws: list[int] = draws_of(generator, 1, 8)[0].tolist()
        syllables = 1 + (len(words) >= SHORT_WORDS) + (draws[0] < 8192)
        word = "".join(
            _ONSETS[draws[2 * i + 1] % len(_ONSETS)] + _NUCLEI[draws[2 * i + 2] % len(_NUCLEI)]
            for i in range(syllables)
        )
        word += _CODAS[draws[7] % len(_CODAS)]
        if word not in seen and not word.endswith("ed"):
            seen.add(word)
            words.append(word)
    return words


END_OF_TEXT = "<|endoftext|>"
SAMPLE_BYTES = 2 << 20
"""Amount of text, from the start of the input, to train on; more changes little and takes longer."""
SMALLEST_VOCABULARY = 257
"""The 256 bytes and the special token."""
FILES = ("tokenizer.json", "tokenizer_config.json")
SETTINGS = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": END_OF_TEXT,
    "model_max_length": 1_000_000_000,  # no limit: documents are cut into samples later
    "clean_up_tokenization_spaces": False,
}
"""Content of the second file, by which a tokenizer of this suite is recognised."""


def train_tokenizer(input: Path, output: Path, vocabulary_size: int = 4096) -> None:
    """Train on the first 2 MiB of text (key `text`) of a JSONL file; `transformers.AutoTokenizer` loads the folder.

    `output` appears whole or not at all; an earlier tokenizer written by this function is replaced.
    Raises UnusableError for a vocabulary below 257, ForeignFileError for any other folder or file at `output`, and
    DataError if the text is too small or uniform for the vocabulary.
    """
    if vocabulary_size < SMALLEST_VOCABULARY:
        raise UnusableError(f"vocabulary size: got {vocabulary_size}, wanted at least {SMALLEST_VOCABULARY}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=[AddedToken(END_OF_TEXT, special=True, normalized=False)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(input), trainer)
    if tokenizer.get_vocab_size() != vocabulary_size:
        raise DataError(
            f"{input}: its text gives {tokenizer.get_vocab_size()} tokens, wanted {vocabulary_size}; "
            "use more text or a smaller vocabulary"
        )
    _save(tokenizer, output)


def is_written_tokenizer(folder: Path) -> bool:
    """Recognise a folder of `train_tokenizer`, or one with nothing in it."""
    names = {path.name for path in folder.iterdir()}
    return not names or (names <= set(FILES) and json.loads((folder / FILES[1]).read_bytes()) == SETTINGS)


def _sample(path: Path) -> Iterator[str]:
    taken = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = text_of(line, path, number)
            yield text
            taken += len(text.encode("utf8"))
            if taken >= SAMPLE_BYTES:
                return


def _save(tokenizer: Tokenizer, output: Path) -> None:
    with folder_written_whole(output, is_ours=is_written_tokenizer) as temporary:
        write_whole(temporary / FILES[0], tokenizer.to_str(pretty=True))
        write_whole(temporary / FILES[1], json.dumps(SETTINGS, indent=1) + "\n")
