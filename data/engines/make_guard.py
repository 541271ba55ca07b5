"""Find every code point that the two engines could encode differently, and write data/engines/guard.json.

    python -m data.engines.make_guard [--output FILE]

Run it when `tokenizers` or `gigatoken` changes; it takes about ten minutes. For each scheme of data/engines/schemes.py,
both engines encode every code point in many contexts (next to letters, digits, spaces, line ends, quotes, itself). The
vocabulary has a token for every two adjacent bytes of a piece, so the ids show each border between pieces. A code point
with any difference is guarded. If the scheme normalises text (NFC), data/engines/normal_form.py finds the code points
whose normal form could differ. Then both engines must agree on all combinations and many random texts of the rest.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterator
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tqdm import tqdm

from data.engines.guard import GUARD_PATH
from data.engines.normal_form import SURROGATES, Differ, texts_to_agree, unproven
from data.engines.schemes import SCHEMES, Scheme, byte_letters
from utils.arguments import Parser, first_line, run
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
RANDOM_TEXTS = 200_000
_BATCH = 1024
_is_guard = json_with("unicode_of_the_generator", "schemes")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = Parser(
        prog="python -m data.engines.make_guard",
        description=first_line(__doc__),
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


def guarded(scheme: Scheme, amount: int = RANDOM_TEXTS) -> list[int]:
    """Return the code points, in order, that texts for the fast engine must not contain.

    Raises RuntimeError if the engines differ on a text without them, of which `amount` are random.
    """
    differ = comparison(scheme)
    found = set(different(scheme))
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

    reference = Tokenizer.from_str(json.dumps(probe(scheme)))
    fast = gigatoken.Tokenizer.from_json(json.dumps(probe(scheme)))

    def differ(texts: list[str]) -> list[int]:
        expected = [encoding.ids for encoding in reference.encode_batch_fast(texts, add_special_tokens=False)]
        found = fast.encode_batch_list(texts, parallel=True)
        return [number for number, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b]

    return differ


def different(scheme: Scheme, code_points: range = range(sys.maxunicode + 1)) -> Iterator[int]:
    """Yield the code points with a context whose ids differ between the engines."""
    differ = comparison(scheme)
    for start in tqdm(range(code_points.start, code_points.stop, _BATCH), f"compare {scheme.name}", disable=None):
        points = [p for p in range(start, min(start + _BATCH, code_points.stop)) if p not in SURROGATES]
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
    sys.exit(run(main))
