"""Archives for the tests: a packed folder as a matrix leaves it, and the same archive after tampering."""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sides import run

from evaluate import compare
from utils.housekeeping import archive, footprint
from utils.housekeeping.archive import MANIFEST, SUMS, Listed
from utils.results import raw_samples, store
from utils.results.step_line import format_step
from utils.settings.config import ROOT

Files = dict[str, bytes]
"""Contents of the files in an archive, by name."""


def write_run(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write a result and the log of its trainer."""
    name = store.result_name(*(result[key] for key in ("platform", "framework", "model", "run")))
    stem = f"{result['label'] + '_' if result['label'] else ''}{name.removesuffix('.json')}_attempt{result['attempt']}"
    path = folder / result["label"] / name
    store.write(result, path)
    log = folder / "logs" / f"{stem}.log"
    log.parent.mkdir(exist_ok=True)
    lines = [*_progress(result), *(raw_samples.lines(result) if result["status"] == "ok" else ())]
    log.write_text("=== banner of a trainer\n" + "".join(lines))
    return log


def _progress(result: Mapping[str, Any]) -> Iterator[str]:
    for step, seconds, loss in zip(result["steps"], result["step_times"], result["loss_values"], strict=True):
        yield format_step("GPU", step, len(result["steps"]), seconds, seconds, math.nan if loss is None else loss, 1.0)


def sides(seconds: Mapping[str, float], runs: int = 2, **changes: Any) -> list[dict[str, Any]]:
    """Return runs of each platform at `seconds` per step, with more digits of loss than a result stores."""
    found = [run(platform, number, s, **changes) for platform, s in seconds.items() for number in range(1, runs + 1)]
    for result in found:
        result["loss_values"] = [loss + math.pi * 1e-9 for loss in result["loss_values"]]
        result["training_config"]["dp"] = result["resolved_config"]["dp"] = 8
    return found


def write_folder(folder: Path) -> None:
    """Write results of two platforms, a failed one, logs, and the comparison."""
    footprint.mark(folder, footprint.OUTPUT)
    for result in sides({"nvd": 1.0, "amd": 0.9}):
        write_run(folder, result)
    failed = run("amd", 3, status="failed", reason="a rank was ended by SIGKILL")
    write_run(folder, failed)
    (folder / "logs" / "matrix.log").write_text("2026-11-21T00:00:00Z --- job 1 of 5\n")
    assert compare.main([str(folder)]) == 0


def pack(folder: Path) -> Path:
    """Pack a folder and return the archive."""
    path, _ = archive.write(folder, {})
    return path


def files_of(path: Path) -> Files:
    """Return the files in an archive, without manifest and sums."""
    with zipfile.ZipFile(path) as opened:
        return {name: opened.read(name) for name in opened.namelist() if name not in (MANIFEST, SUMS)}


def packed_again(path: Path, change: Callable[[Files], None], *, is_listed: bool) -> Path:
    """Rewrite an archive with a change; with `is_listed`, manifest and sums are adapted to it."""
    with zipfile.ZipFile(path) as opened:
        lists = {name: opened.read(name) for name in (MANIFEST, SUMS)}
    files = files_of(path)
    change(files)
    if is_listed:
        listed = {name: Listed(len(data), sha(data)) for name, data in files.items() if name not in (MANIFEST, SUMS)}
        lists[MANIFEST] = archive.manifest_of(listed, ROOT)
        lists[SUMS] = archive.sums(listed, lists[MANIFEST])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as changed:
        for name, data in (lists | files).items():
            changed.writestr(name, data)
    return path


def sha(data: bytes) -> str:
    """Return the hash in the form of the manifest."""
    from hashlib import sha256

    return sha256(data).hexdigest()


@contextmanager
def edited(files: Files, name: str) -> Iterator[dict[str, Any]]:
    """Change a JSON file among `files`."""
    content = json.loads(files[name])
    yield content
    files[name] = json.dumps(content, indent=1).encode()
