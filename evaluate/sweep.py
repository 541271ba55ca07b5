"""Draw the heat maps of a sweep and write its best settings.

Usage:   python -m evaluate.sweep OUTPUT_DIR/sweeps/<name>.json
Reads:   the file, and the results of every point in OUTPUT_DIR
Writes:  <name>.png and <name>_best[_<work>].env beside the file
Exits:   0; 1 no point has a counted result; 2 bad input
Example: python -m evaluate.sweep output/sweeps/sweep.json

Reads the results of every point in OUTPUT_DIR, checks them as `evaluate.validate` does, prints a table, and writes
beside the file `<name>.png` and, for each work, `<name>_best[_<work>].env`: settings for METHOD=best, with their
evidence. `train.sweep` runs it at its end; it can be run again at any time. Needs no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from evaluate.command_lines import SWEEP

if __name__ == "__main__":
    SWEEP.parse_first()

from evaluate.report.blocks import Lines
from evaluate.report.renderers import UNBROKEN, terminal, terminal_width
from evaluate.report.tables import not_written, plain
from evaluate.sweeps import figures
from evaluate.sweeps.heat_map import png
from utils.arguments import refusing, run
from utils.errors import ForeignFileError
from utils.files import write_whole
from utils.own_files import is_png, require_ours
from utils.results import sweep_file
from utils.results.sweep_file import SweepError


@refusing((SweepError, ForeignFileError))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    path: Path = SWEEP.parse_args(arguments).file
    picture = path.with_suffix(".png")
    files: dict[Path, str] = {}
    lines = []
    sweep = sweep_file.read(path)
    folder = path.absolute().parent.parent
    measured = [figures.measure(point, folder / point.label) for point in sweep.points]
    bests = figures.best_of(sweep, measured)
    for best in bests:
        work = f" for {figures.in_words(best.work)}" if best.work else ""
        lines.append(f"best{work}: {best.chosen.point.name if best.chosen else 'none'} ({best.why})")
        if best.chosen:
            file = path.parent / figures.file_name(sweep, best)
            files[file] = figures.settings_file(sweep, best, best.chosen)
            lines.append(f"  to use it with METHOD=best: cp {file} {figures.place(sweep, best.chosen)}")
    require_ours(is_png, picture)
    require_ours(figures.is_overlay, *files)
    try:
        write_whole(picture, png(sweep, measured, bests), is_ours=is_png)
        for file, text in files.items():
            write_whole(file, text, is_ours=figures.is_overlay)
    except OSError as error:
        return not_written(path.parent, error)
    print(terminal([figures.table(measured)], terminal_width()))
    print(terminal([Lines(lines)], UNBROKEN))  # a command to copy stays in one line
    print(f"wrote {plain(', '.join(map(str, (picture, *files))))}", file=sys.stderr)
    return 0 if any(one.rates for one in measured) else 1


if __name__ == "__main__":
    sys.exit(run(main))
