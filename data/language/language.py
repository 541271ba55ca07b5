"""An artificial language that a model can learn: a lexicon, associations between words, and sentence templates.

Word frequencies follow Zipf's law. The structure beyond frequencies, from short to long range: the verb agrees with its
subject and the determiner with its noun; a noun has its own adjectives and verbs, a verb its own objects, adverbs and
prepositions; a sentence may continue about the noun of the previous one; a document keeps one tense, one topic and two
names. Content words are invented, function words are English.

Only integers and numpy's raw PCG64 stream are used: both are the same on every machine and in every numpy version.
`numpy.random.Generator` does not guarantee that for its methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

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
    "sO",
    "sAO",
    "sOB",
    "sABO",
    "sOP",
    "sAOP",
    "sDP",
    "sADP",
    "osO",
    "osOP",
    "osAP",
    "sOC",
    "sAOC",
    "sAOBP",
    "sDOPC",
    "osAOBPC",
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


@cache
def language() -> Language:
    """Return the language; it is the same for every seed of the documents."""
    generator = np.random.PCG64(_LEXICON_SEED)
    seen = {*OPENERS, *SINGULAR, *PLURAL, *PREPOSITIONS, *CONJUNCTIONS, *PRONOUNS}
    # in this order: each list takes its draws from the one stream
    nouns = _invent(generator, NOUNS, seen)
    verbs = _invent(generator, VERBS, seen)
    adjectives = _invent(generator, ADJECTIVES, seen)
    adverbs = _invent(generator, ADVERBS, seen)
    names = _invent(generator, NAMES, seen)
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
    spellings = ["", *PUNCTUATION]
    first = {}
    for kind, forms in lists.items():
        first[kind] = len(spellings)
        spellings += [" " + form for form in forms]
    for spelling in spellings.copy():
        # the first character is the space before a word
        spellings.append(spelling[:1] + spelling[1:2].upper() + spelling[2:])

    def companions(of: int, words: int) -> Ids:
        return zipf_table(words)[draws_of(generator, of, COMPANIONS)]

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
    first = known.first
    document = np.repeat(np.arange(len(lengths)), lengths)
    # each step takes the next column of draws, so their order is part of the language
    draws = iter(draws_of(generator, len(document), DRAWS_PER_SENTENCE).T)
    topic, tense, one_name, other_name = documents[document, -4:].T
    topic = topic % TOPICS
    is_past = tense & 1

    subject = _usual(known.topic_nouns, topic, next(draws), zipf_table(NOUNS)[next(draws)])
    goes_on = (next(draws) < 16384) & (document == np.roll(document, 1))
    subject = np.where(goes_on, np.roll(subject, 1), subject)
    determiner, adjective, noun, is_plural = _noun_phrase(known, subject, draws)
    naming = next(draws)
    is_name = naming < 16384
    is_plural = np.where(is_name, 0, is_plural)
    name = first["name"] + np.where(naming & 1, one_name, other_name) % NAMES
    form = np.where(is_past, first["verbed"], np.where(is_plural, first["verb"], first["verbs"]))

    verb, *thing = _predicate(known, subject, draws)
    place = _usual(known.topic_nouns, topic, next(draws), zipf_table(NOUNS)[next(draws)])
    place_determiner, _, place_noun, _ = _noun_phrase(known, place, draws)
    second_verb, other_determiner, _, other_noun = _predicate(known, subject, draws)
    comma = np.full(len(document), 1 + PUNCTUATION.index(","))
    slots = (
        first["opener"] + (next(draws) & 7),
        comma,
        np.where(is_name, 0, determiner),
        np.where(is_name, 0, adjective),
        np.where(is_name, name, noun),
        first["adverb"] + known.verb_adverbs[verb, next(draws) & 3],
        form + verb,
        *thing,
        first["preposition"] + ((verb + (next(draws) & 1)) & 7),
        place_determiner,
        place_noun,
        comma,
        first["conjunction"] + (next(draws) & 3),
        first["pronoun"] + is_plural,
        form + second_verb,
        other_determiner,
        other_noun,
        _ends(next(draws)),
    )
    ids: Ids = np.stack(slots, axis=1) * _filled_slots()[next(draws) % len(TEMPLATES)]
    # the first word of a sentence is capitalised
    first_words = (ids > 0).argmax(axis=1)
    ids[np.arange(len(ids)), first_words] += len(known.spellings) // 2
    return ids


@cache
def _filled_slots() -> Ids:
    """Return which slots each template fills, as 0 and 1 (templates, slots)."""
    return np.array([[slot in template for slot in SLOTS] for template in TEMPLATES], dtype=np.int64)


def _usual(companions: Ids, of: Ids, draw: Ids, any_word: Ids) -> Ids:
    """Return a companion of each word `of`, now and then any word of the class."""
    # the low bits of a draw select a companion, its three high bits decide if it is used: they are independent
    return np.where(draw < IS_USUAL, companions[of, draw % companions.shape[1]], any_word)


def _noun_phrase(known: Language, noun: Ids, draws: Iterator[Ids]) -> tuple[Ids, Ids, Ids, Ids]:
    """Return determiner, adjective and noun as ids, and 1 for a plural."""
    first = known.first
    draw = next(draws)
    is_plural = (draw >= 40960).astype(np.int64)
    determiner = np.where(is_plural, first["plural"], first["singular"]) + (draw & 7)
    adjective = _usual(known.noun_adjectives, noun, next(draws), zipf_table(ADJECTIVES)[next(draws)])
    form = np.where(is_plural, first["nouns"], first["noun"])
    return determiner, first["adjective"] + adjective, form + noun, is_plural


def _predicate(known: Language, subject: Ids, draws: Iterator[Ids]) -> tuple[Ids, Ids, Ids, Ids]:
    """Return a verb by its number among the verbs, and determiner, adjective and noun of its object as ids."""
    verb = _usual(known.noun_verbs, subject, next(draws), zipf_table(VERBS)[next(draws)])
    thing = _usual(known.verb_objects, verb, next(draws), zipf_table(NOUNS)[next(draws)])
    determiner, adjective, noun, _ = _noun_phrase(known, thing, draws)
    return verb, determiner, adjective, noun


def _ends(draw: Ids) -> Ids:
    """Return the ids of the marks at the end: of 16 sentences, 14 have a full stop."""
    full_stop, exclamation, question = (1 + PUNCTUATION.index(mark) for mark in ".!?")
    return np.select([draw & 15 == 0, draw & 15 == 1], [exclamation, question], full_stop)


def _invent(generator: np.random.PCG64, size: int, seen: set[str]) -> list[str]:
    """Return `size` pronounceable words, short and frequent first; none is in `seen` or looks inflected (-s, -ed)."""
    words: list[str] = []
    while len(words) < size:
        draws: list[int] = draws_of(generator, 1, 8)[0].tolist()
        syllables = 1 if len(words) < SHORT_WORDS else 2
        if draws[0] < 8192:
            syllables += 1
        word = ""
        for onset, nucleus in zip(draws[1::2][:syllables], draws[2::2], strict=False):
            word += _ONSETS[onset % len(_ONSETS)] + _NUCLEI[nucleus % len(_NUCLEI)]
        word += _CODAS[draws[7] % len(_CODAS)]
        if word not in seen and not word.endswith("ed"):
            seen.add(word)
            words.append(word)
    return words
