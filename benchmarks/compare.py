"""Time of the command `evaluate.compare` over many results, with all four outputs, from start to exit.

    python -m benchmarks.compare [--results 1000] [--steps 500] [--repetitions 5]

The results are generated from a seed: two vendors, two models, two frameworks, several machines and runs, and noise
that is correlated from step to step. After each run of the command, a peer is measured that does the least any
comparison must do: `json.load` of every file in one process, with the standard library. So the ratio of the two is
valid on a shared machine too. CPU time is that of all processes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import numpy as np

from benchmarks.measure import MEGABYTE, cost_of, machine, spread
from tests.support import sides
from utils.arguments import Parser, first_line, from_one, run
from utils.results import store

MODELS, FRAMEWORKS, MACHINES = ("llama", "qwen"), ("mega", "hf"), 5
STEP_SECONDS = {"nvd": 1.0, "amd": 1.05}
PEER = (
    "import json, pathlib, sys; print(sum(len(json.load(open(p))) for p in pathlib.Path(sys.argv[1]).rglob('*.json')))"
)
OPTIONS: dict[str, dict[str, Any]] = {
    "--results": {"type": from_one, "default": 1000, "help": "number of results (default: %(default)s)"},
    "--steps": {"type": from_one, "default": 500, "help": "steps of each result (default: %(default)s)"},
    "--repetitions": {"type": from_one, "default": 5, "help": "runs of command and peer (default: %(default)s)"},
    "--seed": {"type": int, "default": 0, "help": "seed of the generated results (default: %(default)s)"},
    "rest": {"nargs": "*", "help": "options for compare, after --"},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the costs; return 1 if a command fails."""
    parser = Parser(OPTIONS, prog="python -m benchmarks.compare", description=first_line(__doc__))
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="tprimat-compare-") as name:
        folder = Path(name) / "results"
        size = write(folder, options.results, options.steps, options.seed)
        print(f"{machine()}; load average {os.getloadavg()[0]:.1f}")
        print(f"{options.results} results of {options.steps} steps, {size / MEGABYTE:.1f} MB, seed {options.seed}")
        command = [sys.executable, "-m", "evaluate.compare", str(folder), "--output", f"{name}/out", *options.rest]
        peer = [sys.executable, "-c", PEER, str(folder)]
        ours, theirs = [], []
        for _ in range(options.repetitions):
            ours.append(cost_of(command, stdout=DEVNULL, stderr=DEVNULL))
            # in turn, so that other work on the machine hits both alike
            theirs.append(cost_of(peer, stdout=DEVNULL, stderr=DEVNULL))
    for title, costs in (("compare", ours), ("json.load of all files", theirs)):
        print(f"{title}: {spread([cost.wall for cost in costs], 2)} s, {spread([cost.cpu for cost in costs], 2)} s CPU")
    ratios = [own.cpu / other.cpu for own, other in zip(ours, theirs, strict=True)]
    print(f"ratio of the CPU times: {spread(ratios, 2)}")
    has_failed = any(cost.code != 0 for cost in [*ours, *theirs])
    return int(has_failed)


def write(folder: Path, count: int, steps: int, seed: int) -> int:
    """Write `count` ok and valid results below `folder`; return their size in bytes."""
    random = np.random.default_rng(seed)
    size = 0
    jobs = product(range(1, count + 1), range(MACHINES), STEP_SECONDS, MODELS, FRAMEWORKS)
    for number, host, vendor, model, framework in islice(jobs, count):
        noise = random.normal(0, 0.004, steps + 1)
        # neighbouring steps share what slows them down
        correlated = noise[1:] + 0.5 * noise[:-1]
        times = STEP_SECONDS[vendor] * (1 + random.normal(0, 0.003)) * np.exp(correlated)
        times[:3] *= (8.0, 1.5, 1.2)  # compilation
        losses = 3 + 7 * 0.98 ** np.arange(steps) + random.normal(0, 0.01, steps)
        samples = {
            "steps": list(range(1, steps + 1)),
            "step_times": times.round(6).tolist(),
            "loss_values": losses.round(6).tolist(),
            "grad_norms": random.lognormal(0, 0.3, steps).round(6).tolist(),
            "data_wait_seconds": [0.0] * steps,
        }
        changes = samples | sides.both(max_steps=steps) | {"model": model, "framework": framework}
        result = sides.run(vendor, number, host=f"{vendor}-{host}", **changes)
        path = folder / vendor / f"machine{host}" / store.result_name(vendor, framework, model, number)
        store.write(result, path)
        size += path.stat().st_size
    return size


if __name__ == "__main__":
    sys.exit(run(main))
