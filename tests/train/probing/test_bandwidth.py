"""Bandwidth counts bytes as STREAM does, of arrays that no cache holds."""

import pytest
import torch

from tests.train.probing.test_rounds import Clocked
from train.probing import bandwidth
from train.probing.place import Place

CPU = torch.device("cpu")


def test_a_copy_counts_two_arrays_and_a_triad_three(monkeypatch):
    place = Clocked()
    monkeypatch.setattr(bandwidth, "array_bytes", lambda place: 10**6)
    monkeypatch.setattr(Clocked, "seconds", lambda self, function, count=1: function() is None or 1e-3)
    found, reasons = bandwidth.measure(place, 0.0)
    # 2 and 3 million bytes in a millisecond
    assert {name: (one["gb_per_second"], one["gb"]) for name, one in found.items()} == {
        "copy": (2.0, 0.002),
        "triad": (3.0, 0.003),
    }
    assert reasons == {"host_to_device": bandwidth.NO_LINK}


def test_a_triad_computes_b_and_a_multiple_of_c():
    run, _ = bandwidth._case("triad", Place(CPU), 80)
    assert torch.equal(run(), torch.full((20,), 1.5 + 3.0 * 1.5))


@pytest.mark.parametrize(
    ("cache", "free", "wanted"), [(2**30, 2**40, 4 * 2**30), (1, 2**40, 2**26), (2**30, 6 * 2**20, 2**20)]
)
def test_an_array_is_four_times_the_cache_and_fits_into_memory(monkeypatch, cache, free, wanted):
    place = Place(CPU)
    place.cache_bytes = cache
    monkeypatch.setattr(Place, "free_bytes", property(lambda self: free))
    assert bandwidth.array_bytes(place) == wanted
