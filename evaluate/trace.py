"""Divide the time of a training step by kind, from one trace of torch.profiler or from two side by side.

Usage:   ./shell/trace.sh TRACE.json[.gz] [TRACE] [OPTION ...]
Reads:   the traces; probes named by --probe
Writes:  trace.{html,json} into the folder of --output, if it is given
Exits:   0; 1 an output cannot be written; 2 bad input, such as a file that is no trace
Example: ./shell/trace.sh nvidia.json.gz amd.json.gz --output report

Shows the seconds of matrix products, attention, memory-bound operators, optimizer, exposed communication, copies and
idle time (they sum to the step), and the operators with shapes and rates. Of two traces the operators are aligned by
kind and shape, with the difference in milliseconds a step.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evaluate.command_lines import TRACE

if __name__ == "__main__":
    TRACE.parse_first()

from evaluate.report import trace_blocks
from evaluate.report.blocks import LIST, Block, Heading, Lines
from evaluate.report.panels import MS
from evaluate.report.renderers import html_titled, terminal
from evaluate.report.tables import plain
from evaluate.timing import breakdown, ceiling
from evaluate.timing.breakdown import Breakdown
from evaluate.timing.ceiling import Aligned, align
from evaluate.timing.kinds import KINDS, OVERLAPPED, UNATTRIBUTED
from evaluate.timing.stream import TraceError
from evaluate.timing.tables import OperatorRow
from utils.arguments import refusing, run
from utils.errors import UnusableError
from utils.files import written_whole
from utils.own_files import json_with, require_apart, require_ours
from utils.results import probe_file
from utils.results.probe_file import Probe, ProbeError

WIDTH = 160
HTML, JSON = "trace.html", "trace.json"
RECOGNISERS = {HTML: html_titled(trace_blocks.TITLE), JSON: json_with("trace_version")}
"""Recogniser of each file by its name: only a file that it recognises is replaced."""


@refusing((TraceError, ProbeError, UnusableError))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = TRACE.parse_args(arguments)
    if len(options.traces) > 2:
        raise TraceError(f"got {len(options.traces)} traces, wanted one, or two to compare")
    probes = [probe_file.read(path) for path in options.probe]
    if options.output:
        # a trace must not be replaced by its own report
        require_apart([options.output / name for name in RECOGNISERS], [*options.traces, *options.probe])
        for name, is_ours in RECOGNISERS.items():
            require_ours(is_ours, options.output / name)
    sides = [breakdown.of_file(path, wanted=options.steps, device=options.device) for path in options.traces]
    return _show(options, sides, [_probe(side, probes) for side in sides])


def _show(options: argparse.Namespace, sides: list[Breakdown], probes: list[Probe | None]) -> int:
    """Write and print the report; return the exit code. Raises UnusableError for an output that is not ours."""
    file = JSON if options.output else ""
    if len(sides) == 2:
        aligned = align(sides[0], sides[1])
        content = of_pair((sides[0], sides[1]), (probes[0], probes[1]), aligned)
        found = trace_blocks.pair(sides, probes, aligned, options.top, file)
    else:
        content = of_side(sides[0], probes[0])
        found = trace_blocks.one(sides[0], probes[0], options.top, file)
    if options.output:
        try:
            _write(options.output, found, content)
        except OSError as error:
            print(f"error: {plain(error)}", file=sys.stderr)
            return 1
        print(f"written: {options.output / HTML}, {options.output / JSON}", file=sys.stderr)
    print(json.dumps(content, indent=1) if options.format == "json" else terminal(found, WIDTH))
    return 0


def _write(folder: Path, found: Sequence[Block], content: dict[str, Any]) -> None:
    """Write trace.html and trace.json; raise UnusableError or OSError, and then nothing is written."""
    # which loads matplotlib
    from evaluate.report.page import page

    paths = [folder / name for name in RECOGNISERS]
    method: list[Block] = [Heading("Method", 2, "method"), Lines(trace_blocks.METHOD, LIST)]
    with written_whole(*paths, is_ours=lambda path: RECOGNISERS[path.name](path)) as (html, data):
        html.write_text(page(trace_blocks.TITLE, [*found, *method]), encoding="utf8")
        data.write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")


def _probe(side: Breakdown, probes: Sequence[Probe]) -> Probe | None:
    found, reason = ceiling.probe_of(side, probes)
    if reason:
        print(f"warning: {plain(side.path)}: no share of a probe's rate: {plain(reason)}", file=sys.stderr)
    return found


# The JSON of `python -m evaluate.trace`.

VERSION = 1


def of_side(side: Breakdown, probe: Probe | None = None) -> dict[str, Any]:
    """Return one trace: times in seconds a step, counts a step."""
    return {
        "trace_version": VERSION,
        "file": str(side.path),
        "steps": list(side.steps),
        "device": side.device,
        "device_name": side.device_name,
        "step_seconds": side.step_seconds,
        "kinds": dict(side.kinds),
        OVERLAPPED: side.overlapped,
        "unattributed_percent": {
            "of_step": 100 * side.share(UNATTRIBUTED),
            "of_kernel_time": 100 * side.unattributed_of_kernels,
        },
        "phases": dict(side.phases),
        "communication_groups": [asdict(row) for row in side.groups],
        "kernels": [asdict(row) for row in side.kernels],
        "operators": [_operator(row, probe) for row in side.operators],
        "remarks": list(side.remarks),
    }


def _operator(row: OperatorRow, probe: Probe | None) -> dict[str, Any]:
    return {
        "name": row.name,
        "kind": row.kind,
        "phase": row.phase,
        "operator": row.work.family,
        "shapes": row.work.sizes,
        "precision": row.work.precision,
        "count": row.count,
        "seconds": row.seconds,
        "flops": row.work.flops,
        "tflops": row.tflops,
        "share_of_probe": ceiling.share(row, probe),
        "kernel": row.kernel or None,
    }


def of_pair(
    sides: tuple[Breakdown, Breakdown], probes: tuple[Probe | None, Probe | None], aligned: list[Aligned]
) -> dict[str, Any]:
    """Return two traces and their differences, the second less the first, in milliseconds a step."""
    a, b = sides
    return {
        "trace_version": VERSION,
        "a": of_side(a, probes[0]),
        "b": of_side(b, probes[1]),
        "difference_ms": (b.step_seconds - a.step_seconds) * MS,
        "kinds_difference_ms": {kind: (b.kinds[kind] - a.kinds[kind]) * MS for kind in KINDS},
        "operators": list(map(_aligned, aligned)),
    }


def _aligned(operator: Aligned) -> dict[str, Any]:
    a, b = operator.a, operator.b
    return {
        "kind": operator.kind,
        "phase": operator.phase,
        "operator": operator.family,
        "shapes": operator.sizes,
        "a_ms": None if a is None else a.seconds * MS,
        "b_ms": None if b is None else b.seconds * MS,
        "difference_ms": operator.difference_seconds * MS,
    }


if __name__ == "__main__":
    sys.exit(run(main))
