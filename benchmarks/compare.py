"""Time and memory of the command `evaluate.compare` over many results, with all four outputs, from start to exit.

    python -m benchmarks.compare [--results 1000] [--steps 500] [--repetitions 5]

The results are generated from a seed: two vendors, two models, two frameworks, several machines and runs, and noise
that is correlated from step to step. After each run of the command, a peer is measured that does the least any
comparison must do: `json.load` of every file in one process, with the standard library. So the ratio of the two is
valid on a shared machine too. CPU time is that of all processes; peak memory is the sum over processes alive together.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import columns, cost_of, machine
from tests.support.example import example_result
from tests.support.sides import make_consistent
from utils.arguments import Parser, first_line, from_one, run
from utils.results import store

PLATFORMS = {
    "nvd": {"device_name": "NVIDIA H100 80GB HBM3", "total_memory_gb": 85.0, "gpu_cores": 16896},
    "amd": {"device_name": "AMD Instinct MI300X", "total_memory_gb": 206.0, "gpu_cores": 19456},
}
MODELS, FRAMEWORKS, MACHINES = ("llama", "qwen"), ("mega", "hf"), 5
STEP_SECONDS = {"nvd": 1.0, "amd": 1.05}
CONFIG = {"num_gpus": 8, "global_batch_size": 64, "micro_batch_size": 1, "dp": 8, "precision": "bf16"}
PEER = (
    "import json, pathlib, sys; print(sum(len(json.load(open(p))) for p in pathlib.Path(sys.argv[1]).rglob('*.json')))"
)
SAMPLE_SECONDS = 0.02
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


OPTIONS: dict[str, dict[str, Any]] = {
    "--results": {"type": from_one, "default": 1000, "help": "number of results (default: %(default)s)"},
    "--steps": {"type": from_one, "default": 500, "help": "steps of each result (default: %(default)s)"},
    "--repetitions": {
        "type": from_one,
        "default": 5,
        "help": "runs of the command and of the peer (default: %(default)s)",
    },
    "--seed": {"type": int, "default": 0, "help": "seed of the generated results (default: %(default)s)"},
    "rest": {"nargs": "*", "help": "options for compare, after --"},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print the table; return 1 if a command fails."""
    parser = Parser(OPTIONS, prog="python -m benchmarks.compare", description=first_line(__doc__))
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="tprimat-compare-") as name:
        folder = Path(name) / "results"
        size = write(folder, options.results, options.steps, options.seed)
        print(machine())
        print(f"{options.results} results of {options.steps} steps, {size / 1e6:.1f} MB, seed {options.seed}")
        command = [sys.executable, "-m", "evaluate.compare", str(folder), "--output", f"{name}/out", *options.rest]
        peer = [sys.executable, "-c", PEER, str(folder)]
        pairs = []
        for _ in range(options.repetitions):
            ours, theirs = (cost_of(one, SAMPLE_SECONDS, **SILENT) for one in (command, peer))
            pairs.append((ours, theirs))
            print(f"compare {ours}\npeer    {theirs}\nload {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        if any(one.code != 0 for pair in pairs for one in pair):
            return 1
        print(f"{'':28}{'median':>8}{'min':>8}{'max':>8}")
        for title, side in (("compare", 0), ("json.load of all files", 1)):
            runs = [pair[side] for pair in pairs]
            for unit, field in (("s", "wall"), ("s CPU", "cpu"), ("MB", "peak_mb")):
                print(f"{f'{title}, {unit}':28}{columns([getattr(one, field) for one in runs], 8, 2)}")
        ratios = [ours.cpu / theirs.cpu for ours, theirs in pairs]
        print(f"{'ratio of the CPU times':28}{columns(ratios, 8, 2)}")
    return 0


def write(folder: Path, count: int, steps: int, seed: int) -> int:
    """Write `count` ok and valid results below `folder`; return their size in bytes."""
    random = np.random.default_rng(seed)
    size = 0
    jobs = product(range(1, count + 1), range(MACHINES), PLATFORMS, MODELS, FRAMEWORKS)
    for number, host, vendor, model, framework in islice(jobs, count):
        result = _result(random, steps, vendor, model, framework, host, number)
        path = folder / vendor / f"machine{host}" / store.result_name(vendor, framework, model, number)
        store.write(result, path)
        size += path.stat().st_size
    return size


def _result(
    random: np.random.Generator, steps: int, vendor: str, model: str, framework: str, host: int, number: int
) -> dict[str, Any]:
    result = example_result(platform=vendor, model=model, framework=framework, run=number)
    for section in ("training_config", "resolved_config"):
        result[section] |= CONFIG | {"max_steps": steps}
    stack = {"nvd": "cuda", "amd": "rocm"}[vendor]
    result["gpu_info"] |= PLATFORMS[vendor] | {"device_count": CONFIG["num_gpus"], "software_stack": stack}
    result["provenance"]["host"] = f"{vendor}-{host}"
    noise = random.normal(0, 0.004, steps)
    for step in range(1, steps):
        noise[step] += 0.5 * noise[step - 1]
    effect = STEP_SECONDS[vendor] * (1 + random.normal(0, 0.003))
    times = effect * np.exp(noise)
    times[:3] *= (8.0, 1.5, 1.2)
    result["steps"] = list(range(1, steps + 1))
    result["step_times"] = [float(f"{value:.6g}") for value in times]
    result["loss_values"] = [float(f"{3 + 7 * 0.98**step + random.normal(0, 0.01):.9g}") for step in range(steps)]
    result["grad_norms"] = [float(f"{value:.9g}") for value in random.lognormal(0, 0.3, steps)]
    result["data_wait_seconds"] = [0.0] * steps
    make_consistent(result)
    return result


if __name__ == "__main__":
    sys.exit(run(main))
