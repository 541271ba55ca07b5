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

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from evaluate.command_lines import SWEEP

if __name__ == "__main__":
    SWEEP.parse_first()

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from evaluate.checks.recorded import grouped
from evaluate.report import sweeps as figures
from evaluate.report.blocks import Lines
from evaluate.report.groups import known_values
from evaluate.report.pictures import drawing, saved
from evaluate.report.renderers import UNBROKEN, terminal, terminal_width
from evaluate.report.sweeps import Best, Measured, SweepError, in_words
from evaluate.report.tables import not_written, number, plain, wrapped
from utils.arguments import refusing, run
from utils.errors import ForeignFileError
from utils.files import write_whole
from utils.own_files import is_png, require_ours
from utils.results.sweep_file import Sweep


@refusing((SweepError, ForeignFileError))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    path: Path = SWEEP.parse_args(arguments).file
    picture = path.with_suffix(".png")
    files: dict[Path, str] = {}
    lines = []
    sweep = figures.read(path)
    folder = path.absolute().parent.parent
    measured = [figures.measure(point, folder / point.label) for point in sweep.points]
    bests = figures.best_of(sweep, measured)
    for best in bests:
        work = f" for {in_words(best.work)}" if best.work else ""
        if best.chosen is None:
            lines.append(f"best{work}: none ({best.why})")
            continue
        file = path.parent / figures.file_name(sweep, best)
        files[file] = figures.settings_file(sweep, best, best.chosen)
        lines.append(f"best{work}: {best.chosen.point.name} ({best.why})")
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
    # a command to copy stays in one line
    print(terminal([Lines(lines)], UNBROKEN))
    print(f"wrote {plain(', '.join(map(str, (picture, *files))))}", file=sys.stderr)
    return 0 if any(point.rates for point in measured) else 1


# The picture of a sweep: a heat map of speed and one of memory for every combination beyond two axes.
#
# A cell without a figure carries its reason in words. Colour is not needed to read it: every cell has its number.
# Lengths are in inches.

CELL_WIDTH, CELL_HEIGHT, LEAST_WIDTH = 1.35, 0.62, 3.2
LABELS, TITLES = 1.0, 1.0
"""Room beside a map for its labels, above and below it for its titles, and above all maps for the title."""
COLOURS = mpl.colormaps["viridis"].with_extremes(bad="#D9D9D9")
CHARACTERS_OF_CELL = 17
CHARACTERS_OF_INCH = 14
NAMING = ("FRAMEWORK", "MODEL")
"""Axes that become panels rather than rows and columns where there are two others."""
KINDS: tuple[tuple[str, Callable[[Measured], float | None]], ...] = (
    ("tokens/s per GPU or rank", attrgetter("rate")),
    ("peak memory, GB", attrgetter("memory_gb")),
)
Cells = list[list[Measured]]


@drawing()
def png(sweep: Sweep, measured: Sequence[Measured], bests: Sequence[Best]) -> bytes:
    """Return the picture as a PNG: one row of two heat maps for each panel; the best points are marked."""
    chosen = [best.chosen for best in bests]
    keys = sorted(sweep.axes, key=lambda key: key in NAMING)[:2]
    panels = list(_panels(sweep, measured, keys))
    rows, columns = len(panels[0][1]), len(panels[0][1][0])
    width = 2 * (LABELS + max(LEAST_WIDTH, columns * CELL_WIDTH))
    figure = Figure(figsize=(width, TITLES + len(panels) * (TITLES + rows * CELL_HEIGHT)), layout="constrained")
    figure.suptitle(_title(sweep, measured, int(width * CHARACTERS_OF_INCH)), fontsize=9)
    for line, (title, cells) in zip(figure.subplots(len(panels), 2, squeeze=False), panels, strict=True):
        for axes, (name, value_of) in zip(line, KINDS, strict=True):
            # all panels have one scale
            largest = max(known_values(map(value_of, measured)), default=0.0) or 1.0
            _draw_map(axes, cells, [list(map(value_of, row)) for row in cells], largest, chosen)
            axes.set_title(f"{title}{name}", fontsize=9)
            for axis, key in zip((axes.yaxis, axes.xaxis), keys, strict=False):
                axis.set_ticks(range(len(sweep.axes[key])), list(map(plain, sweep.axes[key])))
                axis.set_label_text(key)
    return saved(figure)


def _panels(sweep: Sweep, measured: Sequence[Measured], keys: Sequence[str]) -> Iterator[tuple[str, Cells]]:
    """Yield the title and the cells of each panel, by the values of the first of `keys` and of the second."""
    others = {key: values for key, values in sweep.axes.items() if key not in keys}
    for values in itertools.product(*others.values()):
        wanted = dict(zip(others, values, strict=True))
        inside = [point for point in measured if wanted.items() <= point.point.settings.items()]
        by_row = grouped(inside, lambda point: point.point.settings[keys[0]])
        cells = [by_row.get(value, []) for value in sweep.axes[keys[0]]]
        yield f"{in_words(wanted)}\n" if wanted else "", cells


def _title(sweep: Sweep, measured: Sequence[Measured], characters: int) -> str:
    devices, dates, runs = set(), set(), set()
    for point in measured:
        if point.rates:
            runs.add(str(len(point.rates)))
        for result in point.results:
            devices.add(str(result["gpu_info"]["device_name"]))
            dates.add(str(result["provenance"]["started_utc"])[:10])
    known = "no result"
    if devices:
        known = f"{', '.join(sorted(devices))}; {min(dates)}; runs a point: {', '.join(sorted(runs))}"
    lines = wrapped(f"{sweep.platform}: {in_words(sweep.fixed)}", 2, characters) + wrapped(known, 1, characters)
    return "\n".join([plain(f"Sweep {sweep.name}"), *lines])


def _draw_map(
    axes: Any, cells: Cells, values: list[list[float | None]], largest: float, chosen: Sequence[Measured | None]
) -> None:
    axes.imshow(np.array(values, dtype=float), cmap=COLOURS, vmin=0, vmax=largest, aspect="auto")
    axes.set(xticks=(), yticks=())
    for y, row in enumerate(cells):
        for x, point in enumerate(row):
            value, is_best = values[y][x], any(point is best for best in chosen)
            if value is None:
                why = "not measured" if point.rate is not None else point.why
                lines = wrapped(why, 3, CHARACTERS_OF_CELL)
            else:
                lines = [number(value)]
                if is_best:
                    lines.append("best")
            # white on the dark end of the map
            colour = "white" if value is not None and value < 0.6 * largest else "black"
            weight = "bold" if is_best else "normal"
            axes.text(x, y, "\n".join(lines), ha="center", va="center", color=colour, weight=weight)


if __name__ == "__main__":
    sys.exit(run(main))
