"""Stand-in for the boards behind pynvml.py and amdsmi.py: devices with a known power, whose counters follow from it.

A test sets MACHINE.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Board:
    """One device. Its counter counts `counter_share` of `watts` from `start_joules` on."""

    bus_id: str
    name: str = "Stand-in GPU"
    serial: str = "N/A"
    hip: int = 0
    """Index of the device in HIP."""
    watts: float = 500.0
    has_instant: bool = True
    has_average: bool = True
    counter_share: float = 1.0
    counter_bits: int = 64
    start_joules: float = 0.0
    reset_at: float = math.inf
    lost_at: float = math.inf
    """When the device falls off the bus."""
    use: Any = 97
    clock: Any = 1900
    temperature: Any = 61
    is_divided: bool = False
    faults: dict[str, int] = field(default_factory=dict)
    """Error code of the vendor's library by the name of its function."""
    hangs_with: Path | None = None
    """File with which every call hangs as long as it exists."""


@dataclass
class Machine:
    """The devices in the order of the vendor's library, and the clock."""

    boards: list[Board]
    now: Callable[[], float] = time.perf_counter

    def joules(self, board: Board) -> float:
        """Return what the counter has counted at this moment."""
        now = self.now()
        if now >= board.reset_at:
            return (now - board.reset_at) * board.watts * board.counter_share
        return board.start_joules + now * board.watts * board.counter_share

    def open(self, function: str, error: Callable[[int], Exception]) -> None:
        """Raise the vendor's error if opening the library with this function is a fault of a device."""
        for board in self.boards:
            if function in board.faults:
                raise error(board.faults[function])


def functions(
    error: Callable[[int], Exception], lost: int, **reads: Callable[..., Any]
) -> dict[str, Callable[..., Any]]:
    """Return the functions of a vendor's library, each with the board first; they raise the vendor's `error`.

    `lost` is the code of a device that is lost.
    """

    def function(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def call(board: Board, *arguments: Any) -> Any:
            while board.hangs_with is not None and board.hangs_with.exists():
                time.sleep(0.05)
            code = lost if MACHINE.now() >= board.lost_at else board.faults.get(name)
            if code is not None:
                raise error(code)
            return read(board, *arguments)

        return call

    return {name: function(name, read) for name, read in reads.items()}


MACHINE = Machine([])
