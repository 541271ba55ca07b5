"""One job by Primus: the YAML is rendered, Primus runs in its own root, and its log gives the result.

train/launch.py starts it once, not once per rank: Primus starts its ranks itself. When the launcher dies, the kernel
sends this process SIGTERM (train/job/processes.py), and this process stops those of Primus. Reading order: `main` ->
`train` -> `check_arguments`, `prove`.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from train.common import trainer
from train.common.trainer import Data
from train.job import processes
from train.job.job import Job, log_path
from train.job.rank_environment import python_of
from train.job.recorder import NonFiniteError
from train.job.report import IncompleteError, MismatchError
from train.prim.arguments import NATIVE, NO_TABLE, Arguments
from train.prim.environment import cpu_environment, environment
from train.prim.install import gpu_folder
from train.prim.log_report import Follower, LogReport, PrimusError, check_arguments, take_profile, why_unproven
from train.prim.yaml_config import Plan, plan_of, write_weights
from utils.arguments import refusing
from utils.errors import ConfigError, DataError
from utils.hardware.detect import HardwareError, visible_gpus
from utils.logs.reader import LogFormatError, read_log
from utils.provenance.origin import speed_variables
from utils.results import schema
from utils.settings.config import ROOT

POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0
"""Less than the grace period that the launcher of the job gives this process."""
NATIVE_WEIGHTS = "Primus draws its own weights and does not say which"


@refusing((ConfigError, DataError, HardwareError))
def main() -> int:
    """Run one job; return 0 for an ok result, 2 for bad input, Primus's exit code where it failed, else 1."""
    options = trainer.arguments("prim")
    job, data = trainer.job_of("prim", options, visible_gpus(options.platform))
    gpu_info = _gpu_info(job)
    plan = plan_of(job, gpu_folder(gpu_info["device_name"]), log_path(job))
    command = shlex.join(["python", "-m", "train.train_prim", *sys.argv[1:]])
    with processes.stop_request() as stop:
        try:
            report = LogReport(job, job.identity(data.manifest["bin_sha256"]), command)
            with report:
                report.take_gpu_info(gpu_info)
                train(report, plan, data, stop)
        except (PrimusError, IncompleteError, NonFiniteError, MismatchError) as error:
            print(f"{job.name}: {error}", file=sys.stderr)
            return error.exit_code if isinstance(error, PrimusError) else 1
    return 0


def train(report: LogReport, plan: Plan, data: Data, stop: processes.StopRequest) -> None:
    """Run Primus and fill in the report; raise the error of a failed training."""
    job, config, weights_sha256 = report.job, report.job.config, None
    if plan.checkpoint is not None:
        ranks = config.tensor_parallel_size, config.pipeline_parallel_size, config.expert_parallel_size
        weights_sha256 = write_weights(plan.checkpoint, job.spec, config.seed, config.init_std, *ranks)
    plan.experiment.write_text(yaml.safe_dump(plan.document, sort_keys=False, width=120), encoding="utf8")
    of_launcher = plan.primus.variables(plan.experiment, plan.train_log, plan.gpu_model)
    given = environment(config, plan.gpu, of_launcher)
    if config.platform == "cpu":
        given |= cpu_environment(Path(python_of("prim", "cpu")), plan.workspace, given)
    report.versions = report.reading("versions", lambda: plan.primus.versions(given)) or {}
    _print_start(job, plan)
    follower = report.follower
    try:
        command = plan.primus.command(plan.experiment, plan.train_log)
        exit_code = _run(plan.primus.root, command, given, follower, stop)
        _take(report, plan, given)
        _check_ending(report, exit_code, stop)
        if report.is_reporter:
            report.check_complete()
            cache = plan.workspace / "index_cache"
            report.fingerprint = schema.unknown("fingerprint", "it could not be read, see the warnings")
            report.reading("fingerprint", lambda: prove(report, cache, data, follower.arguments, weights_sha256))
            if config.profiled is not None:
                taken = partial(take_profile, report, config.profiled, plan.workspace)
                report.warnings += report.reading("profile", taken) or []
    finally:
        if plan.checkpoint is not None:
            # four bytes a parameter, which nothing reads after the training has started
            shutil.rmtree(plan.checkpoint, ignore_errors=True)
        if report.is_reporter:
            # the next attempt needs an empty folder: files of an earlier order of samples would prove nothing
            shutil.rmtree(plan.workspace / "index_cache", ignore_errors=True)


def _run(
    root: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    follower: Follower,
    stop: processes.StopRequest,
) -> int:
    """Run the command of Primus's launcher in `root` until it exits; return its exit code, negative for a signal.

    No process of it remains. It is stopped early on a stop request to this process, or when the follower finds wrong
    arguments.
    """
    # Primus's launcher starts torchrun, whose ranks outlive it when it is killed
    processes.adopt_orphans()
    child = processes.Child(list(command), follower.take, environment, folder=root)
    processes.wait_until(
        lambda: child.has_ended() or follower.mismatch is not None, stop=stop, poll_seconds=POLL_SECONDS
    )
    return child.close(GRACE_SECONDS)


def prove(report: LogReport, cache: Path, data: Data, arguments: Arguments, weights_sha256: str | None) -> None:
    """Fill in the fingerprint, the token stream only where Primus's index files equal those of our data set."""
    found = trainer.fingerprint(report.job, data, data.dataset, weights_sha256)
    if weights_sha256 is None:
        found["reasons"]["initial_weights_sha256"] = NATIVE_WEIGHTS
    why = why_unproven(cache, data.dataset, arguments.values, data.prefix)
    if why is not None:
        found["token_stream_sha256"] = None
        found["reasons"]["token_stream_sha256"] = why
        report.warnings.append(f"the order of samples is not proven: {why}")
    report.fingerprint = found


def _take(report: LogReport, plan: Plan, given: Mapping[str, str]) -> None:
    """Put all facts of a run into the report, however it ended."""
    follower = report.follower
    with suppress(LogFormatError, OSError):  # also of a training that failed; a log without iterations is left out
        report.log = read_log([plan.train_log], "prim")
    if not follower.arguments.is_complete and report.job.config.nodes > 1:  # the first rank may have printed it
        with suppress(OSError), log_path(report.job, 0).open(encoding="utf8", errors="replace") as log:
            for line in log:
                follower.arguments.take(line)
    report.resolved = follower.arguments.resolved(report.job.spec)
    report.environment = speed_variables(given) | speed_variables(follower.environment)
    if not follower.arguments.is_complete:
        report.warnings.append(f"{NO_TABLE}, so nothing proves what it was built from")
    if report.job.config.init != NATIVE and plan.checkpoint is None:
        report.warnings.append(f"INIT={report.job.config.init} was asked: {NATIVE_WEIGHTS}")
    report.warnings += [f"not said to Primus: {line}" for line in plan.dropped]


def _check_ending(report: LogReport, exit_code: int, stop: processes.StopRequest) -> None:
    follower = report.follower
    if stop.signal is not None:
        raise PrimusError(f"interrupted by {stop.signal.name}", stop.exit_code(otherwise=1))
    if follower.unloaded is not None:
        raise MismatchError(f"Primus could not load the equal weights: {follower.unloaded}")
    wrong = follower.mismatch or check_arguments(report.job, follower.arguments)
    if wrong is not None:
        raise MismatchError(wrong)
    if exit_code != 0:
        code = exit_code if exit_code > 0 else processes.SIGNAL_EXIT_CODE - exit_code
        last = "\n".join([*follower.memory_lines, *follower.last_lines])
        raise PrimusError(f"Primus ended with exit code {code}; last lines of its log:\n{last}", code)


def _gpu_info(job: Job) -> dict[str, Any]:
    """Return the facts of the GPUs, read in another process, so that this one holds no GPU memory during the run."""
    program = (
        "import json, sys; from utils.hardware.detect import HardwareError, gpu_info\n"
        "try: print(json.dumps(gpu_info(sys.argv[1], int(sys.argv[2]))))\n"
        "except HardwareError as error: sys.exit(str(error))"
    )
    command = [sys.executable, "-c", program, job.config.platform, str(job.config.num_gpus)]
    # libraries print lines of their own, so the answer is the last line
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if ran.returncode != 0:
        raise HardwareError(ran.stderr.strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _print_start(job: Job, plan: Plan) -> None:
    config = job.config
    print(
        f"=== {job.name}: {job.model} {config.model_size} by Primus in {plan.primus.root}\n"
        f"    YAML {plan.experiment}, made from {plan.shipped.relative_to(plan.primus.root)}\n"
        f"    {config.train_iterations} steps of GBS {config.global_batch_size} on {config.num_gpus} GPUs",
        flush=True,
    )
    for line in plan.dropped:
        print(f"    not said to this version: {line}", flush=True)
