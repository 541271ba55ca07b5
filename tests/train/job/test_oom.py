"""Advice for a job that ran out of memory: the memory it held and what should fit; unknown figures are called so."""

import pytest

from train.job.job import Job
from train.job.outcome import advice
from train.job.report import memory_at
from utils.memory.estimate import estimate
from utils.settings.config import load


def config_of(*settings):
    return load("nvd", 8, arguments=["DATASET=synth", "MODEL_SIZE=full", "GBS=256", "MBS=32", *settings], environ={})


class FullDevice:
    def allocated_gb(self):
        return 70.04

    def peak_allocated_gb(self):
        return 79.26

    def peak_reserved_gb(self):
        return 79.9


def test_memory_at_that_point_is_named():
    assert memory_at(FullDevice()) == "70.0 GB were in use, 79.3 GB at the most, 79.9 GB reserved by the allocator"
    assert "unknown" in memory_at(None)


def test_micro_batch_that_should_fit_is_smaller_divides_and_fits_by_the_estimate():
    config = config_of()
    said = advice(Job(config, "mega", "llama"), 141.0)
    size = int(said.split("MBS=")[2].split(" ")[0])
    assert size < 32 and 32 % size == 0
    fits = config_of(f"MBS={size}")
    assert estimate(fits, "mega", fits.spec("llama")).total_gb <= 141.0
    above = config_of(f"MBS={size * 2}")
    assert size == 16 or estimate(above, "mega", above.spec("llama")).total_gb > 141.0


@pytest.mark.parametrize(("capacity_gb", "named"), [(None, "unknown"), (8.0, "raise TP or PP, or lower SL")])
def test_unknown_memory_and_hopeless_cases_are_said(capacity_gb, named):
    config = config_of()
    assert named in advice(Job(config, "mega", "llama"), capacity_gb)
