"""Compare the results in one or more folders.

    python -m evaluate.compare output/ [more folders] [--output DIR]
    python -m evaluate.compare amd.zip nvd.zip

Writes compare.{html,md,json,png}, or those of `--format`, and prints verdicts and tables. An output.zip of
shell/wrap.sh is checked first, as `evaluate.validate --bundle` does, and then read like a folder. Results of another
model, size, method, sequence length, global batch, precision or data never share a table. Results that are not ok or
break a rule are listed with their reason and enter no average. Exit codes: see EXIT_CODES.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from evaluate.bundle import as_input
from evaluate.checks.entries import load_results
from evaluate.metrics import prices
from evaluate.metrics.prices import PriceError
from evaluate.report import brief, tables
from evaluate.report import own_files as own
from evaluate.report import text as report
from evaluate.report.comparison import Comparison, as_json, compare
from evaluate.verdict import inference, pairs
from evaluate.verdict.saving import BUDGET_TOKENS
from evaluate.verdict.sentences import NOT_COMPARABLE
from utils import redact
from utils.arguments import Parser, run
from utils.errors import ForeignFileError
from utils.files import MODE, written_whole
from utils.own_files import require_ours
from utils.results import store

FORMATS = ("md", "html", "json", "png")
EXIT_CODES = (
    "Exit codes: 0 at least one pair has a verdict; 3 no pair could be compared; 1 no result is ok and valid, or an "
    "output cannot be written; 2 bad input, or no result found."
)
NOTHING_COMPARABLE = 3
OUTPUT = Path("comparison")
"""Folder of the reports on inputs of several places, and on archives: none of the inputs is changed."""
MANY_RUNS = 200
"""Number of runs at which a second process starts to draw the picture while the first writes the other files."""


def write(comparison: Comparison, folder: Path, formats: Sequence[str] = FORMATS) -> None:
    """Write compare.{json,md,html,png}, or those of `formats`, into `folder`: all of them or none.

    Raises ForeignFileError for a file that this command did not write, OSError if a file cannot be written, and
    ResultError for a value that JSON cannot hold.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"compare.{name}" for name in formats]
    with written_whole(*paths, is_ours=_is_ours) as temporaries:
        places = dict(zip(formats, temporaries, strict=True))
        if "png" not in formats or len(formats) == 1 or len(comparison.figures) < MANY_RUNS:
            for name, place in places.items():
                _write(name, comparison, place)
            return
        with _beside(lambda: _write("png", comparison, places["png"])):
            for name, place in places.items():
                if name != "png":
                    _write(name, comparison, place)


def check_places(folder: Path, formats: Sequence[str] = FORMATS) -> None:
    """Raise ForeignFileError if one of the files to be written exists and this command did not write it."""
    for name in formats:
        require_ours(own.RECOGNISERS[name], folder / f"compare.{name}")


@contextmanager
def _beside(work: Callable[[], None]) -> Iterator[None]:
    """Do `work` in a forked process meanwhile; an OSError there is raised here."""
    receiver, sender = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        try:
            work()
        except (OSError, ForeignFileError) as error:
            sender.send(str(error))
        else:
            sender.send("")

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    sender.close()
    try:
        yield
    finally:
        try:
            failure = receiver.recv()
        except EOFError:
            failure = "the process that draws compare.png ended early"
        process.join()
    if failure:
        raise OSError(failure)


def _is_ours(path: Path) -> bool:
    return own.RECOGNISERS[path.suffix.removeprefix(".")](path)


def _write(name: str, comparison: Comparison, path: Path) -> None:
    if name == "json":
        content = store.json_text(as_json(comparison), path).encode()
    elif name == "md":
        content = redact.text(report.markdown(comparison)).encode()
    elif name == "html":
        from evaluate.page.page import page

        content = redact.text(page(comparison)).encode()
    else:
        from evaluate.report.plots import png  # matplotlib alone takes half a second

        content = png(comparison)
    path.write_bytes(content)
    path.chmod(MODE)


class _Parser(Parser):
    """An argument parser that reports bad input in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with 2."""
        self.exit(2, f"error: {tables.plain(message)}; see --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = _arguments(arguments)
    try:
        for folder in options.folders:
            store.require_place(folder)
        output: Path = options.output or _place(options.folders)
        if output.exists() and not output.is_dir():
            raise store.ResultError(f"--output: got {output}, which is a file, wanted a folder; name another")
        check_places(output, options.format)
        comparison = _compared(options)
    except (store.ResultError, PriceError, ForeignFileError) as error:
        print(f"error: {tables.plain(error)}", file=sys.stderr)
        return 2
    is_failure = not any(group.counted for group in comparison.groups)
    earlier = [path for name in options.format if (path := output / f"compare.{name}").exists()]
    try:
        if not (is_failure and earlier):
            write(comparison, output, options.format)
    except (OSError, ForeignFileError, store.ResultError) as error:
        print(
            f"error: {tables.plain(output)}: cannot be written: {tables.plain(error)}; name another with --output",
            file=sys.stderr,
        )
        return 1
    written = [output / f"compare.{name}" for name in options.format]
    try:
        _show(options, comparison, written[0] if "html" not in options.format else output / "compare.html")
    except OSError as error:
        if options.log is None or isinstance(error, BrokenPipeError):
            raise
        print(brief.log_error(options, error), file=sys.stderr)
        return 1
    if is_failure and earlier:
        print(f"kept the earlier {tables.plain(', '.join(map(str, earlier)))}", file=sys.stderr)
    elif not options.brief:
        print(f"wrote {tables.plain(', '.join(map(str, written)))}", file=sys.stderr)
    if is_failure:
        print("error: no result is ok and valid; see the reasons above, and train again", file=sys.stderr)
        return 1
    return 0 if any(judged.word != NOT_COMPARABLE for judged in comparison.judged) else NOTHING_COMPARABLE


def _show(options: argparse.Namespace, comparison: Comparison, path: Path) -> None:
    """Print the verdicts and tables, or with `--brief` the verdict and the path of the report."""
    width = brief.terminal_width()
    few = "\n".join(brief.verdict_lines(comparison, path, width)) if options.brief else ""
    brief.show(options, report.terminal(comparison, width), few)


def _place(inputs: Sequence[Path]) -> Path:
    """Return the folder of the reports: the first one if it holds all inputs, else one in the working directory."""
    first = inputs[0].parent if inputs[0].is_file() else inputs[0]
    inside = (path.resolve().is_relative_to(first.resolve()) and not as_input.is_bundle(path) for path in inputs)
    return first if all(inside) else OUTPUT


def _compared(options: argparse.Namespace) -> Comparison:
    """Return the comparison that the options ask for; raise ResultError or PriceError for bad input."""
    table = prices.load(options.prices or prices.PRICES_PATH)
    folders = [path for path in options.folders if not as_input.is_bundle(path)]
    found = load_results(folders, as_input.read(options.folders))
    comparison = compare(
        *(found, options.folders, options.by, options.baseline, options.band, table, options.target_loss),
        token_budget=options.token_budget,
    )
    results_found = [entry.result for group in comparison.groups for row in group.rows for entry in row.entries]
    known = sorted({pairs.BY[comparison.by](result) for result in results_found})
    if options.baseline is not None and options.baseline not in known:
        raise store.ResultError(f"--baseline: got {options.baseline}, wanted one of {', '.join(known)}")
    return comparison


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m evaluate.compare",
        description="Compare the results in one or more folders or archives: verdicts, tables and metrics.",
        epilog=EXIT_CODES,
    )
    add = parser.add_argument
    add("folders", nargs="+", type=Path, help="folders to search for train_*.json (and benchmark_*.json of earlier "
        "formats), output.zip of shell/wrap.sh, or single result files")  # fmt: skip
    add("--output", type=Path, metavar="DIR", help="folder for compare.{html,md,json,png} (default: the first "
        f"folder if it holds all inputs, else {OUTPUT}/)")  # fmt: skip
    add("--by", choices=tuple(pairs.BY), help="property in which the two sides of a pair differ (default: platform if "
        "there are two, else framework)")  # fmt: skip
    add("--baseline", metavar="SIDE", help="side that the others are compared with, e.g. nvd (default: the first)")
    add("--band", type=_band, default=inference.BAND, metavar="SHARE", help="largest relative difference that counts "
        "as none, from 0 to below 1 (default: %(default)s)")  # fmt: skip
    add("--format", type=_formats, default=FORMATS, metavar="NAMES", help=f"files to write, any of {','.join(FORMATS)} "
        "(default: all)")  # fmt: skip
    add("--prices", type=Path, metavar="FILE", help="your own price table (default: evaluate/prices.json)")
    add("--target-loss", type=_target_loss, metavar="NATS", help="loss in nats per token; adds the time in seconds to "
        "reach it (default: none)")  # fmt: skip
    add("--token-budget", type=_token_budget, default=BUDGET_TOKENS, metavar="TOKENS", help="tokens for which the "
        "saving of one side over the other is calculated (default: %(default)g)")  # fmt: skip
    brief.add_options(parser, "only the verdict, in five lines, and the path of the report")
    return parser.parse_args(arguments)


def _band(text: str) -> float:
    band = float(text)
    if not 0 <= band < 1:
        raise argparse.ArgumentTypeError(f"got {text}, wanted a share from 0 to below 1, e.g. 0.03")
    return band


def _formats(text: str) -> tuple[str, ...]:
    wanted = text.split(",")
    if unknown := [name for name in wanted if name not in FORMATS]:
        raise argparse.ArgumentTypeError(f"got {tables.plain(unknown[0])!r}, wanted any of {','.join(FORMATS)}")
    return tuple(name for name in FORMATS if name in wanted)


def _token_budget(text: str) -> float:
    return _within(text, 1, 1e24, "a number of tokens from 1 to 1e24, e.g. 15e12")


def _target_loss(text: str) -> float:
    return _within(text, 1e-9, 1e9, "nats per token above 0, e.g. 3.3")


def _within(text: str, least: float, most: float, wanted: str) -> float:
    value = float(text)
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"got {text}, wanted {wanted}")
    return value


if __name__ == "__main__":
    sys.exit(run(main))
