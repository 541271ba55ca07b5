"""Runs that differ from their own side: one with another setting, other data or another loss beside several that agree.

Such a run is named and left out, and the side stays. This needs a majority: more than half of the runs of the side
agree, at least two. Without one nothing is left out, and the certificate finds that the side does not agree with
itself. A run is never left out for its speed, nor for its environment: a handicap of one run counts for the side.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evaluate.checks.entries import Entry
from evaluate.checks.recorded import grouped
from evaluate.fairness.certificate import (
    DATA,
    FOLLOW_THE_SEED,
    MEANS,
    MODEL,
    WORK,
)
from evaluate.fairness.early import first_leap
from evaluate.fairness.items import shown
from evaluate.fairness.losses import FIRST_LOSS_EQUAL_INIT, FIRST_LOSS_NATIVE_INIT, LAST_LOSS
from evaluate.metrics.metrics import last_loss
from evaluate.verdict.pairs import BEST, LEFT_OUT, side_key
from utils.results.schema import Result

FEWEST = 3
"""Fewest runs of one seed among which one can have an odd loss."""
SINGLE_RUN = 5
"""Times the certificate's band of an equal first loss: a single run scatters more than the mean of a side."""


def without_odd_runs(entries: Sequence[Entry], by: str) -> list[Entry]:
    """Return the entries; those that differ from their own side are rejected with the reason."""
    sides = grouped((entry for entry in entries if entry.is_counted), lambda entry: side_key(entry.result, by))
    odd = {id(entry): reasons for side in sides.values() for entry, reasons in _odd(side)}
    return [
        replace(entry, findings=entry.findings.with_rejections(odd[id(entry)])) if id(entry) in odd else entry
        for entry in entries
    ]


def _odd(side: Sequence[Entry]) -> Iterator[tuple[Entry, list[str]]]:
    """Yield the odd runs of a side with their reasons; none unless the others are the majority of the side."""
    results = [entry.result for entry in side]
    reasons: list[list[str]] = [[] for _ in side]
    resolved = MODEL | WORK | ({} if results[0]["method"] == BEST else MEANS)
    properties = {("resolved_config", key): name for key, name in resolved.items()}
    properties |= {("fingerprint", key): name for key, name in DATA.items() if key != "initial_weights_sha256"}
    for (section, key), name in properties.items():  # in which the runs of one side must agree
        places = range(len(results))
        for group in _by_seed(places, results) if key in FOLLOW_THE_SEED else [places]:
            for place, reason in _minority(name, {place: results[place][section].get(key) for place in group}):
                reasons[place].append(reason)
    for of_one_seed in _by_seed([place for place, found in enumerate(reasons) if not found], results):
        for place, reason in _odd_losses(of_one_seed, results):
            reasons[place].append(reason)
    if sum(not found for found in reasons) > len(side) / 2:
        yield from (
            (entry, [f"{LEFT_OUT}: {reason}" for reason in found])
            for entry, found in zip(side, reasons, strict=True)
            if found
        )


def _minority(name: str, values: Mapping[int, Any]) -> Iterator[tuple[int, str]]:
    """Yield the places of known values that more than half of the known values contradict."""
    texts = {place: json.dumps(value, sort_keys=True) for place, value in values.items() if value is not None}
    ((usual, count),) = Counter(texts.values()).most_common(1) or [("", 0)]
    for place, text in texts.items():
        if text != usual and count > max(1, len(texts) / 2):
            ran, other = shown(json.loads(text)), shown(json.loads(usual))
            yield place, f"{name} {ran}, but {other} in {count} other runs of its side"


def _by_seed(places: Iterable[int], results: Sequence[Result]) -> list[list[int]]:
    """Return the places of each known seed; runs of unknown seeds may have one each, and are compared with no other."""
    found = grouped(places, lambda place: results[place]["resolved_config"].get("seed"))
    return [members for seed, members in found.items() if seed is not None]


def _odd_losses(places: Sequence[int], results: Sequence[Result]) -> Iterator[tuple[int, str]]:
    """Yield runs of one seed whose first or last loss lies outside a band around the median.

    The last losses of runs of which one is unstable may differ by chaos alone.
    """
    known = [place for place in places if results[place]["loss_values"] and None not in results[place]["loss_values"]]
    if len(known) < FEWEST:
        return
    is_equal = all(results[place]["resolved_config"].get("init") == "equal" for place in known)
    first_band = SINGLE_RUN * FIRST_LOSS_EQUAL_INIT if is_equal else FIRST_LOSS_NATIVE_INIT
    readers: list[tuple[str, Callable[[Result], float], float]] = [
        ("first loss", lambda result: float(result["loss_values"][0]), first_band)
    ]
    if not any(first_leap(results[place]) for place in known):
        readers.append(("last loss", last_loss, LAST_LOSS))
    for name, read, band in readers:
        losses = {place: read(results[place]) for place in known}
        middle = statistics.median(losses.values())
        odd = {place: loss for place, loss in losses.items() if abs(loss - middle) > band * middle}
        if len(odd) < len(known) / 2:
            others = f"{middle:.5g} in {len(known) - len(odd)} other runs of its side"
            yield from ((place, f"{name} {loss:.5g}, but {others}") for place, loss in odd.items())
