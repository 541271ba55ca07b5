"""The last-level cache is read as the kernel shows it, and a pass over a larger buffer displaces it."""

import os

import pytest
import torch

from train.probing import place as places
from train.probing.place import Place, cache_bytes

CPU = torch.device("cpu")


def made(root, *caches):
    """Write caches (core, index, level, size, shared) as sysfs shows them."""
    for core, index, level, size, shared in caches:
        folder = root / f"cpu{core}" / "cache" / f"index{index}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("caches", "wanted"),
    [
        (((0, 0, 1, "32K", "0"), (0, 3, 3, "32768K", "0-1"), (1, 3, 3, "32768K", "0-1")), 32 * 2**20),
        # two dies with a cache each, of which a process on both may use 64 MiB
        (((0, 3, 3, "32M", "0"), (1, 3, 3, "32M", "1")), 64 * 2**20),
        (((0, 2, 2, "1M", "0"),), 2**20),
    ],
)
def test_the_last_level_counts_once_for_all_cores_that_share_it(tmp_path, monkeypatch, caches, wanted):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert cache_bytes(CPU, made(tmp_path, *caches)) == wanted


@pytest.mark.parametrize("size", ["", "many", None])
def test_a_cache_that_cannot_be_read_is_taken_as_a_large_one(tmp_path, size):
    if size is not None:
        made(tmp_path, (0, 3, 3, size, "0"))
    assert cache_bytes(CPU, tmp_path) == places.UNKNOWN_CACHE_BYTES


def test_what_displaces_the_cache_is_larger_than_it(monkeypatch):
    monkeypatch.setattr(places, "cache_bytes", lambda device: 2**16)
    place = Place(CPU)
    place.displace()
    assert place._buffer.nbytes >= 2 * 2**16
    place.displace()
    assert float(place._buffer[0]) == 2.0, "each pass writes"


def test_the_seconds_are_those_of_one_call():
    ticks = iter([0.0, 8.0])
    place = Place(CPU)
    called = []
    original, places.time.perf_counter = places.time.perf_counter, lambda: next(ticks)
    try:
        assert place.seconds(lambda: called.append(1), 4) == 2.0
    finally:
        places.time.perf_counter = original
    assert len(called) == 4
