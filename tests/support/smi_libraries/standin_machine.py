"""Stand-in for the boards behind pynvml.py and amdsmi.py: devices with a known power, whose counters follow from it.

A test sets MACHINE.
"""

from __future__ import annotations

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
    reset_at: float | None = None
    lost_at: float | None = None
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
        if board.reset_at is not None and now >= board.reset_at:
            return (now - board.reset_at) * board.watts * board.counter_share
        return board.start_joules + now * board.watts * board.counter_share

    def is_lost(self, board: Board) -> bool:
        """Return whether the device has fallen off the bus."""
        return board.lost_at is not None and self.now() >= board.lost_at


class Handle:
    """A board as a vendor's library gives it to its callers."""

    def __init__(self, board: Board) -> None:
        self.board = board


def board_of(handle: Handle, function: str, error: Callable[[int], Exception], lost: int) -> Board:
    """Return the board for a call of a function; raise the vendor's error where it is lost or has a fault."""
    while handle.board.hangs_with is not None and handle.board.hangs_with.exists():
        time.sleep(0.05)
    code = lost if MACHINE.is_lost(handle.board) else handle.board.faults.get(function)
    if code is not None:
        raise error(code)
    return handle.board


MACHINE = Machine([])
