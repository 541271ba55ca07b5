"""Every variant gets its least rounds cold and warm, weighty calls get more, and written tensors are restored."""

import torch

from train.probing import rounds
from train.probing.medians import LEAST_SAMPLES
from train.probing.place import Place
from train.probing.replay import Replay, Variant
from train.probing.rounds import Measured

CPU = torch.device("cpu")


class Clocked(Place):
    """A CPU whose clock shows what functions add to it."""

    now = 0.0

    def __init__(self):
        super().__init__(CPU)
        self.log = []

    def displace(self):
        self.log.append("displaced")

    def seconds(self, function, count=1):
        before = self.now
        for _ in range(count):
            function()
        return (self.now - before) / count

    def takes(self, seconds, name=""):
        """Return a function that takes this long."""

        def run():
            self.now += seconds
            self.log.append(name)

        return run


def test_every_variant_has_its_least_samples_even_without_time():
    place = Clocked()
    calls = [
        Measured(Replay([Variant("a", place.takes(0.1)), Variant("b", place.takes(0.2))], "replayed"), 0.5),
        Measured(Replay([Variant("c", place.takes(0.3))], "replayed"), 0.5),
    ]
    rounds.measure(calls, place, 0.0)
    medians = {name: pair for one in calls for name, pair in one.medians().items()}
    assert {name: round(cold.seconds, 9) for name, (cold, _) in medians.items()} == {"a": 0.1, "b": 0.2, "c": 0.3}
    assert {name: round(warm.seconds, 9) for name, (_, warm) in medians.items()} == {"a": 0.1, "b": 0.2, "c": 0.3}
    assert all(len(one.cold) >= LEAST_SAMPLES for call in calls for one in call.series.values())


def test_the_cache_is_displaced_before_each_round_and_only_the_first_call_is_cold():
    place = Clocked()
    place.reach_seconds = 0.375
    calls = [
        Measured(
            Replay([Variant("a", place.takes(0.125, "a")), Variant("b", place.takes(0.125, "b"))], "replayed"), 1.0
        )
    ]
    rounds.measure(calls, place, 0.0)
    text = " ".join(place.log)
    # one cold call, then three in a row, until the clock of 0.375 s can measure them; variants take turns
    assert text.startswith("displaced a a a a displaced b b b b displaced a")


def test_calls_that_write_are_restored_before_every_round_and_not_repeated_for_long():
    place = Clocked()
    replay = Replay(
        [Variant("a", place.takes(1e-6, "a"))], "replayed", restore=lambda: place.log.append("restored"), most_calls=4
    )
    rounds.measure([Measured(replay, 1.0)], place, 0.0)
    (first, *others) = " ".join(place.log).split("restored ")
    assert not first and {one.split() == ["displaced", *["a"] * 5] for one in others} == {True}


def test_light_calls_have_fewer_rounds_than_weighty_ones(monkeypatch):
    place = Clocked()
    ticks = iter(range(10_000))
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: next(ticks) / 10)
    calls = [Measured(Replay([Variant("a", place.takes(1e-3))], "replayed"), weight) for weight in (0.9, 0.0001)]
    rounds.measure(calls, place, 30.0)
    heavy, light = (len(one.series["a"].cold) for one in calls)
    assert heavy > 3 * LEAST_SAMPLES and LEAST_SAMPLES <= light < heavy / 2


def test_progress_is_told_in_seconds_that_passed():
    place, told = Clocked(), []
    rounds.measure([Measured(Replay([Variant("a", place.takes(0.1))], "replayed"), 1.0)], place, 0.0, told.append)
    assert len(told) == LEAST_SAMPLES and all(seconds >= 0 for seconds in told)
