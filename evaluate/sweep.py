"""Draw the heat maps of a sweep and write its best settings.

    python -m evaluate.sweep output/sweeps/sweep.json

Reads the results of every point in OUTPUT_DIR, checks them as `evaluate.validate` does, prints a table, and writes
beside the file `<name>.png` and, for each work, `<name>_best[_<work>].env`: settings for METHOD=best, with their
evidence. `train.sweep` runs it at its end; it can be run again at any time. Needs no torch. Exits 0; 1 if no point has
a counted result; 2 for bad input.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from evaluate.report.tables import plain, text_table
from evaluate.sweeps import overlay
from evaluate.sweeps.figures import Best, Measured, best_of, measure
from evaluate.sweeps.heat_map import png
from utils.arguments import Parser, run
from utils.errors import ForeignFileError
from utils.files import write_whole
from utils.own_files import is_png, require_ours
from utils.results import sweep_file
from utils.results.sweep_file import Sweep, SweepError

WIDTH = 100
"""Characters of the table."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = Parser(
        prog="python -m evaluate.sweep",
        description=(__doc__ or "").splitlines()[0],
        epilog="Exits 0; 1 if no point has a counted result; 2 for bad input.",
    )
    parser.add_argument("file", type=Path, help="file of the sweep: OUTPUT_DIR/sweeps/<name>.json")
    path: Path = parser.parse_args(arguments).file
    try:
        sweep = sweep_file.read(path)
        measured = measure(sweep, path.absolute().parent.parent)
        bests = best_of(sweep, measured)
        files = _files(sweep, path.parent, bests)
        require_ours(is_png, path.with_suffix(".png"))
        require_ours(overlay.is_overlay, *files)
    except (SweepError, ForeignFileError) as error:
        print(f"error: {plain(error)}", file=sys.stderr)
        return 2
    try:
        write_whole(path.with_suffix(".png"), png(sweep, measured, bests), is_ours=is_png)
        for file, best in files.items():
            write_whole(file, overlay.text(sweep, best), is_ours=overlay.is_overlay)
    except OSError as error:
        print(f"error: {plain(path.parent)}: cannot be written: {plain(error)}", file=sys.stderr)
        return 1
    print(_table(measured))
    print(_conclusion(sweep, bests, path.parent))
    print(f"wrote {plain(', '.join(map(str, (path.with_suffix('.png'), *files))))}", file=sys.stderr)
    return 0 if any(one.rates for one in measured) else 1


def _files(sweep: Sweep, folder: Path, bests: Sequence[Best]) -> dict[Path, Best]:
    return {folder / overlay.file_name(sweep, best): best for best in bests if best.chosen is not None}


def _table(measured: Sequence[Measured]) -> str:
    header = ("point", "tokens/s/GPU", "spread", "peak GB", "runs", "why none")
    return text_table(header, [_row(one) for one in measured], WIDTH)


def _row(one: Measured) -> tuple[str, ...]:
    return (
        one.point.name,
        "" if one.rate is None else f"{one.rate:,.0f}",
        "" if one.spread is None else f"{one.spread:.1%}",
        "" if one.memory_gb is None else f"{one.memory_gb:.3g}",
        str(len(one.rates)),
        one.why,
    )


def _conclusion(sweep: Sweep, bests: Sequence[Best], folder: Path) -> str:
    lines = []
    for best in bests:
        work = " ".join(f"{key}={value}" for key, value in best.work.items())
        chosen = "none" if best.chosen is None else best.chosen.point.name
        lines.append(f"best{' for ' + work if work else ''}: {chosen} ({best.why})")
        if best.chosen is not None:
            source = folder / overlay.file_name(sweep, best)
            lines.append(f"  to use it with METHOD=best: cp {source} {overlay.place(sweep, best)}")
    return plain("\n".join(lines)) if len(lines) == 1 else "\n".join(map(plain, lines))


if __name__ == "__main__":
    sys.exit(run(main))
