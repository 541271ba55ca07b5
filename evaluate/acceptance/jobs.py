"""The jobs among results: the runs of one framework, model, setting, layout and kind of device.

With the method `best` the layout is free: a job has its fastest one, and the number of layouts tried counts as choices
by speed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from evaluate.checks.entries import Entry
from evaluate.checks.recorded import machine_of
from evaluate.metrics.partition import Kind, kind_of
from evaluate.verdict.layouts import Layout, fastest, layout_of
from evaluate.verdict.pairs import BEST
from evaluate.verdict.side_names import device_name, in_words, setting_of
from utils.results.schema import Result


class JobKey(NamedTuple):
    """Properties that a job shares with its counterpart in the baseline."""

    model: str
    method: str
    framework: str
    platform: str
    kind: Kind
    setting: tuple[Any, ...]
    """Size of the model, sequence length, global batch, precision."""
    layout: Layout | int | None
    """With the method `best` only the number of GPUs."""


_WORDS = {"platform": "platform", "kind": "device", "setting": "setting", "layout": "layout"}


@dataclass(frozen=True)
class Job:
    """All results of one job."""

    key: JobKey
    machine: str | None
    """The machine of all its runs; None for the job of a baseline, which may have several."""
    entries: tuple[Entry, ...]
    layouts: int = 1
    """Number of measured layouts of which these are the runs of the fastest."""

    @property
    def counted(self) -> list[Result]:
        """The results that are ok and valid."""
        return [entry.result for entry in self.entries if entry.is_counted]

    @property
    def example(self) -> Result:
        """A result of the job, a counted one if there is one."""
        return (self.counted or [self.entries[0].result])[0]

    @property
    def setting(self) -> str:
        """Size, length, batch, precision, layout and device in words."""
        return f"{in_words(self.example)}, {device_name(self.example)}"

    @property
    def name(self) -> str:
        """Framework, model and setting, with the method unless it is `equal`."""
        method = "" if self.key.method == "equal" else f" METHOD={self.key.method}"
        return f"{self.key.framework} {self.key.model}{method} ({self.setting})"

    def differences(self, other: Job) -> list[str]:
        """Return the properties in which two jobs of one framework and model differ, with both values."""
        found = []
        for field, word in _WORDS.items():
            if getattr(self.key, field) != getattr(other.key, field):
                values = [_shown(job, field) for job in (self, other)]
                found.append(f"{word} {values[0]}, baseline {values[1]}")
        return found


def jobs(entries: Sequence[Entry], *, by_machine: bool) -> list[Job]:
    """Return the jobs among entries without copies, sorted; `by_machine` makes one of each machine.

    A result that failed before it recorded its device or host joins the only job that it can belong to.
    """
    found: dict[tuple[JobKey, str | None], list[Entry]] = {}
    later = []
    for entry in entries:
        result = entry.result
        if result["status"] != "ok" and None in (result["gpu_info"]["device_name"], result["provenance"]["host"]):
            later.append(entry)
        else:
            found.setdefault(_place(result, by_machine), []).append(entry)
    for entry in later:
        place = _place(entry.result, by_machine)
        homes = [home for home in found if _may_belong(entry.result, place, home)]
        found.setdefault(homes[0] if len(homes) == 1 else place, []).append(entry)
    made = [_job(key, machine, members) for (key, machine), members in found.items()]
    return sorted(made, key=lambda job: (job.key.model, job.key.framework, job.name, job.machine or ""))


def _place(result: Result, by_machine: bool) -> tuple[JobKey, str | None]:
    layout = layout_of(result)
    key = JobKey(
        *(result["model"], result["method"], result["framework"], result["platform"], kind_of(result)),
        setting_of(result),
        layout.num_gpus if result["method"] == BEST else layout,
    )
    return key, machine_of(result) if by_machine else None


def _may_belong(result: Result, place: tuple[JobKey, str | None], home: tuple[JobKey, str | None]) -> bool:
    """Return whether a failed run may be one of the job at `home`, as far as it recorded its device and host."""
    key = place[0] if result["gpu_info"]["device_name"] else place[0]._replace(kind=home[0].kind)
    return key == home[0] and (result["provenance"]["host"] is None or place[1] == home[1])


def _job(key: JobKey, machine: str | None, entries: list[Entry]) -> Job:
    if key.method != BEST:
        return Job(key, machine, tuple(entries))
    layouts: dict[Layout, list[Entry]] = {}
    for entry in entries:
        layouts.setdefault(layout_of(entry.result), []).append(entry)
    tried = sum(any(entry.is_counted for entry in members) for members in layouts.values())
    return Job(key, machine, tuple(layouts[fastest(layouts)]), max(1, tried))


def _shown(job: Job, field: str) -> str:
    value: Hashable = getattr(job.key, field)
    if field == "kind":
        return device_name(job.example)
    if field == "setting":
        return in_words(job.example, with_layout=False)
    return value.text if isinstance(value, Layout) else f"{value} GPUs" if field == "layout" else str(value)
