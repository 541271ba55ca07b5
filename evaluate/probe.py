"""Show the measured matrix-multiply rates and the results that each one applies to.

    python -m evaluate.probe output/ [more folders]

Prints every probe (written by `python -m train.probe`), then each result with its rate or the reason why it has none.
Needs no torch. Exits 0; 1 if a probe cannot be read; 2 for bad input.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from evaluate.metrics.measured_rate import NONE_MEASURED, UNIT, load_probes
from evaluate.report.tables import plain, refusing
from utils.arguments import Parser, first_line, run
from utils.results import store


@refusing(store.ResultError)
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = Parser(
        prog="python -m evaluate.probe",
        description=first_line(__doc__),
        epilog="Exits 0 if every probe was read; 1 if one cannot be read; 2 for bad input.",
    )
    parser.add_argument("folders", nargs="+", type=Path, help="folders to search for probes and results")
    options = parser.parse_args(arguments)
    for folder in options.folders:
        store.require_place(folder)
    probes = load_probes(options.folders)
    for probe in probes.found:
        rates = [f"{name} {rate.best_tflops:g} {UNIT}" for name, rate in probe.rates.items()]
        print(plain(f"{probe.path}: {probe.device_name} on {probe.host}: {', '.join(rates) or 'no rate'}"))
    if not probes.found:
        print(f"no probe found; {NONE_MEASURED}")
    for path in store.find(options.folders):
        try:
            result = store.read(path)
        except store.ResultError:
            continue  # evaluate.validate reports it
        rate = probes.rate_of(result)
        print("  " + plain(f"{path}: {'no measured rate: ' if rate.value is None else ''}{rate.how}"))
    for line in probes.errors:
        print(f"error: {plain(line)}", file=sys.stderr)
    return 1 if probes.errors else 0


if __name__ == "__main__":
    sys.exit(run(main))
