"""The profiled steps of a training: the settings PROFILING and PROFILE_* as one text, which results hold as `profile`.

A training without a profile has the text NO_PROFILE. A profile has the file `profiles/<job>/profile.json` in
OUTPUT_DIR, which train/profiling/recording.py writes and evaluate/metrics/profile_file.py reads. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from utils.own_files import json_with

VERSION = 1
"""Of the file of a profile."""
NAME = "profile.json"
FOLDER = "profiles"
"""Folder of the profiles of all jobs in OUTPUT_DIR."""
is_profile = json_with("profile_version", "traces")
"""Recogniser of the file of a profile of any version."""
NO_PROFILE = "none"
PROFILED = "profiled"
"""Reason of an excluded step in a result, label of a profiled training, and word of a profiled step's progress line."""
TOOLS = {"nsys": "nvd", "rocprofv3": "amd"}
"""Tools beside torch.profiler, each with its platform."""
TORCH = "torch"
LEAST_UNPROFILED = 6
"""Steps outside of the profile that a training needs: three that a summary excludes as warm-up
(utils/results/performance.py) and three that it measures."""
STARTED, WRITTEN = "the profiler starts in it", "the trace of the profile is written in it"
"""Reasons of the steps of Primus before and after the profiled ones."""
LOST_BY_PRIMUS = 3
"""Steps beside the profiled ones whose time Primus does not print as their own: the two above, and step 2, which it
prints as a mean (utils/logs/join.py)."""
_TEXT = re.compile(
    r"steps (?P<first>[1-9]\d{0,11})-(?P<last>[1-9]\d{0,11}) of "
    rf"(?:all ranks|ranks? (?P<ranks>\d{{1,9}}(?:,\d{{1,9}})*))(?: by (?P<tool>{'|'.join(TOOLS)}))?"
    r"(?P<memory>, with memory)?"
)


@dataclass(frozen=True)
class Trace:
    """One trace of one rank in a profile."""

    file: str
    """Its name in the folder of the profile."""
    sha256: str


@dataclass(frozen=True)
class Profile:
    """The steps and ranks that a profiler records."""

    first: int
    """Number of the first profiled step, from 1."""
    last: int
    ranks: tuple[int, ...] | None
    """Numbers of the recorded ranks, from 0; None for all ranks."""
    with_memory: bool = False
    """Whether a snapshot of the memory is written too."""
    tool: str = TORCH
    """TORCH, or one of TOOLS."""

    @property
    def steps(self) -> range:
        """Numbers of the profiled steps."""
        return range(self.first, self.last + 1)

    def has_rank(self, rank: int) -> bool:
        """Return whether a rank is recorded. The profiled steps of the other ranks are not timed either."""
        return self.ranks is None or rank in self.ranks

    def ranks_of(self, count: int) -> tuple[int, ...]:
        """Return the numbers of the recorded ranks in a training of `count` ranks."""
        return tuple(range(count)) if self.ranks is None else self.ranks

    @property
    def excluded(self) -> dict[int, str]:
        """Reason of each step whose time does not count, by its number."""
        return dict.fromkeys(self.steps, PROFILED)

    @property
    def excluded_by_primus(self) -> dict[int, str]:
        """The same in a log of Primus, which starts its profiler and writes the trace inside of steps.

        Source: Megatron-LM d3528a2, training.py, `train`: `prof.step()` begins an iteration.
        """
        reasons = {self.last + 1: WRITTEN}
        if self.first > 1:
            reasons = {self.first - 1: STARTED} | reasons
        return reasons | self.excluded

    @property
    def text(self) -> str:
        """The profile as results hold it: `steps 11-13 of rank 0`, `steps 11-13 of ranks 0,1 by nsys`."""
        text = f"steps {self.first}-{self.last} of {self._ranks_text}"
        if self.tool != TORCH:
            text += f" by {self.tool}"
        if self.with_memory:
            text += ", with memory"
        return text

    @property
    def _ranks_text(self) -> str:
        if self.ranks is None:
            return "all ranks"
        numbers = ",".join(map(str, self.ranks))
        return f"rank {numbers}" if len(self.ranks) == 1 else f"ranks {numbers}"


def parse(text: Any) -> Profile | None:
    """Return the profile of a text; None for NO_PROFILE. Raises ValueError for anything else."""
    if text == NO_PROFILE:
        return None
    # a result that somebody edited may hold anything here
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None or int(match["last"]) < int(match["first"]):
        raise ValueError(f"got {text!r}, wanted {NO_PROFILE}, or such as steps 11-13 of rank 0")
    ranks = None
    if match["ranks"] is not None:
        ranks = tuple(int(rank) for rank in match["ranks"].split(","))
    return Profile(int(match["first"]), int(match["last"]), ranks, match["memory"] is not None, match["tool"] or TORCH)
