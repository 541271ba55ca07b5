"""A slow operator, a slow launch path and a slow collective, planted in a real step on this CPU, are found and named.

The floor is that of the same operators, each timed by itself. The planted time is many times that of the honest step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from floors_by_hand import job, operator, probe

from evaluate.floor import floors, losses
from evaluate.floor.parts import Loss
from evaluate.timing import breakdown

torch = pytest.importorskip("torch")
LAYERS, WIDTH = 4, 256
PLANTED_SECONDS = 0.4
Step = Callable[[], None]


def step(*, silus: int = 1, pause: float = 0.0, sending: float = 0.0) -> Step:
    """Return a step of products and activations; of each activation `silus`, with pauses between the layers."""
    x, weight = torch.randn(WIDTH, WIDTH), torch.randn(WIDTH, WIDTH)

    def run() -> None:
        for _ in range(LAYERS):
            hidden = torch.mm(x, weight)
            for _ in range(silus):
                torch.nn.functional.silu(hidden)
            time.sleep(pause)
        with torch.profiler.record_function("gloo:all_reduce"):
            time.sleep(sending)

    return run


def least(call: Callable[[], object], rounds: int = 30) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def lost(folder: Path, run: Step) -> dict[str, Loss]:
    """Return the losses of a profiled step by kind, the largest first."""
    run()
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True)
    with profiler as recorded, torch.profiler.record_function("ProfilerStep#1"):
        run()
    recorded.export_chrome_trace(str(folder / "trace.json"))
    x = torch.randn(WIDTH, WIDTH)
    shapes = f"[[{WIDTH}, {WIDTH}], [{WIDTH}, {WIDTH}]]"
    product, silu = least(lambda: torch.mm(x, x)), least(lambda: torch.nn.functional.silu(x))
    measured = [
        operator("matmul", product, product, name="aten::mm", shapes=shapes),
        operator("memory_bound", silu, silu, name="aten::silu", shapes=f"[[{WIDTH}, {WIDTH}]]"),
    ]
    floor = floors.of_job(probe(measured), job([LAYERS, LAYERS]), 1)
    read = breakdown.of_file(folder / "trace.json")
    assert floor.seconds < read.step_seconds
    found = losses.by_kind(read.kinds, floor.by_kind, floor.calls, read, 0.0)
    assert sum(one.seconds for one in found) + floor.seconds == pytest.approx(read.step_seconds)
    return {one.kind: one for one in found}


def enough_silus() -> int:
    x = torch.randn(WIDTH, WIDTH)
    return max(2, round(PLANTED_SECONDS / LAYERS / least(lambda: torch.nn.functional.silu(x))))


PLANTED: dict[str, tuple[Callable[[], Step], str, str]] = {
    "operator": (lambda: step(silus=enough_silus()), "memory_bound", "over the floor, mostly aten::silu (256, 256)"),
    "launch path": (lambda: step(pause=PLANTED_SECONDS / LAYERS), "idle", "launch gaps and other waits of the host"),
    "collective": (
        lambda: step(sending=PLANTED_SECONDS),
        "communication_exposed",
        "over the floor, mostly gloo:all_reduce",
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_slow_is_the_largest_loss_and_is_named(tmp_path: Path, planted: str) -> None:
    make, kind, words = PLANTED[planted]
    found = lost(tmp_path, make())
    first = next(iter(found.values()))
    assert first.kind == kind and first.words.endswith(words), first.words
    assert first.seconds > 0.5 * sum(one.seconds for one in found.values())
    honest = lost(tmp_path, step())
    assert kind not in honest or honest[kind].seconds < 0.5 * first.seconds
