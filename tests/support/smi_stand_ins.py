"""Machines of both vendors for the tests: the real zeus above stand-ins of pynvml and amdsmi, with a made-up clock."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from example import example_result
from train.energy import sampler, section

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


def open_gpus(platform: str, bus_ids: list[str] | None, count: int, why: str = "") -> tuple[str, Any]:
    """Return library and readers of the GPUs at these addresses of the stand-in."""
    return sampler.OPENERS[platform](bus_ids, why, count)


def of_gpus(
    platform: str,
    time: Clock,
    bus_ids: list[str] | None,
    *,
    gpus: int | None = None,
    change: Callable[[Any], None] = lambda node: None,
    pause: float = 0.0,
    step: float = 1.0,
) -> dict[str, Any]:
    """Return `energy_metrics` of 13 steps on these GPUs; `change` may bend the samples."""
    count = gpus or len(bus_ids or ())
    library, found = open_gpus(platform, bus_ids, count)
    sources = sampler.Sources(found, (), library, {"rapl": "no RAPL"})
    return _of_13_steps(platform, sources, count, time, time.sleep, change, pause, step)


def of_processors(root: Path, watts: dict[str, float], start_uj: float = 1e6) -> dict[str, Any]:
    """Return `energy_metrics` of 13 steps on processors that draw `watts`, whose counters are files below `root`."""
    time, sources = Clock(), sampler.Sources(reasons={"gpus": "no GPU"})
    try:
        sources.packages = sampler.packages(root)
    except sampler.ReaderError as error:
        sources.reasons["rapl"] = str(error)

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        for package in sources.packages:
            counted = (start_uj + 1e6 * watts[package.name] * time.seconds) % package.wraps_uj
            package.path.write_text(f"{counted:.0f}\n")

    sleep(0.0)
    return _of_13_steps("cpu", sources, 1, time, sleep)


def _of_13_steps(
    platform: str,
    sources: Any,
    gpus: int,
    time: Clock,
    sleep: Callable[[float], None],
    change: Callable[[Any], None] = lambda node: None,
    pause: float = 0.0,
    step: float = 1.0,
) -> dict[str, Any]:
    """Return `energy_metrics` of 13 steps of `step` seconds from 1 s on, 10 of them steady (4 s on), sampled for 15 s.

    The last two steps come later by `pause`.
    """
    times = {"steps": list(range(1, 14)), "step_times": [step] * 13}
    result = example_result(platform=platform, **times, training_config__num_gpus=gpus)
    header = sampler.header(platform, 0, sources)
    ends = [1.0 + step * (number + 1) + pause * (number > 10) for number in range(13)]
    clock = {name: header[name] for name in ("boot", "unix_at_zero")} | {"ends": ends}
    node = section.NodeSamples(header, why=dict(sources.reasons))

    def take(sample: dict[str, Any]) -> None:
        node.samples.append(sample)
        node.why |= sample.get("why") or {}

    sampler.sample_until(lambda: time.seconds >= 15, sources, take, time.now, sleep)
    change(node)
    return section.of_job([node], result, clock)
