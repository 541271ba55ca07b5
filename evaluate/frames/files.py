"""CSV and Parquet files of a table, and the recognition of those that the suite wrote, which needs neither package."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluate.frames.columns import JUDGED, TEXT
from evaluate.frames.tables import STEPS
from utils import redact
from utils.own_files import content_of

NEEDS = {"csv": ("pandas",), "parquet": ("pandas", "pyarrow")}
"""Packages that each format needs."""
_FIRST_LINES = tuple(",".join(tuple(columns)[:4]).encode() + b"," for columns in (JUDGED, STEPS))
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""Starts of a cell that a spreadsheet takes for a formula (OWASP, CSV Injection)."""
_MARK = b"tprimat.table"
"""Key of the metadata of every Parquet file of the suite, which stands in its footer as it is."""


class MissingPackageError(ValueError):
    """A format needs a package that this Python does not have; the message names it and the remedy."""


def require_packages(name: str) -> None:
    """Raise MissingPackageError if a package that the format `name` needs is not installed."""
    missing = [package for package in NEEDS.get(name, ()) if importlib.util.find_spec(package) is None]
    if missing:
        raise MissingPackageError(
            f"{name}: needs {' and '.join(missing)}, which this Python does not have; run: pip install "
            f"-c cpu-requirements.txt {' '.join(missing)}"
        )


def content(frame: Any, name: str) -> bytes:
    """Return a table in the format `name`, without secrets: `csv` in UTF-8, missing values empty, or `parquet`.

    A text that a spreadsheet would run as a formula has an apostrophe before it in `csv`.
    """
    frame = _with_texts(frame, redact.text)
    if name == "csv":
        frame = _with_texts(frame, lambda cell: f"'{cell}" if cell.startswith(_FORMULAS) else cell)
        text: str = frame.to_csv(index=False, lineterminator="\n", date_format="%Y-%m-%dT%H:%M:%S%z")
        return text.encode(errors="backslashreplace")
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pandas(frame, preserve_index=False)
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), _MARK: b"1"})
    with pyarrow.BufferOutputStream() as buffer:
        parquet.write_table(table, buffer)
        return bytes(buffer.getvalue())


def _with_texts(frame: Any, change: Callable[[str], str]) -> Any:
    """Return the table with every text and name of a column changed; each distinct text is looked at once."""
    changed = {}
    for name in frame.columns:
        if frame[name].dtype == TEXT:
            known = {text: change(text) for text in frame[name].dropna().unique()}
            if any(text != shown for text, shown in known.items()):
                changed[name] = frame[name].map(known, na_action="ignore").astype(TEXT)
    return frame.assign(**changed).rename(columns=change)


def _is_csv(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(max(map(len, _FIRST_LINES))).startswith(_FIRST_LINES)


def _is_parquet(path: Path) -> bool:
    content = content_of(path)
    return content.startswith(b"PAR1") and _MARK in content


RECOGNISERS: dict[str, Callable[[Path], bool]] = {"csv": _is_csv, "parquet": _is_parquet}
