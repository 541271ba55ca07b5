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
from collections.abc import Iterator, Sequence
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

COLUMNS = ("system", "accelerators", "GBS", "runs", "minutes", "tokens/s/GPU", "between runs")
WIDTH = 160
_is_ours = json_with("disclaimer", "verdicts", "systems")


def verdicts(systems: Sequence[System], band: float = BAND) -> Iterator[dict[str, Any]]:
    """Yield the verdicts on tokens/s/GPU: each accelerator against the first, then machines of one accelerator.

    The systems of an accelerator count as its machines, and all verdicts are corrected together for their number.
    Raises MlperfLogError for a system with a single run, whose spread between runs is unknown.
    """
    pairs = list(_pairs(systems))
    estimates = [inference.estimate(_runs(a), _runs(b)) for _, a, _, b in pairs]
    for (a_name, a, b_name, b), estimate, p_value in zip(pairs, estimates, inference.adjusted(estimates), strict=True):
        word, reason = inference.decide(estimate, p_value, band)
        reasons = [reason]
        for place, why in estimate.sides_without_spread:
            reasons.append(f"{(a_name, b_name)[place]}: {why}")
        settings = f"{_setting(a)} against {_setting(b)}"
        reasons.append(f"{settings}, precision free: each submitter's best, not equal settings")
        for side in (a, b):
            reasons.append(inference.remark_on_machines(side[0].accelerator, _runs(side)))
        yield {
            "benchmark": b[0].benchmark,
            "a": a_name,
            "b": b_name,
            "verdict": word,
            "ratio": estimate.ratio,
            "interval": None if estimate.low is None else [estimate.low, estimate.high],
            "runs": list(estimate.runs),
            "machines": list(estimate.machines),
            "scope": estimate.scope,
            "reasons": list(filter(None, reasons)),
        }


def _pairs(systems: Sequence[System]) -> Iterator[tuple[str, list[System], str, list[System]]]:
    for of_benchmark in grouped(systems, attrgetter("benchmark")).values():
        sides = grouped(of_benchmark, attrgetter("accelerator"))
        # the first accelerator, in the order of the systems, is the one that others are compared with
        (base_name, base), *others = sides.items()
        for name, side in others:
            yield base_name, base, name, side
        for side in sides.values():
            for system in side[1:]:
                yield side[0].name, side[:1], system.name, [system]


def _setting(side: Sequence[System]) -> str:
    gpus = sorted({system.gpus for system in side})
    batches = sorted({system.global_batch_size for system in side})
    return f"{' or '.join(map(str, gpus))} GPUs with global batch {' or '.join(map(str, batches))}"


def _runs(side: Sequence[System]) -> list[inference.Run]:
    runs = []
    for system in side:
        if len(system.runs) < 2:
            raise MlperfLogError(f"{system.name}: got a single run, wanted two or more, since one has no spread")
        rates = map(system.tokens_per_second_per_gpu, system.runs)
        runs += [inference.Run(system.name, math.log(rate)) for rate in rates]
    return runs


@refusing((ForeignFileError, ResultError))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = MLPERF.parse_args(arguments)
    try:
        require_place(options.folder)
        if options.output:
            require_ours(_is_ours, options.output)
        systems = load(options.folder)
        entries = list(verdicts(systems, options.band))
    except MlperfLogError as error:
        print(f"error: {plain(error)}", file=sys.stderr)
        return 1 if options.folder.is_dir() else 2
    print(shown_on(sys.stdout, terminal([*_blocks(systems, entries), Lines([DISCLAIMER])], WIDTH)))
    if options.output:
        content = {"disclaimer": DISCLAIMER, "verdicts": entries, "systems": list(map(_as_json, systems))}
        write_json(content, options.output, is_ours=_is_ours)
    return 0


def _row(system: System) -> tuple[str, ...]:
    return (
        system.name,
        f"{system.gpus} x {system.accelerator}",
        str(system.global_batch_size),
        str(len(system.runs)),
        f"{system.minutes:.2f}",
        f"{system.throughput:,.0f}",
        f"{system.spread:.2%}",
    )


def _blocks(systems: Sequence[System], entries: Sequence[dict[str, Any]]) -> Iterator[Block]:
    """Yield the table of the systems, and a card for each verdict."""
    yield Table("Systems", COLUMNS, list(map(_row, systems)), 2)
    for entry in entries:
        interval = entry["interval"] or ()
        statement = f"{entry['b']} against {entry['a']}: {with_interval(entry['ratio'], *interval)}"
        if not interval:
            statement += " (no interval)"
        yield Card(entry["verdict"], statement, basis=f"holds for {entry['scope']}", support=entry["reasons"])


def _as_json(system: System) -> dict[str, Any]:
    runs = []
    for of_log in system.runs:
        figures = {
            "file": of_log.path.name,
            "minutes": of_log.minutes,
            "samples": of_log.samples,
            "block_seconds": of_log.block_seconds,
            "samples_per_second": of_log.samples_per_second,
            "tokens_per_second_per_gpu": system.tokens_per_second_per_gpu(of_log),
        }
        runs.append(figures)
    return {
        "name": system.name,
        "benchmark": system.benchmark,
        "accelerator": system.accelerator,
        "gpus": system.gpus,
        "global_batch_size": system.global_batch_size,
        "scaling": system.scaling,
        "minutes": system.minutes,
        "tokens_per_second_per_gpu": system.throughput,
        "runs": runs,
    }


if __name__ == "__main__":
    sys.exit(run(main))
