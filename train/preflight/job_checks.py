"""One look before a job and one after it: warnings on stderr and in its result, and the conditions that it ran under.

With STRICT=1 whatever the rules find before the job refuses it (exit code 2).
"""

from __future__ import annotations

import sys
from pathlib import Path

from train.machine import conditions
from train.machine.conditions import Look
from train.preflight import machine_warnings as preflight_rules
from utils.errors import ConfigError
from utils.results import store
from utils.settings.config import RunConfig


def before(config: RunConfig) -> tuple[Look, list[str]]:
    """Look at GPUs and machine; return what was seen and the warnings, which are on stderr by then.

    Raises ConfigError with all of them where STRICT is set.
    """
    seen = conditions.look(config.platform)
    found = preflight_rules.warnings(config.platform, seen, config.nodes)
    if found and config.strict:
        raise ConfigError(f"STRICT=1: {'; '.join(found)}; put it right, or set STRICT=0 to have it in the result only")
    for line in found:
        print(f"warning: {line}", file=sys.stderr)
    return seen, found


def record(path: Path, config: RunConfig, seen: Look, found: list[str], *, is_interrupted: bool = False) -> None:
    """Add the conditions and the warnings to the result at `path`, which the job has just left.

    After an interrupt nobody looks again: whoever sent it waits. A result that cannot be read or written again keeps
    its numbers; that it lacks its conditions is said on stderr.
    """
    then = None if is_interrupted else conditions.look(config.platform, is_before=False)
    section = conditions.section(seen, then)
    lines = found + (preflight_rules.after(then, section["throttled_percent"]) if then else [])
    try:
        result = store.read(path)
        new = [line for line in lines if line not in result["warnings"]]
        store.write(result | {"warnings": result["warnings"] + new, "conditions": section}, path)
    except (OSError, store.ResultError) as error:
        print(f"warning: {path.name}: the conditions of the job are not in it: {error}", file=sys.stderr)
