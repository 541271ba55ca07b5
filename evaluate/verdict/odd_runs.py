"""Runs that differ from their own side: one with another setting, other data or another loss beside several that agree.

Such a run is named and left out, and the side stays. This needs a majority: more than half of the runs of the side
agree, at least two. Without one nothing is left out, and the certificate finds that the side does not agree with
itself. A run is never left out for its speed, nor for its environment: a handicap of one run counts for the side.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from evaluate.checks.entries import Entry
from evaluate.checks.recorded import grouped
from evaluate.fairness.certificate import DATA, FOLLOW_THE_SEED, MEANS, MODEL, WORK
from evaluate.fairness.early import first_leap
from evaluate.fairness.items import shown
from evaluate.fairness.losses import FIRST_LOSS_EQUAL_INIT, FIRST_LOSS_NATIVE_INIT, LAST_LOSS
from evaluate.metrics.metrics import last_loss
from evaluate.verdict.pairs import BEST, LEFT_OUT, side_key

FEWEST = 3
"""Fewest runs of one seed among which one can have an odd loss."""
SINGLE_RUN = 5
"""Times the certificate's band of an equal first loss: a single run scatters more than the mean of a side."""


def without_odd_runs(entries: Sequence[Entry], by: str) -> list[Entry]:
    """Return the entries; those that differ from their own side are rejected with the reason."""
    sides = grouped((entry for entry in entries if entry.is_counted), lambda entry: side_key(entry.result, by))
    reasons: dict[int, list[str]] = {}
    for side in sides.values():
        reasons |= _odd(side)
    checked = []
    for entry in entries:
        more = [f"{LEFT_OUT}: {reason}" for reason in reasons.get(id(entry), ())]
        checked.append(replace(entry, findings=entry.findings.with_rejections(more)) if more else entry)
    return checked


def _odd(side: Sequence[Entry]) -> dict[int, list[str]]:
    """Return the reasons of each odd run of a side by its `id`; none unless the others are the majority of the side."""
    reasons: dict[int, list[str]] = {}

    def note(found: Iterable[tuple[Entry, str]]) -> None:
        for entry, reason in found:
            reasons.setdefault(id(entry), []).append(reason)

    # with METHOD=best the means are chosen by speed, and their runs are other layouts
    resolved = MODEL | WORK
    if side[0].result["method"] != BEST:
        resolved = resolved | MEANS
    for key, name in resolved.items():
        note(_minority(name, "resolved_config", key, side))
    for key, name in DATA.items():
        if key == "initial_weights_sha256":
            continue  # not part of the work: each framework may draw its own
        for runs in _by_seed(side) if key in FOLLOW_THE_SEED else [side]:
            note(_minority(name, "fingerprint", key, runs))
    for runs in _by_seed([entry for entry in side if id(entry) not in reasons]):
        note(_odd_losses(runs))
    return reasons if len(reasons) < len(side) / 2 else {}


def _minority(name: str, section: str, key: str, runs: Sequence[Entry]) -> Iterator[tuple[Entry, str]]:
    """Yield the runs with a value that more than half of the known values contradict."""
    texts = [(entry, json.dumps(entry.result[section].get(key), sort_keys=True)) for entry in runs]
    known = [(entry, text) for entry, text in texts if text != "null"]
    counts = Counter(text for _, text in known)
    for usual, count in counts.most_common(1):
        # two runs that contradict each other have no majority
        if count <= max(1, len(known) / 2):
            return
        for entry, text in known:
            if text != usual:
                ran, other = shown(json.loads(text)), shown(json.loads(usual))
                yield entry, f"{name} {ran}, but {other} in {count} other runs of its side"


def _by_seed(side: Sequence[Entry]) -> list[list[Entry]]:
    """Return the runs of each known seed; runs of unknown seeds may have one each, and are compared with no other."""
    seeds = grouped(side, lambda entry: entry.result["resolved_config"].get("seed"))
    return [runs for seed, runs in seeds.items() if seed is not None]


def _odd_losses(runs: Sequence[Entry]) -> Iterator[tuple[Entry, str]]:
    """Yield runs of one seed whose first or last loss lies outside a band around the median.

    The last losses of runs of which one is unstable may differ by chaos alone.
    """
    known = [entry for entry in runs if entry.result["loss_values"] and None not in entry.result["loss_values"]]
    if len(known) < FEWEST:
        return
    results = [entry.result for entry in known]
    is_equal = all(result["resolved_config"].get("init") == "equal" for result in results)
    # equal weights and data give equal first losses, other weights only similar ones
    band = SINGLE_RUN * FIRST_LOSS_EQUAL_INIT if is_equal else FIRST_LOSS_NATIVE_INIT
    firsts = [float(result["loss_values"][0]) for result in results]
    yield from _outside("first loss", known, firsts, band)
    # after a leap two equal runs end apart by chaos
    if not any(first_leap(result) for result in results):
        yield from _outside("last loss", known, [last_loss(result) for result in results], LAST_LOSS)


def _outside(name: str, runs: Sequence[Entry], losses: Sequence[float], band: float) -> Iterator[tuple[Entry, str]]:
    """Yield the runs whose loss lies outside a band around the median, if they are fewer than half."""
    middle = statistics.median(losses)
    odd = [(entry, loss) for entry, loss in zip(runs, losses, strict=True) if abs(loss - middle) > band * middle]
    if len(odd) < len(runs) / 2:
        for entry, loss in odd:
            yield entry, f"{name} {loss:.5g}, but {middle:.5g} in {len(runs) - len(odd)} other runs of its side"
