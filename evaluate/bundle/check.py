"""Check an output.zip of shell/wrap.sh: no file changed, every rule kept, every figure reproducible from the logs.

    python -m evaluate.validate --bundle output.zip [more archives]

The checks run in this order: names, sizes and hashes (evaluate/bundle/archive.py); each result by all rules of
evaluate.validate and against its raw log (evaluate/bundle/raw_logs.py); each comparison against the results
(evaluate/bundle/stored_reports.py). They find mistakes and any change made in one place. They are not a signature: only
a second run exposes somebody who changes logs, results, report and manifest consistently. docs/bundle.md describes
the checks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluate.bundle import archive, raw_logs, stored_reports
from evaluate.bundle.archive import UNREADABLE, Bundle
from evaluate.checks.entries import Loaded
from utils.results import store


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
        root = Path(folder) / "output"  # in a folder of its own, because load looks for probes beside it too
        faults = [*archive.disagreements(bundle), *_extract(bundle, root)]
        loaded = stored_reports.load([root], [""])
        for name, result in (*((entry.path, entry.result) for entry in loaded.entries), *_superseded(bundle, root)):
            faults += [f"{name}: {line}" for line in raw_logs.check(bundle, result)]
        faults += stored_reports.check(bundle, root)
        return CheckedBundle(loaded, tuple(faults), tuple(stored_reports.notes(bundle)), len(bundle.listed))


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
