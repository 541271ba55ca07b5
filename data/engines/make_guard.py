"""Find every code point that the two engines could encode differently, and write data/engines/guard.json.

    python -m data.engines.make_guard [--output FILE]

Run it when `tokenizers` or `gigatoken` changes; it takes a few minutes. For each scheme of data/engines/schemes.py,
both engines encode every code point in many contexts (next to letters, digits, spaces, line ends, quotes, itself). The
vocabulary has a token for every two adjacent bytes of a piece, so the ids show each border between pieces. A code point
with any difference is guarded. If the scheme normalises text (NFC), a code point is also guarded if its normal form
could depend on the version of Unicode: it has a combining class, does not certainly pass NFC's quick check, or is
unassigned in the Unicode version of this Python.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tqdm import tqdm

from data.engines.guard import GUARD_PATH
from data.engines.schemes import SCHEMES, Scheme, byte_letters
from utils.arguments import Parser
from utils.errors import ForeignFileError
from utils.files import written_whole
from utils.own_files import json_with, require_ours

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
SURROGATES = range(0xD800, 0xE000)
HANGUL_VOWELS_AND_FINALS = range(0x1161, 0x1200)
"""Second and third parts of syllables, which compose with the preceding characters."""
_BATCH = 1024
_is_guard = json_with("unicode_of_the_generator", "schemes")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = Parser(
        prog="python -m data.engines.make_guard",
        description=__doc__.splitlines()[0],
        epilog="Exit codes: 0 success; 2 the output is a file that this suite did not write.",
    )
    parser.add_argument("--output", type=Path, default=GUARD_PATH, help="JSON file to write (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        require_ours(_is_guard, options.output)
    except ForeignFileError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    schemes = {scheme.name: ranges(guarded(scheme)) for scheme in SCHEMES}
    content = {
        "versions": {name: metadata.version(name) for name in LIBRARIES},
        "unicode_of_the_generator": unicodedata.unidata_version,
        "schemes": schemes,
    }
    with written_whole(options.output, is_ours=_is_guard) as (temporary,):
        temporary.write_text(dumps(content), encoding="utf8")
    for name, found in schemes.items():
        print(f"{name}: {sum(last - first + 1 for first, last in found):,} code points in {len(found)} ranges")
    return 0


def guarded(scheme: Scheme) -> list[int]:
    """Return the code points, in order, that texts for the fast engine must not contain."""
    normalized = set(unstable_under_nfc()) if scheme.normalizes else set()
    return sorted(normalized | set(different(scheme)))


def different(scheme: Scheme, code_points: range = range(sys.maxunicode + 1)) -> Iterator[int]:
    """Yield the code points with a context whose ids differ between the engines."""
    import gigatoken

    reference = Tokenizer.from_str(json.dumps(probe(scheme)))
    fast = gigatoken.Tokenizer.from_json(json.dumps(probe(scheme)))
    for start in tqdm(range(code_points.start, code_points.stop, _BATCH), f"compare {scheme.name}", disable=None):
        points = [p for p in range(start, min(start + _BATCH, code_points.stop)) if p not in SURROGATES]
        texts = [text_of(point) for point in points] + [chr(point) for point in points]
        expected = [encoding.ids for encoding in reference.encode_batch_fast(texts, add_special_tokens=False)]
        found = fast.encode_batch_list(texts, parallel=True)
        for number, (theirs, ours) in enumerate(zip(expected, found, strict=True)):
            if theirs != ours:
                yield points[number % len(points)]


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


def unstable_under_nfc() -> Iterator[int]:
    """Yield the code points whose normal form C could differ between versions of Unicode."""
    composing = set(HANGUL_VOWELS_AND_FINALS)
    for point in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(point)).split()
        if parts and not parts[0].startswith("<"):
            composing |= {int(part, 16) for part in parts[1:]}
    for point in range(sys.maxunicode + 1):
        character = chr(point)
        is_certain = (
            unicodedata.combining(character) == 0
            and unicodedata.is_normalized("NFC", character)
            and unicodedata.category(character) != "Cn"
            and point not in composing
        )
        if point not in SURROGATES and not is_certain:
            yield point


def ranges(points: list[int]) -> list[list[int]]:
    """Return sorted numbers as [first, last] pairs."""
    found: list[list[int]] = []
    for point in points:
        if found and point == found[-1][1] + 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return found


def dumps(content: dict[str, Any]) -> str:
    """Return the JSON of the guard, eight ranges a line."""
    text = json.dumps({**content, "schemes": {}}, indent=1)[: -len("{}\n}")]
    blocks = []
    for name, found in content["schemes"].items():
        rows = [", ".join(map(json.dumps, found[i : i + 8])) for i in range(0, len(found), 8)]
        blocks.append(f'  "{name}": [\n   ' + ",\n   ".join(rows) + "\n  ]")
    return text + "{\n" + ",\n".join(blocks) + "\n }\n}\n"


if __name__ == "__main__":
    sys.exit(main())
