"""Compare MLPerf Training logs: minutes to the quality target and tokens/s/GPU of each system, with verdicts.

Usage:   ./tprimat mlperf FOLDER [--band SHARE] [--output FILE.json]
Reads:   the logs and system descriptions below FOLDER
Writes:  the file of --output
Exits:   0 the verdicts were made; 1 a log is unusable; 2 bad input
Example: ./tprimat mlperf training_results/v5.1 --output mlperf.json

FOLDER holds results as MLCommons publishes them: `<submitter>/<system>/{system.json,<benchmark>/result_<n>.txt}` with
`:::MLLOG` lines, and a scaling.json if the reference convergence points require one. evaluate/inputs/mlperf_logs.py
computes minutes and throughput. MLCommons has not verified these figures, and every output contains that note.

Precision and batch are free in MLPerf, so a verdict compares systems and names their batch sizes. Accelerators are
compared over their machines, and the machines of one accelerator with one another.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from evaluate.command_lines import MLPERF

if __name__ == "__main__":
    MLPERF.parse_first()

from evaluate.checks.recorded import grouped
from evaluate.inputs.discover import require_place
from evaluate.inputs.mlperf_logs import DISCLAIMER, System, load
from evaluate.inputs.mlperf_run import MlperfLogError
from evaluate.metrics.defaults import BAND
from evaluate.report.blocks import Block, Card, Lines, Table
from evaluate.report.renderers import terminal
from evaluate.report.tables import plain, shown_on
from evaluate.verdict import inference
from evaluate.verdict.ratios import with_interval
from utils.arguments import refusing, run
from utils.errors import ForeignFileError
from utils.own_files import json_with, require_ours
from utils.results.store import ResultError, write_json

COLUMNS: dict[str, Callable[[System], str]] = {
    "system": lambda one: one.name,
    "accelerators": lambda one: f"{one.gpus} x {one.accelerator}",
    "GBS": lambda one: str(one.global_batch_size),
    "runs": lambda one: str(len(one.runs)),
    "minutes": lambda one: f"{one.minutes:.2f}",
    "tokens/s/GPU": lambda one: f"{one.throughput:,.0f}",
    "between runs": lambda one: f"{one.spread:.2%}",
}
"""Header and cell of each column of the printed table."""
WIDTH = 160
_is_ours = json_with("disclaimer", "verdicts", "systems")


def verdicts(systems: Sequence[System], band: float = BAND) -> Iterator[dict[str, Any]]:
    """Yield the verdicts on tokens/s/GPU: each accelerator against the first, then machines of one accelerator.

    The systems of an accelerator count as its machines, and all verdicts are corrected together for their number.
    Raises MlperfLogError for a system with a single run, whose spread between runs is unknown.
    """
    pairs = list(_pairs(systems))
    estimates = [inference.estimate(_runs(a), _runs(b)) for _, a, _, b in pairs]
    for (a_name, a, b_name, b), found, p_value in zip(pairs, estimates, inference.adjusted(estimates), strict=True):
        word, reason = inference.decide(found, p_value, band)
        free = f"{_setting(a)} against {_setting(b)}, precision free: each submitter's best, not equal settings"
        reasons = [
            reason,
            *(f"{(a_name, b_name)[place]}: {why}" for place, why in found.sides_without_spread),
            free,
            *(inference.remark_on_machines(side[0].accelerator, _runs(side)) for side in (a, b)),
        ]
        yield {
            "benchmark": b[0].benchmark,
            "a": a_name,
            "b": b_name,
            "verdict": word,
            "ratio": found.ratio,
            "interval": None if found.low is None else [found.low, found.high],
            "runs": list(found.runs),
            "machines": list(found.machines),
            "scope": found.scope,
            "reasons": list(filter(None, reasons)),
        }


def _pairs(systems: Sequence[System]) -> Iterator[tuple[str, list[System], str, list[System]]]:
    for of_benchmark in grouped(systems, attrgetter("benchmark")).values():
        sides = grouped(of_benchmark, attrgetter("accelerator"))
        (base_name, base), *others = sides.items()
        for name, side in others:
            yield base_name, base, name, side
        for side in sides.values():
            for system in side[1:]:
                yield side[0].name, side[:1], system.name, [system]


def _setting(side: Sequence[System]) -> str:
    gpus, batches = (sorted({getattr(one, key) for one in side}) for key in ("gpus", "global_batch_size"))
    return f"{' or '.join(map(str, gpus))} GPUs with global batch {' or '.join(map(str, batches))}"


def _runs(side: Sequence[System]) -> list[inference.Run]:
    if alone := [system.name for system in side if len(system.runs) < 2]:
        raise MlperfLogError(f"{alone[0]}: got a single run, wanted two or more, since one has no spread")
    return [
        inference.Run(system.name, math.log(system.tokens_per_second_per_gpu(run)))
        for system in side
        for run in system.runs
    ]


@refusing((ForeignFileError, ResultError))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = MLPERF.parse_args(arguments)
    try:
        require_place(options.folder)
        if options.output:
            require_ours(_is_ours, options.output)
        systems = load(options.folder)
        found = list(verdicts(systems, options.band))
    except MlperfLogError as error:
        print(f"error: {plain(error)}", file=sys.stderr)
        return 1 if options.folder.is_dir() else 2
    print(shown_on(sys.stdout, terminal([*_blocks(systems, found), Lines([DISCLAIMER])], WIDTH)))
    if options.output:
        content = {"disclaimer": DISCLAIMER, "verdicts": found, "systems": [_as_json(system) for system in systems]}
        write_json(content, options.output, is_ours=_is_ours)
    return 0


def _blocks(systems: Sequence[System], found: Sequence[dict[str, Any]]) -> Iterator[Block]:
    """Yield the table of the systems, and a card for each verdict."""
    yield Table("Systems", tuple(COLUMNS), [tuple(cell(one) for cell in COLUMNS.values()) for one in systems], 2)
    for entry in found:
        ratio, ends = with_interval(entry["ratio"], *(entry["interval"] or ())), entry["interval"]
        statement = f"{entry['b']} against {entry['a']}: {ratio}{'' if ends else ' (no interval)'}"
        yield Card(entry["verdict"], statement, basis=f"holds for {entry['scope']}", support=entry["reasons"])


def _as_json(system: System) -> dict[str, Any]:
    runs = [
        {
            "file": run.path.name,
            **{key: getattr(run, key) for key in ("minutes", "samples", "block_seconds", "samples_per_second")},
            "tokens_per_second_per_gpu": system.tokens_per_second_per_gpu(run),
        }
        for run in system.runs
    ]
    known = {
        key: getattr(system, key)
        for key in ("name", "benchmark", "accelerator", "gpus", "global_batch_size", "scaling")
    }
    return known | {"minutes": system.minutes, "tokens_per_second_per_gpu": system.throughput, "runs": runs}


if __name__ == "__main__":
    sys.exit(run(main))
