"""Start one job: check everything first, run its ranks under the watchdog, and see that a true result is left behind.

Called by train/train_<platform>_<framework>_<model>.sh. Exits 0 for an ok result (also one that was there already),
2 for bad input before anything was started, 124 after a timeout, 128 + signal when it was interrupted, otherwise with
torchrun's exit code, never 0.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from train import nemo_python, preflight_job, prim_install, prim_plan
from train.account import Attempt, settle
from train.plan import has_result
from train.supervise import Limits, run
from utils import footprint, frameworks, owned, processes, results
from utils.combinations import AVAILABLE_FRAMEWORKS
from utils.configure import PLATFORMS, ConfigError, load, require_writable
from utils.dataset import check_epochs, data_prefix, describe
from utils.hardware import HardwareError, visible_gpus
from utils.indexed import DataError
from utils.job import Job, utc_now
from utils.models import NAMES as MODELS
from utils.reserve import remove_leftovers, reserve

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
    if not job.config.force and has_result(job, identity):
        print(f"{job.name}: has an ok result of the same settings, data, code and machine; FORCE=1 runs it again")
        return 0
    try:
        seen = preflight_job.before(job.config)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with processes.stop_request() as stop:
        try:
            attempt = _begin(job, identity, options.settings)
        except (footprint.FootprintError, OSError) as error:
            print(f"error: {job.result_path.parent}: {error}; make room or name another OUTPUT_DIR", file=sys.stderr)
            return 2
        command = shlex.split(attempt.command)
        limits = Limits(job.config.start_timeout_seconds, job.config.step_timeout_seconds)
        ending = run(command, _environment(job), log_path(attempt.job), limits, stop)
        code = settle(attempt, ending)
        preflight_job.record(job.result_path, job.config, *seen, is_interrupted=bool(stop))
        return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m train.launch", description=__doc__)
    parser.add_argument("--platform", required=True, choices=PLATFORMS)
    parser.add_argument("--framework", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--run", type=int, default=1, help="number of the run, from 1 (default: %(default)s)")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    return parser.parse_intermixed_args()


def _plan(options: argparse.Namespace) -> tuple[Job, str]:
    for key, name, known in (("framework", options.framework, AVAILABLE_FRAMEWORKS), ("model", options.model, MODELS)):
        if name not in known:
            raise ConfigError(f"{key}: got {name!r}, allowed: {', '.join(known)}")
    settings = [*options.settings, f"FRAMEWORK={options.framework}", f"MODEL={options.model}"]
    config = load(options.platform, visible_gpus(options.platform), arguments=settings)
    require_writable(config.results_dir, "OUTPUT_DIR")
    require_writable(config.output_dir / "logs", "OUTPUT_DIR")
    manifest = describe(data_prefix(config, options.model))
    check_epochs(config, manifest["tokens"])
    job = Job(config, options.framework, options.model, options.run)
    if job.framework == "prim":
        prim_plan.make(job, prim_install.DEFAULT_GPU, log_path(job))
    _python(job)  # before anything is started
    return job, job.identity(manifest["bin_sha256"])


def _begin(job: Job, identity: str, settings: Sequence[str]) -> Attempt:
    """Make way for the result: keep an earlier one under its attempt's number, and take room on the disk."""
    footprint.mark(job.config.output_dir, footprint.OUTPUT)
    remove_leftovers(job.result_path)
    reserve(job.result_path)
    number = results.set_aside(job.result_path)
    job = job.numbered(number)
    while log_path(job).exists():  # of an attempt that was killed together with its launcher
        job = job.numbered(job.attempt + 1)
    return Attempt(job, identity, shlex.join(_command(job, settings)), utc_now())


def _command(job: Job, settings: Sequence[str]) -> list[str]:
    """torchrun with a rendezvous of its own on a free port, so that jobs beside one another do not collide.

    Primus is started once: it starts its ranks itself.
    """
    ranks = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(job.config.num_gpus), "-m")
    return [
        *(_python(job), "-m", *(() if job.framework == "prim" else ranks), f"train.train_{job.framework}"),
        *("--platform", job.config.platform, "--model", job.model),
        *("--run-number", str(job.run), "--attempt", str(job.attempt), *settings),
    ]


def _python(job: Job) -> str:
    """NeMo has a Python of its own, made here where it is missing; raises ConfigError where it cannot be."""
    return nemo_python.interpreter(job.config.platform) if job.framework == "nemo" else sys.executable


def log_path(job: Job) -> Path:
    """Return where the output of an attempt is kept."""
    label = f"{job.config.label}_" if job.config.label else ""
    return job.config.output_dir / "logs" / f"{label}{job.name}_attempt{job.attempt}.log"


def _environment(job: Job) -> dict[str, str]:
    """Return the user's environment, and what it leaves open: the variables of the settings map, the cores shared out
    over the ranks, no known warning.
    """
    ours = {
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // job.config.num_gpus)),
        "PYTHONFAULTHANDLER": "1",  # the stack of a rank that crashes is in its log
        "PYTHONWARNINGS": ",".join(f"ignore:{words}" for words in KNOWN_WARNINGS),
    }
    marked = {owned.MARKER: owned.marker(job.name)}
    return ours | frameworks.environment(job.framework, job.config, job.spec) | dict(os.environ) | marked


if __name__ == "__main__":
    sys.exit(main())
