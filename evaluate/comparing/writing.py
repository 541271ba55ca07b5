"""The files of a comparison: compare.{md,html,json,png}, and compare.{csv,parquet} if they are asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from evaluate.frames import files
from evaluate.metrics.defaults import FORMATS
from evaluate.report import document, own_files as own, renderers
from evaluate.report.comparison import Comparison, as_json
from utils import redact
from utils.errors import ForeignFileError
from utils.files import MODE, written_whole
from utils.own_files import require_ours
from utils.results import store

RECOGNISERS = {**own.RECOGNISERS, **files.RECOGNISERS}
MANY_RUNS = 200
"""Number of runs at which a second process starts to draw the picture while the first writes the other files."""


def write(comparison: Comparison, folder: Path, formats: Sequence[str] = FORMATS) -> None:
    """Write compare.{md,html,json,png}, or those of `formats`, into `folder`: all of them or none.

    Raises ForeignFileError for a file that this command did not write, OSError if a file cannot be written, and
    ResultError for a value that JSON cannot hold.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = places(folder, formats)
    with written_whole(
        *wanted.values(), is_ours=lambda path: RECOGNISERS[path.suffix.removeprefix(".")](path)
    ) as temporaries:
        paths = dict(zip(wanted, temporaries, strict=True))
        is_beside = "png" in paths and len(paths) > 1 and len(comparison.figures) >= MANY_RUNS
        with _beside(lambda: _write("png", comparison, paths["png"])) if is_beside else nullcontext():
            for name, path in paths.items():
                if not (is_beside and name == "png"):
                    _write(name, comparison, path)


def places(folder: Path, formats: Sequence[str] = FORMATS) -> dict[str, Path]:
    """Return the path of each format."""
    return {name: folder / f"compare.{name}" for name in formats}


def check_places(folder: Path, formats: Sequence[str] = FORMATS) -> None:
    """Raise ForeignFileError if one of the files to be written exists and this command did not write it.

    Raises MissingPackageError for a format whose package is not installed.
    """
    for name in formats:
        files.require_packages(name)
        require_ours(RECOGNISERS[name], folder / f"compare.{name}")


@contextmanager
def _beside(work: Callable[[], None]) -> Iterator[None]:
    """Do `work` in a forked process meanwhile; an OSError there is raised here."""
    import multiprocessing

    receiver, sender = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        try:
            work()
        except (OSError, ForeignFileError) as error:
            sender.send(str(error))
            sys.exit(1)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    try:
        yield
    finally:
        process.join()
    if process.exitcode:
        raise OSError(receiver.recv() if receiver.poll() else "the process that draws compare.png ended early")


def _write(name: str, comparison: Comparison, path: Path) -> None:
    if name == "json":
        content = store.json_text(as_json(comparison), path).encode()
    elif name == "md":
        content = redact.text(renderers.markdown(document.blocks(comparison))).encode()
    elif name == "html":
        from evaluate.page.page import page

        content = redact.text(page(own.TITLE, document.blocks(comparison))).encode()
    elif name in files.RECOGNISERS:
        from evaluate.frames import tables

        content = files.content(tables.runs(comparison.entries, comparison.copies), name)
    else:
        from evaluate.report.pictures import png  # matplotlib alone takes half a second

        content = png(document.picture_lines(comparison), document.blocks(comparison))
    path.write_bytes(content)
    path.chmod(MODE)
