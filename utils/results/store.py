"""Result files: written atomically, and read only if valid.

utils/results/schema.py defines the content of a result and its rules. Standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from utils import own_files
from utils.files import write_whole
from utils.own_files import Recogniser, json_with
from utils.redact import json_value
from utils.results.fields import json_in
from utils.results.schema import (
    OPTIONAL_SECTIONS,
    SAMPLE_DIGITS,
    SECTIONS,
    problems,
    with_later_settings,
)

SUPERSEDED = "superseded"
"""Folder beside the results that keeps earlier attempts; readers skip it."""
MOST_PROBLEMS = 20
"""Largest number of problems of one file that a message names."""
SUMMARY_DECIMALS = 3
SUMMARY_DIGITS = 3
"""Floats of a summary keep 3 decimals and never fewer than 3 significant digits: 0.0004 J a token is not 0.0."""


is_result = json_with("schema_version", "status", "platform", "framework", "model", "run")
"""Recogniser of a result of any version of the schema."""


class ResultError(ValueError):
    """The file is not a result or breaks the schema; the message names file, key, value and what is allowed."""


def validate(result: Mapping[str, Any], where: str) -> None:
    """Raise ResultError with the problems of `result`; `where` names its file in the message."""
    lines = problems(result)
    if len(lines) > MOST_PROBLEMS:
        lines = [*lines[:MOST_PROBLEMS], f"and {len(lines) - MOST_PROBLEMS} more"]
    if lines:
        raise ResultError(f"{where}: not a valid result: {'; '.join(lines)}")


def result_name(platform: str, framework: str, model: str, run: int) -> str:
    """Return the file name of a result. It is for people; the JSON holds the identity."""
    return f"train_{platform}_{framework}_{model}_run{run}.json"


def write(result: Mapping[str, Any], path: Path, *, replace: bool = True) -> bool:
    """Validate a result and write it to `path` atomically.

    With `replace=False` an existing file is kept and False returned: if several ranks fail, the reason of the first is
    kept. Raises ResultError for an invalid result, ForeignFileError where a file is no result, and OSError if it cannot
    be written.
    """
    content = rounded(result)
    validate(content, str(path))
    return write_json(content, path, is_ours=is_result, replace=replace)


def write_json(
    content: Mapping[str, Any], path: Path, *, is_ours: Recogniser = own_files.none, replace: bool = True
) -> bool:
    """Write JSON without secrets atomically; see `write` for `replace`, utils/own_files.py for `is_ours`.

    Raises ResultError, with nothing written, for a value that JSON cannot represent (NaN, an object of some library),
    and ForeignFileError for a file that `is_ours` does not recognise.
    """
    return write_whole(path, json_text(content, path), is_ours=is_ours, replace=replace)


def json_text(content: Mapping[str, Any], path: Path) -> str:
    """Return the text that `write_json` writes to `path`; raise ResultError as it does."""
    try:
        return json.dumps(json_value(content), indent=1, allow_nan=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultError(f"{path}: cannot be written as JSON: {error}") from error


def read(path: Path) -> dict[str, Any]:
    """Return the validated result in `path`, with null for each key that is missing with a reason.

    Raises ResultError if it is not a result.
    """
    result = json_in(path, ResultError)
    if not isinstance(result, dict):
        raise ResultError(f"{path}: got a JSON {type(result).__name__}, wanted an object")
    validate(with_later_settings(result), str(path))
    # from here on every key can be read without asking whether it is there
    result.setdefault("reason", None)
    for section, keys in (SECTIONS | OPTIONAL_SECTIONS).items():
        if section in result:
            result[section] = dict.fromkeys(keys) | result[section]
    return result


def rounded(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result, or a part of one, with its floats as `write` writes them."""
    kept = dict(result)
    for key, digits in SAMPLE_DIGITS.items():
        if isinstance(result.get(key), list):
            kept[key] = [_with_digits(value, digits) for value in result[key]]
    for section in ("performance_metrics", "memory_metrics", "energy_metrics"):
        if isinstance(result.get(section), dict):
            kept[section] = {key: _shortened(value) for key, value in result[section].items()}
    return kept


def _with_digits(value: Any, digits: int) -> Any:
    """Return a float with so many significant digits, and anything else as it is."""
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{digits}g}")
    return value


def _shortened(value: Any) -> Any:
    """Return a float as a summary has it, and anything else as it is."""
    if not isinstance(value, float) or value == 0 or not math.isfinite(value):
        return value
    # three decimals would make 0.0 of the energy of a token
    magnitude = math.floor(math.log10(abs(value)))
    return round(value, max(SUMMARY_DECIMALS, SUMMARY_DIGITS - 1 - magnitude))


SUMMARY_ROUNDING = 0.5e-3
"""Half a unit of the third decimal: `utils.results.store` rounds the floats of a summary to 3 decimals."""
SAMPLE_ROUNDING = 0.5e-5
"""Relative: half a unit of the sixth significant digit, to which `utils.results.store` keeps step times and waits."""
SHARE_ROUNDING = 0.5e-2
"""Relative: half a unit of the third significant digit, of which a share below 1 keeps no fewer."""
