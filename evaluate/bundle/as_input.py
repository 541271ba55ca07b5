"""An output.zip as an input of a comparison: checked as `evaluate.validate --bundle` does, then read as a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evaluate.checks.entries import Entry, Loaded, loaded, read_results
from evaluate.inputs.discover import distinct
from utils.results.store import ResultError


def is_bundle(path: Path) -> bool:
    """Return whether a path is that of an archive: a file whose name ends in .zip."""
    return path.suffix.lower() == ".zip" and path.is_file()


def load(paths: Sequence[Path]) -> Loaded:
    """Return the checked results in folders, archives and single files; raise ResultError as `load_results` does, and
    for an archive with a fault."""
    folders = [path for path in paths if not is_bundle(path)]
    return loaded(read(paths, read_results(folders)), folders)


def read(paths: Sequence[Path], found: Loaded) -> Loaded:
    """Add the results in the archives among `paths` to those found, each archive once, under ARCHIVE/PATH_IN_IT.

    Raises ResultError for a file that is no archive of shell/wrap.sh, and for an archive with a fault.
    """
    for path in distinct(path for path in paths if is_bundle(path)):
        inside = _checked(path)
        # the path names the archive too, so that a report says where a result is from
        entries = [Entry(path / entry.path, dict(entry.result)) for entry in inside.entries]
        unreadable = [(path / name, f"{path}: {line}") for name, line in inside.unreadable]
        found = replace(
            found,
            entries=(*found.entries, *entries),
            unreadable=(*found.unreadable, *unreadable),
            probes=found.probes.joined(inside.probes),
        )
    return found


def _checked(path: Path) -> Loaded:
    # most comparisons have no archive
    from evaluate.bundle.archive import BundleError
    from evaluate.bundle.check import check

    try:
        bundle = check(path)
    except BundleError as error:
        raise ResultError(str(error)) from error
    if bundle.faults:
        number = "a fault" if len(bundle.faults) == 1 else f"{len(bundle.faults)} faults, first"
        raise ResultError(
            f"{path}: {number}: {bundle.faults[0]}; see python -m evaluate.validate --bundle {path}, and pack again"
        )
    return bundle.loaded
