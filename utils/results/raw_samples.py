"""Raw samples that a trainer writes into its log at the end of a training, with the identity of the job.

Each line is `raw: ` and one JSON object: first the identity, then one line per section of the result, then one line per
step with all digits. evaluate/bundle/raw_logs.py checks results against them; a terminal does not show them. Standard
library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from utils.results.schema import SAMPLES

PREFIX = "raw: "
IDENTITY = (*("identity_sha256", "platform", "framework", "model", "model_size", "method", "label", "run", "attempt"),)
SECTIONS = ("gpu_info", "training_config", "resolved_config", "memory_metrics", "fingerprint")


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines, with newline, for a result whose samples are not rounded yet.

    Write each line with one call, so that lines of other ranks do not mix with it.
    """
    yield _line({key: result[key] for key in IDENTITY})
    for section in SECTIONS:
        yield _line({section: {key: value for key, value in result[section].items() if key != "reasons"}})
    for values in zip(*(result[key] for key in SAMPLES), strict=True):
        yield _line(dict(zip(SAMPLES, values, strict=True)))


def is_raw(line: str) -> bool:
    """Return True if a line of a log is one of these."""
    return line.startswith(PREFIX)


def parse(line: str) -> dict[str, Any] | None:
    """Return the content of such a line, None if it is damaged."""
    try:
        content = json.loads(line.removeprefix(PREFIX))
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _line(content: Mapping[str, Any]) -> str:
    return PREFIX + json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n"
