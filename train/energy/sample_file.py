"""The file of the samples of one node: lines of JSON, readable as far as it goes if the sampler was killed.

First line: `energy_samples_version`, the node, what is sampled, the clock, and `reasons`. Each other line is a sample
(`t` in seconds of the clock, `cpu` in percent of all cores, `rapl` in uJ by package, `gpus` with the values of
gpu_reader.FIELDS or null for a GPU that is gone, `why` with new reasons), or `{"ready": t}` after the idle period.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from train.energy.gpu_reader import FIELDS
from train.job.job import Job, log_path
from utils.own_files import note

VERSION = 1


class SampleFileError(RuntimeError):
    """The samples of a node are missing or cannot be read; the message contains the reason."""


@dataclass
class NodeSamples:
    """The samples of one node."""

    header: Mapping[str, Any]
    samples: list[Mapping[str, Any]] = field(default_factory=list)
    ready: float | None = None
    """End of the idle period, seconds of the clock; None if it was not reached."""
    why: dict[str, str] = field(default_factory=dict)
    """Reasons for missing values: `gpu.field`, `gpu` for one that is gone, or a name of the header's reasons."""

    @cached_property
    def times(self) -> list[float]:
        """The time of each sample."""
        return [float(sample["t"]) for sample in self.samples]

    def gpu(self, index: int, name: str) -> list[Any]:
        """Return a field of a GPU in each sample, None where it is missing."""
        place = FIELDS.index(name)
        readings = (sample.get("gpus") for sample in self.samples)
        return [row[index][place] if row is not None and row[index] is not None else None for row in readings]

    def rapl(self, index: int) -> list[float | None]:
        """Return the counter of a processor package in each sample, uJ."""
        return [sample["rapl"][index] if sample.get("rapl") else None for sample in self.samples]

    def name(self, index: int) -> str:
        """Return product and address of a GPU."""
        gpu = self.header["gpus"][index]
        return f"{gpu['name']} at {gpu['bus_id']}"

    def why_of(self, index: int, name: str) -> str:
        """Return the reason why a field of a GPU has no values."""
        reason = self.why.get(str(index)) or self.why.get(f"{index}.{name}") or "the device reports N/A"
        return f"{self.name(index)}: {reason}"


def path_of(job: Job, node: int) -> Path:
    """Return the path of the samples of a node, beside the node's log."""
    log = log_path(job, node)
    return log.with_name(f"{log.stem}.energy.jsonl")


@contextmanager
def written(path: Path, header: Mapping[str, Any]) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Make the file with its header and yield the function that adds a line, which is readable at once."""
    with path.open("w", encoding="utf8", buffering=1) as file:
        note(path, grows=True)

        def add(content: Mapping[str, Any]) -> None:
            file.write(json.dumps(content, separators=(",", ":")) + "\n")

        add({"energy_samples_version": VERSION, **header})
        yield add


def read(path: Path) -> NodeSamples:
    """Return the samples of a file, without the end of one that is cut off; raise SampleFileError."""
    lines = _lines(path)
    header = next(lines, {})
    if header.get("energy_samples_version") != VERSION:
        raise SampleFileError(f"{path.name} holds no samples of this version")
    found = NodeSamples(header, why=dict(header.get("reasons") or {}))
    for line in lines:
        if "ready" in line:
            found.ready = line["ready"]
        if "t" in line:
            found.samples.append(line)
        found.why |= line.get("why") or {}
    return found


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf8") as file:
            yield from (content for content in map(json.loads, file) if isinstance(content, dict))
    except FileNotFoundError as error:
        raise SampleFileError(f"the sampler left no samples: there is no {path.name}") from error
    except ValueError:
        pass  # the sampler was killed while it wrote: everything before is whole
    except OSError as error:
        raise SampleFileError(f"{path.name} cannot be read: {error}") from error
