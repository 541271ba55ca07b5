"""Check an output.zip of shell/wrap.sh: nothing changed, every rule kept, every figure worked out again from the logs.

    python -m evaluate.validate --bundle output.zip [more archives]

First names, sizes and hashes (evaluate/bundle/archive.py); then each result by all rules of evaluate.validate and
against its raw log (evaluate/bundle/raw_logs.py); then each comparison against the results
(evaluate/bundle/stored_reports.py). This finds
mistakes and what was changed in one place; it is no signature: who rewrites logs, results, report and manifest alike
is found by nobody but a second run. docs/bundle.md says what each line of the output means.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluate.bundle import archive as bundle_zip
from evaluate.bundle import raw_logs as bundle_logs
from evaluate.bundle import stored_reports as bundle_report
from evaluate.bundle.archive import UNREADABLE, Bundle, BundleError
from evaluate.checks.entries import Loaded
from evaluate.report.tables import plain
from evaluate.report.validation_table import show_validation
from utils.housekeeping.archive_manifest import MANIFEST
from utils.results import store


@dataclass(frozen=True)
class Checked:
    """What was found in an archive."""

    loaded: Loaded
    """Its results, under their paths in it; without superseded ones."""
    faults: tuple[str, ...]
    """What speaks against it, a line each that begins with the name of a file in it."""
    notes: tuple[str, ...] = ()
    """What was not looked at, and why."""
    files: int = 0


def check(path: Path) -> Checked:
    """Return what is found in an archive; raise BundleError for what is none of ours."""
    with bundle_zip.opened(path) as (bundle, refusals), tempfile.TemporaryDirectory() as folder:
        if bundle is None:
            return Checked(Loaded((), ()), tuple(refusals))
        root = Path(folder) / "output"  # in a folder of its own, because load looks for probes beside it too
        faults = [*bundle_zip.disagreements(bundle), *_extract(bundle, root)]
        loaded = bundle_report.load([root], [""])
        for name, result in (*((entry.path, entry.result) for entry in loaded.entries), *_superseded(bundle, root)):
            faults += [f"{name}: {line}" for line in bundle_logs.check(bundle, result)]
        faults += bundle_report.check(bundle, root)
        return Checked(loaded, tuple(faults), tuple(bundle_report.notes(bundle)), len(bundle.listed))


def main(paths: Sequence[Path]) -> int:
    """Check each archive and say what was found: 0 where all is well, 1 where anything is not, 2 for bad input."""
    code = 0
    for path in paths:
        try:
            checked = check(path)
        except BundleError as error:
            print(f"error: {plain(error)}", file=sys.stderr)
            return 2
        if len(paths) > 1:
            print(f"== {plain(path)}")
        is_good = show_validation(checked.loaded)
        for line in checked.faults:
            print(f"{plain(path.name)}: {plain(line)}")
        for line in checked.notes:
            print(f"note: {plain(line)}", file=sys.stderr)
        said = (
            f"{len(checked.faults)} faults" if checked.faults else f"{checked.files} files are as {MANIFEST} lists them"
        )
        said += "" if checked.faults else ", and every figure is what the raw logs give"
        print(f"{plain(path)}: {said}", file=sys.stderr)
        code = max(code, 0 if is_good and not checked.faults else 1)
    return code


def _extract(bundle: Bundle, root: Path) -> Iterator[str]:
    """Write what `load_results` reads; yield what cannot be read."""
    root.mkdir()
    for name in (*bundle.of_kind("result"), *bundle.of_kind("probe")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            bundle.extract(name, (root / name).parent)
        except UNREADABLE as error:
            (root / name).unlink(missing_ok=True)
            yield f"{name}: cannot be read ({error})"


def _superseded(bundle: Bundle, root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the results of earlier attempts, which no comparison looks at; one that is none proves nothing."""
    for name in bundle.of_kind("result"):
        if store.SUPERSEDED in Path(name).parts and (root / name).exists():
            with suppress(store.ResultError):
                yield Path(name), store.read(root / name)
