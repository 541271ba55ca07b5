"""Find every code point that the two engines could encode differently, and write data/engines/guard.json.

    python -m data.engines.make_guard [--output FILE]

Run it when `tokenizers` or `gigatoken` changes; it takes about ten minutes. docs/data.md explains the guard. For
each scheme of data/engines/schemes.py, both engines encode every code point in many contexts (next to letters, digits,
spaces, line ends, quotes, itself). The vocabulary has a token for every two adjacent bytes of a piece, so the ids show
each border between pieces. A code point with any difference is guarded.

If the scheme normalises text to NFC (Unicode Standard Annex 15), more code points are guarded. NFC decomposes a text,
orders its marks by combining class and composes pairs of code points. It depends only on the decompositions, the
classes and the pairs, so two engines that agree on these for every code point of a text agree on the text. `unproven`
finds the code points for which they do not, or may not:

- unassigned in the Unicode version of this Python. For all others, no version after it changes what NFC does to them
  (the stability policy of Unicode: a new version adds no pair of two code points that were assigned before);
- different ids beside a mark of any combining class, before and after it, which shows decomposition and class;
- different ids as the second part of any pair, which shows whether the engine composes it.

Then both engines must agree on all combinations and many random texts of the rest, which tests the reasoning above.
"""

from __future__ import annotations

import json
import random
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import metadata
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tqdm import tqdm

from data.engines.guard import GUARD_PATH
from data.engines.schemes import SCHEMES, Scheme, byte_letters
from utils.arguments import Parser, first_line, refusing, run
from utils.errors import ForeignFileError
from utils.files import written_whole
from utils.own_files import json_with, require_ours

Differ = Callable[[list[str]], list[int]]
"""A function that returns the numbers of the texts whose ids differ between the engines."""

LIBRARIES = ("tokenizers", "gigatoken")
CONTEXTS = (
    *("X", "aX", "Xa", "XX", " X", "X ", "  X", "X  ", "1X", "X1", "!X", "X!", " !X"),
    *("\nX", "X\n", "X\r\n", "X \n", "\tX"),
    *("'X", "'Xa", "a'X", "'rX", "'Xe", "'lX", "'Xl", "\u00e9X", "X\u00e9", "\u0663X", "X\u3000", "X\u2019"),
)
"""X is the code point; an "a" and a line end separate two contexts."""
FAR_CONTEXTS = ("aXa", "1X1", " X !X\n")
"""Contexts for the planes that are unassigned or for private use only."""
NEAR = (range(0x34000), range(0xE0000, 0xE0200))
POINTS = [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]
"""All code points but the surrogates, which no text contains."""
LOWEST, HIGHEST = "\u0334", "\u0345"
"""Marks of the lowest and the highest combining class, 1 and 240, since Unicode 1.1."""
JAMO = [chr(point) for point in range(0x1100, 0x1200)]
"""Parts of Hangul syllables, which compose by a rule and not by a table (The Unicode Standard, section 3.12)."""
SYLLABLES = range(0xAC00, 0xD7A4)
FINALS = 28
"""Syllables with the same first two parts; the first of them has no final part."""
FOLLOWERS = "\u0300\u0301\u0316\u0327\u0338\u0345\u093c\u094d\u05b0\u064b\u3099\u0e48\u0f72\u1161\u11a8"
LONGEST_RUN = 200
"""Marks in a row in the random texts."""
RANDOM_TEXTS = 200_000
_BATCH = 1024
_is_guard = json_with("unicode_of_the_generator", "schemes")


@refusing((ForeignFileError,), (OSError,), interrupted="")
def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = Parser(
        {"--output": {"type": Path, "default": GUARD_PATH, "help": "JSON file to write (default: %(default)s)"}},
        prog="python -m data.engines.make_guard",
        description=first_line(__doc__),
        epilog="Exit codes: 0 success; 2 the output is a file that this suite did not write.",
    )
    output = parser.parse_args(arguments).output
    require_ours(_is_guard, output)
    schemes = {scheme.name: ranges(guarded(scheme)) for scheme in SCHEMES}
    content = {
        "versions": {name: metadata.version(name) for name in LIBRARIES},
        "unicode_of_the_generator": unicodedata.unidata_version,
        "schemes": schemes,
    }
    with written_whole(output, is_ours=_is_guard) as (temporary,):
        temporary.write_text(dumps(content), encoding="utf8")
    for name, found in schemes.items():
        print(f"{name}: {sum(last - first + 1 for first, last in found):,} code points in {len(found)} ranges")
    return 0


def guarded(scheme: Scheme, amount: int = RANDOM_TEXTS) -> list[int]:
    """Return the code points, in order, that texts for the fast engine must not contain.

    Raises RuntimeError if the engines differ on a text without them, of which `amount` are random.
    """
    differ = comparison(scheme)
    found = set(different(scheme.name, differ))
    if scheme.normalizes:
        found |= unproven(differ)
        texts = texts_to_agree(found, amount)
        for batch in tqdm(iter(lambda: list(islice(texts, _BATCH)), []), f"check {scheme.name}", disable=None):
            if wrong := differ(batch):
                raise RuntimeError(
                    f"{scheme.name}: the engines differ on {ascii(batch[wrong[0]])}, which is not guarded"
                )
    return sorted(found)


def comparison(scheme: Scheme) -> Differ:
    """Return a function that compares the ids of both engines, whose vocabularies show all borders of pieces."""
    import gigatoken

    content = json.dumps(probe(scheme))
    reference, fast = Tokenizer.from_str(content), gigatoken.Tokenizer.from_json(content)

    def differ(texts: list[str]) -> list[int]:
        expected = [encoding.ids for encoding in reference.encode_batch_fast(texts, add_special_tokens=False)]
        found = fast.encode_batch_list(texts, parallel=True)
        return [number for number, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b]

    return differ


def different(name: str, differ: Differ) -> Iterator[int]:
    """Yield the code points with a context whose ids differ between the engines; `name` is that of the scheme."""
    for start in tqdm(range(0, len(POINTS), _BATCH), f"compare {name}", disable=None):
        points = POINTS[start : start + _BATCH]
        texts = [text_of(point) for point in points] + [chr(point) for point in points]
        yield from sorted({points[number % len(points)] for number in differ(texts)})


def text_of(point: int) -> str:
    """Return all contexts of one code point."""
    contexts = CONTEXTS if any(point in near for near in NEAR) else FAR_CONTEXTS
    return "a\n".join(contexts).replace("X", chr(point))


def probe(scheme: Scheme) -> dict[str, Any]:
    """Return a tokenizer.json of `scheme` whose ids show where pieces begin and end.

    Its vocabulary is the 256 bytes and every pair of bytes. Pairs that can span a border between characters come
    first: an ASCII byte beside another, then the last byte of one character and the first of the next. So the two
    bytes at a border of characters are one token unless a border of pieces separates them.
    """
    letters = byte_letters()
    pairs = [(first, second) for first in range(256) for second in range(256)]
    pairs.sort(key=lambda pair: (not _is_border(*pair), pair))
    vocabulary = {letter: byte for byte, letter in enumerate(letters)}
    vocabulary |= {letters[a] + letters[b]: 256 + number for number, (a, b) in enumerate(pairs)}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": scheme.normalizer,
        "pre_tokenizer": scheme.pre_tokenizer,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [[letters[a], letters[b]] for a, b in pairs]},
    }


def _is_border(first: int, second: int) -> bool:
    """Return True if one character can end with the first byte and another begin with the second, not both ASCII."""
    return (first < 0xC0) and (second < 0x80 or second >= 0xC2) and not (first < 0x80 and second < 0x80)


def unproven(differ: Differ) -> set[int]:
    """Return the code points that a text must not contain for `differ` to be certain to find no difference in NFC."""
    marks = [point for point in POINTS if unicodedata.combining(chr(point))]
    unknown = {marks[number] for number in differ([_beside(mark, [LOWEST, HIGHEST]) for mark in marks])}
    first_of_each_class = {unicodedata.combining(chr(p)): chr(p) for p in reversed(marks) if p not in unknown}
    active = sorted({*marks, *_decomposable(), *(second for _, second in pairs()), *map(ord, JAMO), *SYLLABLES})
    different = {active[number] for number in differ([_beside(p, first_of_each_class.values()) for p in active])}
    different |= {pairs()[number][1] for number in differ([f"a{chr(a)}{chr(b)}a" for a, b in pairs()])}
    return different | {point for point in POINTS if unicodedata.category(chr(point)) == "Cn"}


@cache
def pairs() -> list[tuple[int, int]]:
    """Return all pairs of code points that a third one decomposes into, and those of Hangul syllables."""
    parts = [unicodedata.decomposition(chr(point)).split() for point in POINTS]
    listed = [(int(found[0], 16), int(found[1], 16)) for found in parts if len(found) == 2 and found[0][0] != "<"]
    vowels, finals = range(0x1161, 0x1176), range(0x11A8, 0x11C3)
    listed += [(first, vowel) for first in range(0x1100, 0x1113) for vowel in vowels]
    return listed + [(syllable, final) for syllable in SYLLABLES[::FINALS] for final in finals]


def texts_to_agree(refused: set[int], amount: int, seed: int = 1) -> Iterator[str]:
    """Yield every combination that NFC could change, short of `refused`, then `amount` random texts of such characters.

    Combinations: each code point before each of FOLLOWERS; each first part of a pair before each mark and second part;
    each two parts of Hangul syllables, each syllable in parts, and each before a final part.
    """
    allowed = [chr(point) for point in POINTS if point not in refused]
    inside = set(allowed)
    firsts = sorted({chr(first) for first, _ in pairs()} & inside)
    seconds = sorted(({chr(second) for _, second in pairs()} | set(filter(unicodedata.combining, allowed))) & inside)
    jamo = [part for part in JAMO if part in inside]
    for characters, followers in ((allowed, FOLLOWERS), (firsts, seconds), (jamo, jamo)):
        yield from (" ".join(character + follower for follower in followers) for character in characters)
    for syllable in map(chr, SYLLABLES):
        yield unicodedata.normalize("NFD", syllable) + syllable + "\u11a8\u11a7\u1161"
    decomposable = [chr(point) for point in _decomposable() if point not in refused]
    kinds = [allowed, firsts, seconds, decomposable, jamo, list("aA1 \n'<|\u00e9")]
    generator = random.Random(seed)
    for number in range(amount):
        if number % 100 == 0:
            yield "a" + "".join(generator.choices(seconds, k=generator.randrange(LONGEST_RUN))) + "b"
        yield "".join(generator.choice(generator.choice(kinds)) for _ in range(generator.randrange(2, 24)))


def _beside(point: int, marks: Iterable[str]) -> str:
    """Return a character alone, before and after each mark."""
    character = chr(point)
    return f"{character}a\n" + "".join(f"a{mark}{character}b a{character}{mark}b\n" for mark in marks)


def _decomposable() -> Iterator[int]:
    return (point for point in POINTS if unicodedata.normalize("NFD", chr(point)) != chr(point))


def ranges(points: list[int]) -> list[list[int]]:
    """Return sorted numbers as [first, last] pairs."""
    runs = (list(run) for _, run in groupby(enumerate(points), lambda numbered: numbered[1] - numbered[0]))
    return [[run[0][1], run[-1][1]] for run in runs]


def dumps(content: dict[str, Any]) -> str:
    """Return the JSON of the guard, a range a line."""
    return re.sub(r"\[\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2]", json.dumps(content, indent=1)) + "\n"


if __name__ == "__main__":
    sys.exit(run(main))
