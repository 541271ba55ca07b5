"""Archives for the tests: a packed folder as a matrix leaves it, and the same archive after tampering."""

from __future__ import annotations

import contextlib
import io
import json
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from checkout import ROOT
from housekeeping import write_result
from sides import plan, run

from evaluate import compare, validate, wrap
from utils.housekeeping import footprint
from utils.results import raw_samples

MANIFEST, SUMS = "manifest.json", "SHA256SUMS"
Files = dict[str, bytes]
"""Contents of the files in an archive, by name."""


def write_run(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write a result and the log of its trainer; return the log."""
    stem = f"{write_result(folder, result).stem}_attempt{result['attempt']}"
    log = folder / "logs" / f"{result['label'] + '_' if result['label'] else ''}{stem}.log"
    log.parent.mkdir(exist_ok=True)
    lines = ["=== banner of a trainer\n"]
    for step, seconds, loss in zip(result["steps"], result["step_times"], result["loss_values"], strict=True):
        shown = math.nan if loss is None else loss
        lines.append(raw_samples.format_step("GPU", step, len(result["steps"]), seconds, seconds, shown, 1.0))
    log.write_text("".join([*lines, *(raw_samples.lines(result) if result["status"] == "ok" else ())]))
    return log


def sides(seconds: Mapping[str, float], runs: int = 2, **changes: Any) -> list[dict[str, Any]]:
    """Return runs of each platform at `seconds` per step, with more digits of loss than a result stores."""
    found = [run(platform, number, s, **changes) for platform, s in seconds.items() for number in range(1, runs + 1)]
    for result in found:
        result["loss_values"] = [loss + math.pi * 1e-9 for loss in result["loss_values"]]
    return found


def written(folder: Path, results: Sequence[Mapping[str, Any]], *, is_compared: bool = False) -> Path:
    """Write results and their logs into a folder of the suite, and the comparison; return the folder."""
    footprint.mark(folder, footprint.OUTPUT)
    plan(results)
    for result in results:
        write_run(folder, result)
    assert not is_compared or compare.main([str(folder)]) == 0
    return folder


def faults(path: Path) -> list[str]:
    """Return the faults that `evaluate.validate --bundle` prints of an archive."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = validate.main(["--bundle", str(path)])
    found = [line.removeprefix(f"{path.name}: ") for line in printed.getvalue().splitlines() if path.name in line]
    assert code or not found
    return found


def pack(folder: Path) -> Path:
    """Pack a folder and return the archive."""
    path, _ = wrap.write(folder, {})
    return path


def packed_again(path: Path, change: Callable[[Files], None], *, is_listed: bool) -> Path:
    """Rewrite an archive with a change; with `is_listed`, manifest and sums are adapted to it."""
    with zipfile.ZipFile(path) as opened:
        files = {name: opened.read(name) for name in opened.namelist()}
    lists = {name: files.pop(name) for name in (MANIFEST, SUMS)}
    change(files)
    if is_listed:
        kept = {name: data for name, data in files.items() if name not in (MANIFEST, SUMS)}
        listed = {name: wrap.Listed(len(data), sha256(data).hexdigest()) for name, data in kept.items()}
        lists[MANIFEST] = wrap.manifest_of(listed, ROOT)
        lists[SUMS] = wrap.sums(listed, lists[MANIFEST])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as changed:
        for name, data in (lists | files).items():
            changed.writestr(name, data)
    return path


@contextmanager
def edited(files: Files, name: str) -> Iterator[dict[str, Any]]:
    """Change a JSON file among `files`."""
    content = json.loads(files[name])
    yield content
    files[name] = json.dumps(content, indent=1).encode()
