"""Check an output.zip of shell/wrap.sh: no file changed, every rule kept, every figure reproducible from the logs.

    python -m evaluate.validate --bundle output.zip [more archives]

The checks run in this order: names, sizes and hashes (evaluate/bundle/archive.py); each result by all rules of
evaluate.validate and against its raw log (evaluate/bundle/raw_logs.py); each compare.json against a new comparison, if
the same version of the suite made it. Pages and pictures are no evidence: only their hashes are checked, and a note
states this.

The checks find mistakes, damage and careless edits. They are no proof against a forger, who can write any archive: the
answer to doubt is a second run (evaluate/reproduce.py). docs/bundle.md describes the checks.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluate.bundle import archive, raw_logs
from evaluate.bundle.archive import MANIFEST, UNREADABLE, Bundle
from evaluate.checks.entries import Loaded, load_results
from evaluate.inputs.partly_known import is_number
from evaluate.metrics import prices
from evaluate.report.comparison import as_json, compare
from evaluate.verdict import pairs
from utils.errors import shortened
from utils.input_files import parse_json
from utils.provenance.origin import sha256_report_code
from utils.results import store
from utils.settings.config import ROOT

SHOWN = 10
"""Largest number of differences of one comparison that are listed; the rest is counted."""
LONGEST_SHOWN = 120
"""Characters of a value that are shown."""
NOT_CHECKED = "why"
"""Key of a verdict: the gap by kind, from traces of up to gigabytes."""
RELATIVE = 1e-6
"""Relative tolerance: above any difference between libraries, below any that a report shows."""


@dataclass(frozen=True)
class CheckedBundle:
    """The findings in an archive."""

    loaded: Loaded
    """Its results under their paths in the archive, without superseded ones."""
    faults: tuple[str, ...]
    """One line for each fault, which begins with the name of the file."""
    notes: tuple[str, ...] = ()
    """One line for each check that was left out, with the reason."""
    files: int = 0


def check(path: Path) -> CheckedBundle:
    """Return the findings in an archive; raise BundleError if it is not an archive of shell/wrap.sh."""
    with archive.opened(path) as (bundle, refusals), tempfile.TemporaryDirectory() as folder:
        if bundle is None:
            return CheckedBundle(Loaded((), ()), tuple(refusals))
        # in a folder of its own, because load looks for probes beside it too
        root = Path(folder) / "output"
        faults = [*archive.disagreements(bundle), *_extract(bundle, root)]
        loaded = _load([root], [""])
        results = [(entry.path, entry.result) for entry in loaded.entries]
        for name, result in (*results, *_superseded(bundle, root)):
            faults += [f"{name}: {line}" for line in raw_logs.check(bundle, result)]
        # another version may have other keys and rules: a difference would prove nothing
        is_same_code = bundle.manifest.get("report_code_sha256") == sha256_report_code(ROOT)
        if is_same_code:
            faults += _comparison_faults(bundle, root)
        return CheckedBundle(loaded, tuple(faults), tuple(_notes(bundle, is_same_code)), len(bundle.listed))


def _extract(bundle: Bundle, root: Path) -> Iterator[str]:
    """Write the files that `load_results` reads; yield a fault for each that cannot be read."""
    root.mkdir()
    for name in (*bundle.of_kind("result"), *bundle.of_kind("probe")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            bundle.extract(name, (root / name).parent)
        except UNREADABLE as error:
            (root / name).unlink(missing_ok=True)
            yield f"{name}: cannot be read ({error})"


def _superseded(bundle: Bundle, root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the results of earlier attempts, which no comparison reads; malformed ones are skipped."""
    for name in bundle.of_kind("result"):
        if store.SUPERSEDED in Path(name).parts and (root / name).exists():
            with suppress(store.ResultError):
                yield Path(name), store.read(root / name)


def _comparison_faults(bundle: Bundle, root: Path) -> Iterator[str]:
    """Yield the faults of the comparisons in an archive, whose results and probes are extracted to `root`."""
    for name in bundle.of_kind("comparison"):
        if Path(name).name == "compare.json":
            for line in _check_one(bundle, name, root):
                yield f"{name}: {line}"


def _notes(bundle: Bundle, is_same_code: bool) -> list[str]:
    """Return one line for each check that is left out."""
    if not bundle.of_kind("comparison"):
        return []
    parts = f"pages, pictures, and `{NOT_CHECKED}` of a comparison, which rests on profiles that no archive holds,"
    # another version may have other keys and rules
    if not is_same_code:
        parts = "the comparison, which another version of the suite made, its pages and its pictures"
    return [f"{parts} are no evidence: they were compared with {MANIFEST} only"]


def _check_one(bundle: Bundle, name: str, root: Path) -> Iterator[str]:
    try:
        content, folders, options = _stored(bundle, name)
        found = _load(_places(root, Path(name).parent, folders), folders)
    except (ValueError, *UNREADABLE, RecursionError) as error:
        yield str(error) if isinstance(error, ValueError) else f"cannot be read ({error})"
        return
    # through JSON, because a tuple in memory is a list in the file
    again = as_json(compare(found, [Path(folder) for folder in folders], *options))
    differences = list(_differences("", content, json.loads(json.dumps(again))))
    yield from differences[:SHOWN]
    if len(differences) > SHOWN:
        yield f"and {len(differences) - SHOWN} more"


def _stored(bundle: Bundle, name: str) -> tuple[dict[str, Any], tuple[str, ...], tuple[Any, ...]]:
    """Return the content of a compare.json, the compared folders, and the other arguments of `compare`, in order.

    The folders are as named on the command line; the first is the one that holds the compare.json. Raises ValueError if
    the file is malformed.
    """
    content = parse_json(bundle.archive.read(name))
    try:
        folders = tuple(map(str, content["folders"]))
        by, band = content["by"], float(content["band"])
        if by not in pairs.BY or not folders or not 0 <= band < 1:
            raise ValueError(f"by {by!r}, band {band!r}, folders {folders!r}: not options of a comparison")
        target_loss = content.get("target_loss")
        if target_loss is not None:
            target_loss = float(target_loss)
        table = {}
        if content["price_table"] is not None:
            table = prices.table_of(content["price_table"])
        return content, folders, (by, content["baseline"], band, table, target_loss, float(content["token_budget"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"is not a comparison of the suite ({type(error).__name__}: {error})") from error


def _load(folders: Sequence[Path], names: Sequence[str]) -> Loaded:
    """Return the results in `folders`, with each folder in their paths replaced by its entry in `names`."""
    try:
        found = load_results(folders)
    except store.ResultError:
        # nothing in them
        return Loaded((), ())

    def renamed(path: Path) -> Path:
        for folder, name in zip(folders, names, strict=True):
            if path.is_relative_to(folder):
                return Path(name) / path.relative_to(folder)
        return path

    entries = [replace(entry, path=renamed(entry.path)) for entry in found.entries]
    unreadable = [(renamed(path), error.replace(str(path), str(renamed(path)))) for path, error in found.unreadable]
    return Loaded(tuple(entries), tuple(unreadable), found.probes)


def _places(root: Path, place: Path, folders: Sequence[str]) -> list[Path]:
    """Return the compared folders below `root`; raise ValueError if one is not in the archive."""
    # the archive has other paths than the machine that compared: only places beside the first folder are known
    first = Path(folders[0]).parent if folders[0].endswith(".json") else Path(folders[0])
    found = []
    for folder in folders:
        inside = root / os.path.normpath(place / os.path.relpath(folder, first))
        if not inside.is_relative_to(root) or ".." in inside.relative_to(root).parts or not inside.exists():
            raise ValueError(f"compares {folder}, which is not in the archive: cannot be recalculated")
        found.append(inside)
    return found


def _differences(where: str, stored: Any, wanted: Any) -> Iterator[str]:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        for key in sorted({*stored, *wanted}, key=str):
            inner = f"{where}.{key}" if where else str(key)
            if key == NOT_CHECKED:
                continue
            if key not in wanted:
                yield f"{inner}: does not follow from the results"
            elif key not in stored:
                yield f"{inner}: is missing"
            else:
                yield from _differences(inner, stored[key], wanted[key])
    elif isinstance(stored, list) and isinstance(wanted, list):
        if len(stored) != len(wanted):
            yield f"{where}: has {len(stored)} entries, the results give {len(wanted)}"
            return
        for index, pair in enumerate(zip(stored, wanted, strict=True)):
            yield from _differences(f"{where}[{index}]", *pair)
    elif not _is_same(stored, wanted):
        has, gives = (shortened(json.dumps(value), LONGEST_SHOWN) for value in (stored, wanted))
        yield f"{where}: has {has}, the results give {gives}"


def _is_same(stored: Any, wanted: Any) -> bool:
    # libraries round the last digits differently
    if is_number(stored) and is_number(wanted):
        return math.isclose(stored, wanted, rel_tol=RELATIVE, abs_tol=1e-12)
    return type(stored) is type(wanted) and bool(stored == wanted)
