"""Code points whose normal form C (NFC) the two engines could compute differently, found by comparing the engines.

NFC (Unicode Standard Annex 15) decomposes a text, orders its marks by combining class and composes pairs of code
points. It depends only on the decompositions, the classes and the pairs, so two engines that agree on these for every
code point of a text agree on the text. `unproven` finds the code points for which they do not, or may not:

- unassigned in the Unicode version of this Python. For all others, no version after it changes what NFC does to them
  (the stability policy of Unicode: a new version adds no pair of two code points that were assigned before);
- different ids beside a mark of any combining class, before and after it, which shows decomposition and class;
- different ids as the second part of any pair, which shows whether the engine composes it.

`texts_to_agree` gives texts without such code points, on which both engines must agree; they test the reasoning above.
"""

from __future__ import annotations

import random
import sys
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache

Differ = Callable[[list[str]], list[int]]
"""A function that returns the numbers of the texts whose ids differ between the engines."""

SURROGATES = range(0xD800, 0xE000)
LOWEST, HIGHEST = "\u0334", "\u0345"
"""Marks of the lowest and the highest combining class, 1 and 240, since Unicode 1.1."""
JAMO = range(0x1100, 0x1200)
"""Parts of Hangul syllables, which compose by a rule and not by a table (The Unicode Standard, section 3.12)."""
SYLLABLES = range(0xAC00, 0xD7A4)
FINALS = 28
"""Syllables with the same first two parts; the first of them has no final part."""
FOLLOWERS = "\u0300\u0301\u0316\u0327\u0338\u0345\u093c\u094d\u05b0\u064b\u3099\u0e48\u0f72\u1161\u11a8"
LONGEST_RUN = 200
"""Marks in a row in the random texts."""


def unproven(differ: Differ) -> set[int]:
    """Return the code points that a text must not contain for `differ` to be certain to find no difference."""
    unassigned = {point for point in _points() if unicodedata.category(chr(point)) == "Cn"}
    marks = [point for point in _points() if unicodedata.combining(chr(point))]
    unknown = {marks[number] for number in differ([_beside(chr(mark), [LOWEST, HIGHEST]) for mark in marks])}
    of_each_class: dict[int, str] = {}
    for mark in marks:
        if mark not in unknown:
            of_each_class.setdefault(unicodedata.combining(chr(mark)), chr(mark))
    active = sorted({*marks, *_decomposable(), *(second for _, second in pairs()), *JAMO, *SYLLABLES})
    texts = [_beside(chr(point), list(of_each_class.values())) for point in active]
    different = {active[number] for number in differ(texts)}
    different |= {pairs()[number][1] for number in differ([f"a{chr(a)}{chr(b)}a" for a, b in pairs()])}
    return unassigned | different


@cache
def pairs() -> list[tuple[int, int]]:
    """Return all pairs of code points that a third one decomposes into, and those of Hangul syllables."""
    parts = [unicodedata.decomposition(chr(point)).split() for point in _points()]
    listed = [(int(found[0], 16), int(found[1], 16)) for found in parts if len(found) == 2 and found[0][0] != "<"]
    vowels, finals = range(0x1161, 0x1176), range(0x11A8, 0x11C3)
    listed += [(first, vowel) for first in range(0x1100, 0x1113) for vowel in vowels]
    return listed + [(syllable, final) for syllable in SYLLABLES[::FINALS] for final in finals]


def texts_to_agree(refused: set[int], amount: int, seed: int = 1) -> Iterator[str]:
    """Yield every combination that NFC could change, short of `refused`, then `amount` random texts of such characters.

    Combinations: each code point before each of FOLLOWERS; each first part of a pair before each mark and second part;
    each two parts of Hangul syllables, each syllable in parts, and each before a final part.
    """
    allowed = [chr(point) for point in _points() if point not in refused]
    yield from (" ".join(character + follower for follower in FOLLOWERS) for character in allowed)
    inside = set(allowed)
    firsts = sorted({chr(first) for first, _ in pairs()} & inside)
    seconds = sorted(({chr(second) for _, second in pairs()} | set(filter(unicodedata.combining, allowed))) & inside)
    for first in firsts:
        yield " ".join(first + second for second in seconds)
    for first in filter(inside.__contains__, map(chr, JAMO)):
        yield " ".join(first + second for second in map(chr, JAMO) if second in inside)
    yield from (
        unicodedata.normalize("NFD", chr(syllable)) + chr(syllable) + "\u11a8\u11a7\u1161" for syllable in SYLLABLES
    )
    decomposable = [chr(point) for point in _decomposable() if chr(point) in inside]
    yield from _random_texts([allowed, firsts, seconds, decomposable, list(map(chr, JAMO))], inside, amount, seed)


def _random_texts(kinds: list[list[str]], inside: set[str], amount: int, seed: int) -> Iterator[str]:
    generator = random.Random(seed)
    kinds = [[character for character in kind if character in inside] for kind in [*kinds, list("aA1 \n'<|\u00e9")]]
    for number in range(amount):
        if number % 100 == 0:
            yield "a" + "".join(generator.choices(kinds[2], k=generator.randrange(LONGEST_RUN))) + "b"
        yield "".join(generator.choice(generator.choice(kinds)) for _ in range(generator.randrange(2, 24)))


def _beside(character: str, marks: list[str]) -> str:
    """Return a character alone, before and after each mark."""
    return f"{character}a\n" + "".join(f"a{mark}{character}b a{character}{mark}b\n" for mark in marks)


def _decomposable() -> Iterator[int]:
    return (point for point in _points() if unicodedata.normalize("NFD", chr(point)) != chr(point))


def _points() -> Iterator[int]:
    return (point for point in range(sys.maxunicode + 1) if point not in SURROGATES)
