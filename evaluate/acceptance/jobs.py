"""The jobs among results: the runs of one framework, model, setting, layout and kind of device.

With the method `best` the layout is free: a job has its fastest one, and the number of layouts tried counts as choices
by speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from evaluate.checks.entries import Entry
from evaluate.checks.recorded import grouped, machine_of
from evaluate.metrics.partition import Kind, kind_of
from evaluate.report.groups import by_key
from evaluate.verdict.pairs import BEST, example
from evaluate.verdict.side_names import Layout, device_name, fastest, in_words, layout_of
from evaluate.verdict.system import Setting, setting_of
from utils.results.schema import Result


class JobKey(NamedTuple):
    """Properties that a job shares with its counterpart in the baseline."""

    framework: str
    model: str
    method: str
    platform: str
    kind: Kind | None
    """None for a run that failed before it recorded its device."""
    setting: Setting
    layout: Layout | int | None
    """With the method `best` only the number of GPUs."""


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
        return example(self.entries).result

    @property
    def name(self) -> str:
        """Framework, model and setting, with the method unless it is `equal`."""
        job = f"{self.key.framework} {self.key.model}"
        if self.key.method != "equal":
            job += f" METHOD={self.key.method}"
        return f"{job} ({in_words(self.example)}, {device_name(self.example)})"

    def differences(self, other: Job) -> list[str]:
        """Return the properties in which two jobs of one framework, model and method differ, with both values."""
        names = ("platform", "device", "setting", "layout")
        rows = zip(names, self.key[3:], other.key[3:], self._shown, other._shown, strict=True)
        return [f"{name} {ours}, baseline {theirs}" for name, a, b, ours, theirs in rows if a != b]

    @property
    def _shown(self) -> tuple[str, ...]:
        layout = self.key.layout
        split = layout.text if isinstance(layout, Layout) else f"{layout} GPUs"
        return self.key.platform, device_name(self.example), in_words(self.example, with_layout=False), split


def jobs(entries: Sequence[Entry], *, by_machine: bool) -> list[Job]:
    """Return the jobs among entries without copies, sorted; `by_machine` makes one of each machine.

    A result that failed before it recorded its device or host joins the only job that it can belong to.
    """

    def key_of(entry: Entry) -> tuple[Any, ...]:
        return *_key(entry.result), _machine(entry.result) if by_machine else ""

    found = []
    for (*key, machine), members in by_key(entries, key_of).items():
        found.append(_job(JobKey(*key), machine or None, members))
    return sorted(found, key=lambda job: (job.key.model, job.key.framework, job.name, job.machine or ""))


def _key(result: Result) -> JobKey:
    layout = layout_of(result)
    # an ok result without a device is a job of its own
    is_early = result["status"] != "ok" and result["gpu_info"]["device_name"] is None
    return JobKey(
        result["framework"],
        result["model"],
        result["method"],
        result["platform"],
        None if is_early else kind_of(result),
        setting_of(result),
        layout.num_gpus if result["method"] == BEST else layout,
    )


def _machine(result: Result) -> str | None:
    """Return the machine of a run; None if it failed before it recorded its host."""
    is_early = result["status"] != "ok" and result["provenance"]["host"] is None
    return None if is_early else machine_of(result)


def _job(key: JobKey, machine: str | None, entries: list[Entry]) -> Job:
    """Return the job of entries, which have several layouts with the method `best` only."""
    layouts = grouped(entries, lambda entry: layout_of(entry.result))
    tried = [members for members in layouts.values() if any(entry.is_counted for entry in members)]
    return Job(key, machine, tuple(layouts[fastest(layouts)]), max(1, len(tried)))
