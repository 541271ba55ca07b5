"""Checks of the machine before and after a job: warnings on stderr and in the result, and the job's conditions.

With STRICT=1, any warning before the job refuses it (exit code 2).
"""

from __future__ import annotations

import sys
from pathlib import Path

from train.machine import conditions
from train.machine.conditions import Snapshot
from train.preflight import machine_warnings
from utils.errors import ConfigError
from utils.results import store
from utils.settings.config import RunConfig


def before(config: RunConfig) -> tuple[Snapshot, list[str]]:
    """Check GPUs and machine, print warnings on stderr, and return the snapshot and the warnings.

    Raises ConfigError with all warnings if STRICT is set.
    """
    seen = conditions.take_snapshot(config.platform)
    found = machine_warnings.warnings(config.platform, seen, config.nodes)
    if found and config.strict:
        raise ConfigError(f"STRICT=1: {'; '.join(found)}; fix this, or set STRICT=0 to only record it in the result")
    for line in found:
        print(f"warning: {line}", file=sys.stderr)
    return seen, found


def record(path: Path, config: RunConfig, seen: Snapshot, found: list[str], *, is_interrupted: bool = False) -> None:
    """Add the conditions and the warnings to the result at `path`, which the job has just written.

    After an interrupt there is no second snapshot, because the user is waiting. If the result cannot be read or written
    again, it keeps its numbers, and a warning on stderr reports that it lacks its conditions.
    """
    then = None if is_interrupted else conditions.take_snapshot(config.platform, is_before=False)
    section = conditions.section(seen, then)
    lines = found + (machine_warnings.after(then, section["throttled_percent"]) if then else [])
    try:
        result = store.read(path)
        new = [line for line in lines if line not in result["warnings"]]
        store.write(result | {"warnings": result["warnings"] + new, "conditions": section}, path)
    except (OSError, store.ResultError) as error:
        print(f"warning: {path.name}: the conditions of the job are not in it: {error}", file=sys.stderr)
