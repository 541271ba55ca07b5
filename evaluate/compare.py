"""Compare the results in one or more folders or archives: verdicts, tables and metrics.

Usage:   evaluate/compare.sh FOLDER|ZIP ... [OPTION ...]
         evaluate/compare.sh [KEY=VALUE ...]             the folder of these settings (OUTPUT_DIR, LABEL)
Reads:   train_*.json (and benchmark_*.json of earlier formats) below the folders; output.zip of shell/wrap.sh
Writes:  compare.{html,md,json,png} into the folder of --output (default: the first folder if it holds all inputs, else
         comparison/)
Exits:   0 at least one pair has a verdict; 3 no pair could be compared; 1 no result is ok and valid, or an output
         cannot be written; 2 bad input, or no result found. With --against: 0 every job passes; 1 at least one fails;
         3 none fails, and at least one is unknown
Example: evaluate/compare.sh amd.zip nvd.zip --output report --by platform

An output.zip of shell/wrap.sh is checked first, as `evaluate.validate --bundle` does, and then read like a folder.
Results of another model, size, method, sequence length, global batch, precision or data never share a table. Results
that are not ok or break a rule are listed with their reason and enter no average. `--against` tests each job against a
baseline instead (evaluate/acceptance).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from evaluate.command_lines import COMPARE, COMPARISON_FOLDER

if __name__ == "__main__":
    COMPARE.parse_first()

from evaluate.bundle import as_input
from evaluate.frames import tables as frames
from evaluate.frames.tables import MissingPackageError
from evaluate.inputs.discover import require_folder
from evaluate.metrics import prices
from evaluate.metrics.defaults import FORMATS, LEAST_PERCENT, PUBLISHED
from evaluate.metrics.prices import PriceError
from evaluate.report import brief, document, renderers, tables
from evaluate.report.comparison import Comparison, as_json, compare
from evaluate.verdict import pairs
from evaluate.verdict.sentences import NOT_COMPARABLE
from utils import redact
from utils.arguments import refusing, run
from utils.errors import ForeignFileError
from utils.files import MODE, written_whole
from utils.own_files import require_ours
from utils.results import store

NOTHING_COMPARABLE = 3


@refusing((store.ResultError, PriceError, ForeignFileError, MissingPackageError))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = COMPARE.parse_args(arguments)
    _check_together(options)
    if options.against is not None:
        # which a comparison does not need
        from evaluate.acceptance import command as acceptance

        return acceptance.run(options)
    output: Path = options.output or _place(options.folders)
    require_folder(output)
    check_places(output, options.format)
    comparison = _compared(options)
    # a report without any counted result must not replace a good one
    is_failure = not any(group.counted for group in comparison.groups)
    wanted = list(places(output, options.format).values())
    earlier = [path for path in wanted if path.exists()]
    try:
        if not (is_failure and earlier):
            write(comparison, output, options.format)
    except (OSError, ForeignFileError, store.ResultError) as error:
        return tables.not_written(output, error, "; name another with --output")
    page = output / "compare.html" if "html" in options.format else wanted[0]
    width = renderers.terminal_width()
    few = "\n".join(brief.verdict_lines(comparison, page, width)) if options.brief else ""
    brief.show(options, renderers.terminal(document.blocks(comparison), width), few)
    if is_failure and earlier:
        print(f"kept the earlier {tables.plain(', '.join(map(str, earlier)))}", file=sys.stderr)
    elif not options.brief:
        print(f"wrote {tables.plain(', '.join(map(str, wanted)))}", file=sys.stderr)
    if is_failure:
        print("error: no result is ok and valid; see the reasons above, and train again", file=sys.stderr)
        return 1
    is_compared = any(judged.word != NOT_COMPARABLE for judged in comparison.judged)
    return 0 if is_compared else NOTHING_COMPARABLE


def _check_together(options: argparse.Namespace) -> None:
    """Exit 2 for an option that has no meaning with or without --against, and set the default of --at-least."""
    if options.against == "":
        COMPARE.error(f"--against: got an empty text, wanted {PUBLISHED}, or a folder or an archive of results")
    names: tuple[str, ...] = ("at_least",)
    fault = "got it without --against, wanted --against published or a baseline of your own"
    if options.against is not None:
        names = ("by", "baseline", "band", "format", "prices", "target_loss", "token_budget", "brief", "log")
        fault = "has no meaning with --against; leave out one of them"
    for name in names:
        if getattr(options, name) != COMPARE.get_default(name):
            COMPARE.error(f"--{name.replace('_', '-')}: {fault}")
    options.at_least = options.at_least or LEAST_PERCENT


def _place(inputs: Sequence[Path]) -> Path:
    """Return the folder of the reports: the first one if it holds all inputs, else one in the working directory."""
    first = inputs[0].parent if inputs[0].is_file() else inputs[0]
    for path in inputs:
        if as_input.is_bundle(path) or not path.resolve().is_relative_to(first.resolve()):
            return COMPARISON_FOLDER
    return first


def _compared(options: argparse.Namespace) -> Comparison:
    """Return the comparison that the options ask for; raise ResultError or PriceError for bad input."""
    table = prices.load(options.prices or prices.PRICES_PATH)
    loaded = as_input.load(options.folders)
    for line in (*loaded.probes.errors, *loaded.profiles.errors):
        print(f"warning: {tables.plain(line)}; the file is not used", file=sys.stderr)
    comparison = compare(
        loaded,
        options.folders,
        by=options.by,
        baseline=options.baseline,
        band=options.band,
        price_table=table,
        target_loss=options.target_loss,
        token_budget=options.token_budget,
    )
    known = sorted({pairs.BY[comparison.by](entry.result) for entry in comparison.entries})
    if options.baseline is not None and options.baseline not in known:
        raise store.ResultError(f"--baseline: got {options.baseline}, wanted one of {', '.join(known)}")
    return comparison


# The files of a comparison: compare.{md,html,json,png}, and compare.{csv,parquet} if they are asked for.

RECOGNISERS = {**renderers.RECOGNISERS, **frames.RECOGNISERS}
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
        meanwhile: AbstractContextManager[None] = nullcontext()
        if is_beside:
            # by far the slowest of the files
            picture = paths.pop("png")
            meanwhile = _beside(lambda: _write("png", comparison, picture))
        with meanwhile:
            for name, path in paths.items():
                _write(name, comparison, path)


def places(folder: Path, formats: Sequence[str] = FORMATS) -> dict[str, Path]:
    """Return the path of each format."""
    return {name: folder / f"compare.{name}" for name in formats}


def check_places(folder: Path, formats: Sequence[str] = FORMATS) -> None:
    """Raise ForeignFileError if one of the files to be written exists and this command did not write it.

    Raises MissingPackageError for a format whose package is not installed.
    """
    for name in formats:
        frames.require_packages(name)
        require_ours(RECOGNISERS[name], folder / f"compare.{name}")


@contextmanager
def _beside(work: Callable[[], None]) -> Iterator[None]:
    """Do `work` in a forked process meanwhile; if that fails, do it again here, which raises its error."""
    import multiprocessing

    def run() -> None:
        try:
            work()
        except (OSError, ForeignFileError):
            sys.exit(1)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    try:
        yield
    finally:
        process.join()
    if process.exitcode:
        work()


def _write(name: str, comparison: Comparison, path: Path) -> None:
    if name == "json":
        content = store.json_text(as_json(comparison), path).encode()
    elif name == "md":
        content = redact.text(renderers.markdown(document.blocks(comparison))).encode()
    elif name == "html":
        from evaluate.report.page import page

        content = redact.text(page(renderers.TITLE, document.blocks(comparison))).encode()
    elif name in frames.RECOGNISERS:
        content = frames.content(frames.runs(comparison.entries, comparison.copies), name)
    else:
        # matplotlib alone takes half a second
        from evaluate.report.pictures import png

        content = png(document.picture_lines(comparison), document.blocks(comparison))
    path.write_bytes(content)
    path.chmod(MODE)


if __name__ == "__main__":
    sys.exit(run(main))
