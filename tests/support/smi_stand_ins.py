"""Machines of both vendors for the tests: the real zeus above stand-ins of pynvml and amdsmi, with a made-up clock."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from example import example_result
from train.energy import sampler
from train.energy.sample_file import NodeSamples
from train.job.step_clock import clock

FOLDER = Path(__file__).parent / "smi_libraries"
ROOTS = ("zeus", "pynvml", "amdsmi", "standin_machine")
TOKENS = 64 * 128
"""Of a step of `example_result`."""


class Clock:
    """Seconds that pass only when somebody sleeps, and `late` seconds more each time."""

    def __init__(self, late: float = 0.0) -> None:
        self.seconds, self._late = 0.0, late

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds + self._late


@contextmanager
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the module `standin_machine`; pynvml and amdsmi are stand-ins meanwhile."""
    pytest.importorskip("zeus", reason="zeus is not installed: ./shell/setup.sh")
    monkeypatch.syspath_prepend(str(FOLDER))
    _forget(monkeypatch)
    yield importlib.import_module("standin_machine")
    for name in [name for name in sys.modules if name.split(".")[0] in ROOTS]:
        del sys.modules[name]


def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ROOTS]:
        monkeypatch.delitem(sys.modules, name)


def sampled(platform: str, gpus: list[Any], library: str, time: Clock, seconds: float = 12.0) -> NodeSamples:
    """Return the samples of GPUs over `seconds` of a clock."""
    sources = sampler.Sources(gpus, (), library)
    sources.reasons["rapl"] = "no RAPL"
    ticks, end = sampler.Ticks(sources, time.now), time.seconds + seconds
    options = argparse.Namespace(platform=platform, node=0)
    found = NodeSamples(sampler.header(options, sources), why=dict(sources.reasons))
    taken: list[dict[str, Any]] = []
    sampler.sample_until(
        lambda: time.seconds >= end, ticks, lambda sample, _: taken.append(sample), time.now, time.sleep
    )
    for sample in taken:
        found.samples.append(sample)
        found.why |= sample.get("why") or {}
    return found


def ten_steps(platform: str, gpus: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a result with ten steps of 1 s from 1 s to 11 s, 7 of them steady (4 s to 11 s), and their clock."""
    result = example_result(platform=platform, step_times=[1.0] * 10, training_config__num_gpus=gpus)
    return result, clock() | {"ends": [2.0 + step for step in range(10)]}
