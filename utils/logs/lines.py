"""Lines of a log that may describe a training, the numbers in them, and the data that are read from them.

A file is read in small pieces, so that memory does not grow with the log. Most lines of a training log are not
iteration lines: a few words are searched in a whole piece, and only lines that hold one of them are parsed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

PRIM, NEMO, MEGA, BRIDGE, TORCHTITAN, HF, OURS = ("prim", "nemo", "mega", "bridge", "torchtitan", "hf", "ours")
FRAMEWORKS = (PRIM, NEMO, MEGA, BRIDGE, TORCHTITAN, HF, OURS)
"""Names of the frameworks that print a log; `ours` is what our own recorder prints."""
WORDS = (
    b"iteration",
    b"loss",
    b"....",
    b"exited with code",
    b"of parameters",
    b"padded vocab",
    b"ut of memory",
    b"world size:",
    b"initialized with",
    b"device mesh",
    b"_TFLOP/s/GPU",
)
"""Every line that a format of `utils/logs/reader.py` uses holds one of these."""
PIECE_BYTES = 1 << 17
"""Read at once: a size that stays in the cache of a core during the search for WORDS."""
LONGEST_LINE_BYTES = 1 << 20
"""A longer line is read in parts; no line of a trainer is nearly as long."""
_ANSI = re.compile(r"\x1b?\[[0-9;]*m")
"""Colours; some log shippers remove only the ESC."""
_NUMBER = re.compile(r"(-?)(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d*))?(?:[eE]([-+]?\d+))?")
_LARGEST_EXPONENT = 300


class Line(NamedTuple):
    """One line of a log without colours; `is_whole` is false if the file ends before the line does."""

    text: str
    path: Path
    number: int
    """From 1; carriage returns do not count."""
    is_whole: bool

    @property
    def where(self) -> str:
        """Return `name:number` for messages."""
        return f"{self.path.name}:{self.number}"


class Printed(NamedTuple):
    """A number as printed: the true value is from `value - half_unit` to `value + half_unit`."""

    value: float
    half_unit: float
    digits: int
    """Significant digits."""


def lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file that hold one of WORDS; a carriage return ends a line as well.

    Bytes that are not UTF-8 are replaced. Raises OSError if the file cannot be read.
    """
    with path.open("rb") as file:
        first = 1
        for piece, is_last in _pieces(file):
            yield from _chosen(piece, path, first, is_last)
            first += piece.count(b"\n")


def _pieces(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yield pieces that end with a line, and whether it is the last piece, which may end within a line."""
    rest = b""
    while read := file.read(PIECE_BYTES):
        piece = rest + read
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        # a file without line ends, such as a binary one, must not fill the memory
        if not end and len(piece) > LONGEST_LINE_BYTES:
            end = len(piece)
        rest = piece[end:]
        if end:
            yield piece[:end], False
    if rest:
        yield rest, True


def _chosen(piece: bytes, path: Path, first: int, is_last: bool) -> Iterator[Line]:
    counted_to, number = 0, first
    for start in sorted(_starts(piece)):
        end = piece.find(b"\n", start)
        if end < 0:
            end = len(piece)
        # only the line feeds since the line before are counted, so that a piece is counted once
        number += piece.count(b"\n", counted_to, start)
        counted_to = start
        # progress bars end their lines with carriage returns only
        *parts, last = piece[start:end].rstrip(b"\r").split(b"\r")
        for part in parts:
            yield Line(_clean(part), path, number, True)
        yield Line(_clean(last), path, number, not (is_last and end == len(piece)))


def _starts(piece: bytes) -> set[int]:
    """Return the starts of the lines that hold one of WORDS."""
    starts = set()
    for word in WORDS:
        at = piece.find(word)
        while at >= 0:
            starts.add(piece.rfind(b"\n", 0, at) + 1)
            end = piece.find(b"\n", at)
            # the rest of this line is known to be of interest
            at = piece.find(word, end) if end >= 0 else -1
    return starts


def _clean(line: bytes) -> str:
    text = line.decode("utf8", "replace")
    return _ANSI.sub("", text) if "[" in text else text


def between(text: str, starts: Iterable[re.Match[str]]) -> Iterator[tuple[str, re.Match[str], str, bool]]:
    """Yield each start in a text, with what is before it and up to the next one, and whether it is the last."""
    matches = list(starts)
    before = 0
    for place, start in enumerate(matches, start=1):
        is_last = place == len(matches)
        end = len(text) if is_last else matches[place].start()
        yield text[before : start.start()], start, text[start.end() : end], is_last
        before = start.end()


def number(text: str | None, power: int = 0) -> Printed | None:
    """Return the number in `text`, times ten to the `power`; thousands commas are allowed.

    Returns None for anything else, also for NaN.
    """
    match = _NUMBER.fullmatch(text.strip()) if text else None
    if match is None:
        return None
    sign, whole, fraction, exponent_text = match.groups("")
    whole = whole.replace(",", "")
    # six characters are enough to see that an exponent is too large; a million digits would take long to convert
    exponent = int(exponent_text[:6] or 0) + power
    if not -_LARGEST_EXPONENT <= exponent <= _LARGEST_EXPONENT or len(whole) > _LARGEST_EXPONENT:
        return None
    value = float(f"{sign}{whole}.{fraction}e{exponent}")
    if not math.isfinite(value):
        return None
    digits = len((whole + fraction).lstrip("0"))
    return Printed(value, 0.5 * 10.0 ** (exponent - len(fraction)), max(digits, 1))


def rounded_to(digits: int, printed: Printed | None) -> Printed | None:
    """Return a number that was printed with `digits` significant digits and without trailing zeros (`{:.4}`)."""
    if printed is None or printed.value == 0:
        return printed
    magnitude = math.floor(math.log10(abs(printed.value)))
    return Printed(printed.value, 0.5 * 10.0 ** (magnitude - digits + 1), digits)


def whole_number(text: str | None) -> int | None:
    """Return the integer in `text`, thousands commas allowed; None for anything else."""
    printed = number(text)
    # a float holds every integer below 2^53 exactly
    if text is None or printed is None or "." in text or printed.value >= 2**53:
        return None
    return int(printed.value)


class Fact(NamedTuple):
    """A figure of the whole run, and its line (`name:number`)."""

    value: int | float | str
    where: str


@dataclass(frozen=True)
class RunLog:
    """A training as recorded in its log. Nothing is guessed: what no line holds is None or missing.

    A run without problems has each iteration from 1 to the last, except `excluded`, with a time and a loss.
    """

    framework: str
    """`prim`, `nemo`, `mega`, `hf`, `torchtitan`, `bridge` or `ours`."""
    format: str
    """Generation of its lines, in words; several are joined by ` + `."""
    steps: tuple[IterationLine, ...]
    """One entry per iteration, sorted by number; without those of `excluded`."""
    excluded: Mapping[int, str]
    """Iterations that were printed but are excluded, with the reason."""
    facts: Mapping[str, Fact]
    """`world_size`, `global_batch_size`, `total_steps`, `sequence_length` and others: see utils/logs/facts.py."""
    memory: Mapping[str, Memory]
    """The largest figure of each meaning."""
    problems: tuple[str, ...]
    """Faults of the run, worst first; empty for a good run."""
    notes: tuple[str, ...]
    """Remarks for a reader of the numbers."""
    status: str
    """`ok`, or the kind of the problems: `nan`, `oom`, `failed`."""

    def samples(self, left_out: Container[int] = ()) -> dict[str, list[Any]]:
        """Return the samples of a result: one each of the iterations whose time is known, without those `left_out`."""
        timed = []
        for step in self.steps:
            if step.step_time is not None and step.number not in left_out:
                timed.append(step)
        return {
            "steps": [step.number for step in timed],
            "step_times": [value_of(step.step_time) for step in timed],
            "data_wait_seconds": [None] * len(timed),
            "loss_values": [value_of(step.loss) for step in timed],
            "grad_norms": [value_of(step.grad_norm) for step in timed],
            "learning_rates": [value_of(step.learning_rate) for step in timed],
        }

    @property
    def reason(self) -> str | None:
        """All problems in one text; None for a good run."""
        return "; ".join(self.problems) or None

    def fact(self, name: str) -> int | float | str | None:
        """Return a figure of the whole run; None if the log does not hold it."""
        fact = self.facts.get(name)
        return fact.value if fact else None


def value_of(printed: Printed | None) -> float | None:
    """Return the number without its rounding."""
    return None if printed is None else printed.value


MEBIBYTE_IN_GB = 2**20 / 1e9
GIBIBYTE_IN_GB = 2**30 / 1e9


class Memory(NamedTuple):
    """A memory figure and its meaning: `allocated` of the framework is not `used` of the whole device."""

    meaning: str
    gb: float
    """GB of 1e9 bytes, computed from the printed figure and its real unit."""
    printed: str
    """Figure and unit as printed in the log."""
    where: str


@dataclass(slots=True)
class IterationLine:
    """The instantaneous values of one iteration in one line; None for what the line does not hold."""

    framework: str
    format: str
    number: int
    """From 1, also if the framework counts from 0."""
    total: int | None
    where: str
    step_time: Printed | None = None
    """Seconds."""
    loss: Printed | None = None
    """Nats per token; also None if it is not finite."""
    grad_norm: Printed | None = None
    learning_rate: Printed | None = None
    tokens: Printed | None = None
    """Tokens per second and GPU."""
    tflops: Printed | None = None
    """TFLOP/s per GPU by the framework's own formula."""
    global_batch_size: int | None = None
    consumed_samples: int | None = None
    world_size: int | None = None
    is_mean_of_two: bool = False
    """Time and loss are means over this iteration and the one before."""
    excluded: str = ""
    """Why its time does not count; empty if it does."""
    is_from_any_rank: bool = False
    """Every rank prints such a line, with its own clock."""
    not_finite: list[str] = field(default_factory=list)
    """Values in it that are not finite, in words."""
    troubles: list[str] = field(default_factory=list)
    """Its other faults, in words."""
    memory: tuple[Memory, ...] = ()

    @property
    def title(self) -> str:
        """The iteration and its line, for messages."""
        return f"iteration {self.number} ({self.where})"
