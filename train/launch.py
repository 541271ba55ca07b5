"""Start one job: check everything first, run torchrun with its log kept, and see that a result is left behind.

Called by train/train_<platform>_<framework>_<model>.sh. Exits 0 for an ok result (also one that was there already),
2 for bad input before anything was started, otherwise with torchrun's exit code, never 0.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from utils import results
from utils.combinations import AVAILABLE_FRAMEWORKS
from utils.configure import PLATFORMS, ROOT, ConfigError, load, require_writable
from utils.dataset import check_epochs, data_prefix, describe
from utils.hardware import HardwareError, visible_gpus
from utils.indexed import DataError
from utils.job import Job, utc_now
from utils.models import NAMES as MODELS

LAST_LOG_LINES = 12
KNOWN_WARNINGS = (
    # what is not installed stands in resolved_config and framework_versions of the result
    "Transformer Engine and Apex are not installed",
    "Apex is not installed",
    # of megatron-core 0.16.1 about its own defaults and calls
    "full scope is deprecated",
    "`torch.distributed",
    "The .grad attribute of a Tensor that is not a leaf",
)
"""First words of library warnings that say nothing about a run."""


def main() -> int:
    """Run the job named on the command line."""
    options = _arguments()
    try:
        job, identity = _plan(options)
    except (ConfigError, DataError, HardwareError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if not job.config.force and _has_result(job, identity):
        print(f"{job.name}: has an ok result of the same settings, data, code and machine; FORCE=1 runs it again")
        return 0
    attempt = results.set_aside(job.result_path)
    job = Job(job.config, job.framework, job.model, job.run, attempt)
    started = utc_now()
    command = _command(job, options.settings)
    exit_code, last_lines = _run(command, _log_path(job))
    return _account(job, identity, shlex.join(command), started, exit_code, last_lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m train.launch", description=__doc__)
    parser.add_argument("--platform", required=True, choices=PLATFORMS)
    parser.add_argument("--framework", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--run", type=int, default=1, help="number of the run, from 1 (default: %(default)s)")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    return parser.parse_args()


def _plan(options: argparse.Namespace) -> tuple[Job, str]:
    for key, name, known in (("framework", options.framework, AVAILABLE_FRAMEWORKS), ("model", options.model, MODELS)):
        if name not in known:
            raise ConfigError(f"{key}: got {name!r}, allowed: {', '.join(known)}")
    settings = [*options.settings, f"FRAMEWORK={options.framework}", f"MODEL={options.model}"]
    config = load(options.platform, visible_gpus(options.platform), arguments=settings)
    require_writable(config.results_dir, "OUTPUT_DIR")
    require_writable(config.output_dir / "logs", "OUTPUT_DIR")
    manifest = describe(data_prefix(config))
    check_epochs(config, manifest["tokens"])
    job = Job(config, options.framework, options.model, options.run)
    return job, job.identity(manifest["bin_sha256"])


def _has_result(job: Job, identity: str) -> bool:
    try:
        result = results.read(job.result_path)
    except results.ResultError:
        return False
    return bool(result["status"] == "ok" and result["identity_sha256"] == identity)


def _command(job: Job, settings: Sequence[str]) -> list[str]:
    """torchrun with a rendezvous of its own on a free port, so that jobs beside one another do not collide."""
    module = f"train.train_{job.framework}"
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(job.config.num_gpus), "-m", module),
        *("--platform", job.config.platform, "--model", job.model),
        *("--run-number", str(job.run), "--attempt", str(job.attempt), *settings),
    ]


def _log_path(job: Job) -> Path:
    label = f"{job.config.label}_" if job.config.label else ""
    return job.config.output_dir / "logs" / f"{label}{job.name}_attempt{job.attempt}.log"


def _run(command: Sequence[str], log_path: Path) -> tuple[int, list[str]]:
    """Run the command, its output on the terminal and in the log; return its exit code and last lines."""
    last_lines: deque[str] = deque(maxlen=LAST_LOG_LINES)
    environment = _environment(_ranks(command))
    with log_path.open("w", encoding="utf8") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            log.flush()
            sys.stdout.write(line)
            sys.stdout.flush()
            last_lines.append(line.rstrip())
    return process.wait(), list(last_lines)


def _environment(ranks: int) -> dict[str, str]:
    """Return the user's environment, and what it leaves open: the cores shared out over the ranks, no known warning."""
    ours = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // ranks)),
        "PYTHONWARNINGS": ",".join(f"ignore:{words}" for words in KNOWN_WARNINGS),
    }
    return ours | dict(os.environ)


def _ranks(command: Sequence[str]) -> int:
    return int(command[command.index("--nproc-per-node") + 1])


def _account(job: Job, identity: str, command: str, started: str, exit_code: int, last_lines: Sequence[str]) -> int:
    """Make sure that a result stands, whatever the trainer could still write, and return the job's exit code."""
    if not job.result_path.exists():
        how = f"ended by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        reason = f"the trainer left no result ({how}); last lines of its log:\n" + "\n".join(last_lines)
        results.write(job.empty_result("failed", reason, identity, command, started), job.result_path, replace=False)
    result = results.read(job.result_path)
    if result["status"] == "ok" and exit_code == 0:
        return 0
    if result["status"] == "ok":
        return exit_code
    print(f"{job.name}: {result['status']}: {result['reason']}", file=sys.stderr)
    return exit_code if exit_code > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
