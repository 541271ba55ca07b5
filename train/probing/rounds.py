"""Rounds over many calls: in each, the cache is displaced, and one variant of each call is timed cold, then warm.

Calls of one round have tensors of their own, so a call does not warm another one's. On a CPU one displacement therefore
serves the whole round; on a GPU, where it takes 0.1 ms and hides the launch, each call has its own.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from train.probing.medians import LEAST_SAMPLES, Median, median
from train.probing.place import Place
from train.probing.replay import Replay, Variant

MOST_ROUNDS = 400
"""Rounds of a variant after which more tell nothing."""
RARE = 8
"""Calls of little weight are measured in one of this number of rounds, once all have LEAST_SAMPLES."""
WEIGHTY = 0.002
"""Share of its step above which a call is measured in every round."""


@dataclass
class Series:
    """Seconds of one call of one variant, a sample a round."""

    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)


@dataclass
class Measured:
    """A replay with its samples by variant, and its share of the step that it weighs most in."""

    replay: Replay
    weight: float
    series: dict[str, Series] = field(default_factory=dict)

    def medians(self) -> dict[str, tuple[Median, Median]]:
        """Return the medians of each variant, cold and warm."""
        return {name: (median(one.cold), median(one.warm)) for name, one in self.series.items()}

    @property
    def rounds(self) -> int:
        """Rounds that every variant has."""
        return min((len(one.cold) for one in self.series.values()), default=0)


def measure(
    calls: Sequence[Measured], place: Place, seconds: float, advance: Callable[[float], None] = lambda _: None
) -> None:
    """Fill in the samples of all calls within `seconds`, but at least LEAST_SAMPLES of each variant.

    `advance` is called with the seconds that each round took.
    """
    for one in calls:
        one.series = {variant.name: Series() for variant in one.replay.variants}
    started = time.perf_counter()
    least = LEAST_SAMPLES * max((len(one.replay.variants) for one in calls), default=0)
    number = 0
    with _undisturbed():
        while number < least or time.perf_counter() - started < seconds:
            began = time.perf_counter()
            chosen = [one for one in calls if _has_turn(one, number)]
            if not chosen:
                break
            _round(chosen, number, place)
            advance(time.perf_counter() - began)
            number += 1


def _has_turn(one: Measured, number: int) -> bool:
    if one.rounds < LEAST_SAMPLES:
        return True
    return one.rounds < MOST_ROUNDS and (one.weight >= WEIGHTY or number % RARE == 0)


def _round(chosen: Sequence[Measured], number: int, place: Place) -> None:
    on_gpu = place.device.type == "cuda"
    for one in chosen:
        one.replay.restore()
    if not on_gpu:
        place.displace()
        place.seconds(lambda: None)  # the code of the clock is in the cache again
    for one in chosen:
        variants = one.replay.variants
        variant = min(variants, key=lambda found: len(one.series[found.name].cold))
        if on_gpu:
            place.displace()
        _time(one, variant, place)


def _time(one: Measured, variant: Variant, place: Place) -> None:
    """Take one cold sample, and one warm sample of so many calls in a row that the clock can measure them."""
    series = one.series[variant.name]
    with variant.context():
        cold = place.seconds(variant.run)
        series.cold.append(cold)
        known = min(series.warm, default=cold)
        count = math.ceil(place.reach_seconds / max(known, 1e-9))
        series.warm.append(place.seconds(variant.run, max(1, min(count, one.replay.most_calls))))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Run without Python's collector of garbage, without gradients, and with numbers too small for a float as zeros."""
    was_collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    torch.set_flush_denormal(True)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_flush_denormal(False)
        if was_collecting:
            gc.enable()
