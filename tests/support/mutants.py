"""Single faults in the modules that decide a verdict: the share of them that the tests catch.

    python -m tests.support.mutants --checkout DIR --output FILE.json [--only WORD ...]

tests/support/mutants.json holds the faults. They were drawn once at random with the operators of cosmic-ray 8.7.0:
another comparison, another number, `and` for `or`, a loop without a turn. They are inside functions, and outside
annotations, f-strings, assertions and `raise`, so that no fault is in the words of a message. A module has a share by
the square root of the number of places in it.

It copies a checkout, plants one fault after the other in the copy, and starts the tests that belong to the module
with `pytest -x`. A fault is caught if a test fails, or if the tests take LIMIT times as long as without a fault; it is
gone if the module no longer has its lines, or has them twice. A table by module goes to stdout, and each outcome to
`--output`. Exits 1 if the tests fail without a fault, or if a fault survives for which mutants.json has no `reason`
why it changes nothing. Without other work on the machine it takes about half an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from utils.arguments import Parser, run

FAULTS = Path(__file__).with_name("mutants.json")
LIMIT, LEAST_SECONDS = 5.0, 60.0
"""Multiple of the time of the tests without a fault after which a run ends, and the least limit."""

Fault = dict[str, Any]
"""`module`, `line`, `before` and `after` (whole lines), `operator` of cosmic-ray, `tests`; added by hand or on running:
`caught_before`, `reason`, `outcome`, `seconds`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Plant the faults; return 1 where one survives that should not."""
    parser = Parser(
        prog="python -m tests.support.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--checkout", type=Path, default=Path(), help="checkout to test (default: this folder)")
    parser.add_argument("--output", type=Path, default=Path("mutants-outcomes.json"), help="file of the outcomes")
    parser.add_argument("--only", nargs="*", default=[""], help="parts of the names of the modules to take")
    options = parser.parse_args(argv)
    faults: list[Fault] = json.loads(FAULTS.read_text(encoding="utf8"))["mutants"]
    faults = [one for one in faults if any(word in one["module"] for word in options.only)]
    usual: dict[tuple[str, ...], float] = {}
    with tempfile.TemporaryDirectory(prefix="tprimat-mutants-") as folder:
        copy = Path(folder, "checkout")
        left_out = shutil.ignore_patterns(".venv*", "__pycache__", ".*_cache", ".hypothesis")
        shutil.copytree(options.checkout, copy, symlinks=True, ignore=left_out)
        for path in options.checkout.glob(".venv*"):
            (copy / path.name).symlink_to(path.resolve())
        for fault in tqdm(faults, "mutants", disable=None):
            tests = tuple(one for one in fault["tests"] if (copy / one).exists())
            if tests not in usual:
                is_caught, usual[tests] = _tested(copy, tests, 0)
                if is_caught or not tests:
                    print(f"error: {' '.join(fault['tests'])}: they fail without a fault, or are gone", file=sys.stderr)
                    return 1
            path, outcome, seconds = copy / fault["module"], "gone", 0.0
            source = path.read_text(encoding="utf8") if path.exists() else ""
            planted = plant(source, fault)
            if planted is not None:
                path.write_text(planted, encoding="utf8")
                is_caught, seconds = _tested(copy, tests, max(LEAST_SECONDS, LIMIT * usual[tests]))
                path.write_text(source, encoding="utf8")
                outcome = "caught" if is_caught else "survived"
            fault |= {"outcome": outcome, "seconds": round(seconds, 1)}
            options.output.write_text(json.dumps(faults, indent=1) + "\n", encoding="utf8")
    return _table(faults)


def plant(source: str, fault: Fault) -> str | None:
    """Return the source with a fault planted; None if it does not have the fault's lines exactly once."""
    before, after = f"\n{fault['before']}\n", f"\n{fault['after']}\n"
    return source.replace(before, after) if source.count(before) == 1 else None


def _tested(copy: Path, tests: Sequence[str], limit: float) -> tuple[bool, float]:
    """Return whether the tests fail or last longer than `limit` seconds, and how long they lasted; 0 is no limit."""
    settings = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(copy.parent)}
    command = ["timeout", "--signal=KILL", f"{limit:.0f}", sys.executable, "-m", "pytest", "-x", "-q", "-n", "0"]
    started = time.monotonic()
    ended = subprocess.run(
        [*command, "-p", "no:cacheprovider", *tests], cwd=copy, env=os.environ | settings, stdout=subprocess.DEVNULL
    )
    return ended.returncode != 0, time.monotonic() - started


def _table(faults: Sequence[Fault]) -> int:
    holes = [one for one in faults if one["outcome"] == "survived" and "reason" not in one]
    print(f"{'module':36} planted   caught survived     gone  changes nothing")
    for module in (*dict.fromkeys(one["module"] for one in faults), "all"):
        ours = [one for one in faults if module in (one["module"], "all")]
        counts = Counter(one["outcome"] for one in ours)
        known = counts["survived"] - sum(one in holes for one in ours)
        print(
            f"{module:36}{len(ours):8}" + "".join(f"{counts[name]:9}" for name in ("caught", "survived", "gone")), known
        )
    for one in holes:
        print(f"{one['module']}:{one['line']}: survived\n-{one['before']}\n+{one['after']}")
    return int(bool(holes))


if __name__ == "__main__":
    sys.exit(run(main))
