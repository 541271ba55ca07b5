"""Single faults in the modules that decide a verdict: the share of them that the tests catch.

    python -m benchmarks.mutants list
    python -m benchmarks.mutants run --checkout DIR --output FILE.json [--only WORD ...]

`list` draws about COUNT faults and writes benchmarks/mutants.json; those of the file that still can be planted stay,
with their reasons. It needs `pip install cosmic-ray==8.7.0`, whose
operators make them: another comparison, another number, `and` for `or`, a loop without a turn. They are inside
functions, and outside annotations, f-strings, assertions and `raise`, so that no fault is in the words of a message. A
module gets a share by the square root of the number of places in it.

`run` copies a checkout, plants one fault after the other in the copy, and starts the tests that belong to the module
with `pytest -x`. A fault is caught if a test fails, or if the tests take LIMIT times as long as without a fault; it is
gone if the module no longer has its lines, or has them twice. A table by module goes to stdout, and each outcome to
`--output`. Exits 1 if the tests fail without a fault, or if a fault survives for which benchmarks/mutants.json has no
`reason` why it changes nothing. Without other work on the machine it takes about half an hour.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import random
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
COUNT, SEED = 150, 24
FEWEST = 5
"""Faults of the smallest module."""
LIMIT, LEAST_SECONDS = 5.0, 60.0
"""Multiple of the time of the tests without a fault after which a run ends, and the least limit."""
CHECKS = ("test_validate.py", "test_faults_of_results.py", "test_faults_of_pairs.py")
MODULES: dict[str, tuple[str, ...]] = {
    "train/job/recorder.py": tuple(f"tests/train/job/test_{n}.py" for n in ("recorder", "report")),
    "utils/results/performance.py": ("tests/utils/results", "tests/evaluate/test_validate.py"),
    "evaluate/metrics/steady.py": ("tests/evaluate/metrics/test_steady.py", "tests/evaluate/metrics"),
    "evaluate/metrics/intervals.py": ("tests/evaluate/metrics/test_intervals.py", "tests/evaluate/verdict"),
    "evaluate/verdict/deciding.py": ("tests/evaluate/fairness/test_certificate.py", "tests/evaluate/verdict"),
    "evaluate/fairness/certificate.py": tuple(
        f"tests/evaluate/{name}" for name in ("fairness", "verdict/test_verdicts.py", "test_why.py", *CHECKS[1:])
    ),
    **dict.fromkeys(
        (f"evaluate/checks/{n}.py" for n in ("consistency", "limits", "board", "course", "clock")),
        tuple(f"tests/evaluate/{name}" for name in CHECKS),
    ),
    "train/common/weights.py": ("tests/train/common/test_weights.py",),
    "train/common/adamw.py": ("tests/train/common/test_adamw.py",),
    "utils/settings/layers.py": ("tests/utils/settings",),
    "utils/settings/config.py": ("tests/utils/settings",),
    "data/encoding/join.py": ("tests/data/test_encode.py", "tests/data/encoding/test_resuming.py"),
    "train/mega/weights.py": ("tests/train/common/test_weights.py", "tests/train/test_parity.py"),
}
"""The modules, each with the tests that mirror it, the fastest first; only some files of a slow folder."""
NOT_DRAWN = (
    *("_Is", "_IsNot", "_Invert", "_Pow", "_LShift", "_RShift", "_BitAnd", "_BitOr", "_BitXor"),
    *("Decorator", "VariableInserter", "VariableReplacer"),
)
"""Ends of the names of operators that mostly end in a TypeError, which any test finds; the last two take arguments."""
SILENT = (ast.JoinedStr, ast.Raise, ast.Assert)

Fault = dict[str, Any]
"""`module`, `line`, `before` and `after` (whole lines), `operator` of cosmic-ray, `tests`; added by hand and by `run`:
`caught_before`, `reason`, `outcome`, `seconds`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the faults, or plant them and return 1 where one survives that should not."""
    parser = Parser(
        prog="python -m benchmarks.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("list", "run"), help="draw the faults, or plant them")
    parser.add_argument("--checkout", type=Path, default=Path(), help="run: checkout to test (default: this folder)")
    parser.add_argument("--output", type=Path, default=Path("mutants-outcomes.json"), help="run: file of the outcomes")
    parser.add_argument("--only", nargs="*", default=[""], help="run: parts of the names of the modules to take")
    options = parser.parse_args(argv)
    return _list() if options.command == "list" else _run(options)


def places(source: str) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """Return operator and occurrence of each fault of a source, by line and column."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    nodes = list(ast.walk(ast.parse(source)))
    inside = [(one.body[0], one.body[-1]) for one in nodes if isinstance(one, ast.FunctionDef)]
    outside = [(one, one) for one in nodes if isinstance(one, SILENT)]
    annotated = [one.annotation for one in nodes if isinstance(one, (ast.AnnAssign, ast.arg)) and one.annotation]
    outside += zip(annotated, annotated, strict=True)

    def is_in(spans: Sequence[tuple[Any, Any]], place: tuple[int, int]) -> bool:
        return any((a.lineno, a.col_offset) <= place < (b.end_lineno, b.end_col_offset) for a, b in spans)

    tree, found = get_ast(source), {}
    for name in sorted(one for one in plugins.operator_names() if not one.endswith(NOT_DRAWN)):
        operator = plugins.get_operator(name)()
        starts = [start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node)]
        for occurrence, start in enumerate(starts):
            if is_in(inside, start) and not is_in(outside, start):
                found.setdefault(start, []).append((name, occurrence))
    return found


def plant(source: str, fault: Fault) -> str | None:
    """Return the source with a fault planted; None if it does not have the fault's lines exactly once."""
    before, after = f"\n{fault['before']}\n", f"\n{fault['after']}\n"
    return source.replace(before, after) if source.count(before) == 1 else None


def _list() -> int:
    numbers, root = random.Random(SEED), FAULTS.parents[1]
    sources = {module: (root / module).read_text(encoding="utf8") for module in MODULES}
    found = {module: places(source) for module, source in sources.items()}
    share = COUNT / sum(math.sqrt(len(one)) for one in found.values())
    earlier: list[Fault] = json.loads(FAULTS.read_text(encoding="utf8"))["mutants"]
    faults: list[Fault] = []
    for module, source in sources.items():
        kept = [one for one in earlier if one["module"] == module and plant(source, one) is not None]
        count = max(FEWEST, round(share * math.sqrt(len(found[module])))) - len(kept)
        for place in sorted(numbers.sample(sorted(found[module]), max(0, count))):
            fault = _fault(source, *numbers.choice(found[module][place]))
            is_new = all(fault["after"] != one["after"] for one in kept)
            if is_new and plant(source, fault) is not None:
                kept.append({"module": module, "tests": MODULES[module], "line": place[0], **fault})
        faults += kept
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True, text=True).stdout
    text = {"seed": SEED, "made_at_commit": commit.strip(), "mutants": faults}
    FAULTS.write_text(json.dumps(text, indent=1) + "\n", encoding="utf8")
    return 0


def _fault(source: str, operator: str, occurrence: int) -> Fault:
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    old, new = source.splitlines(), mutate_code(source, plugins.get_operator(operator)(), occurrence).splitlines()
    first = next(place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    last = next(place for place, (a, b) in enumerate(zip(old[::-1], new[::-1], strict=False)) if a != b)
    before, after = ("\n".join(lines[first : len(lines) - last]) for lines in (old, new))
    return {"before": before, "after": after, "operator": operator.removeprefix("core/")}


def _run(options: argparse.Namespace) -> int:
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
