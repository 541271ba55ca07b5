"""Run one job of the matrix in the suite's own environment. The scripts train/train_*.sh start it with their names.

Usage:  train/train_PLATFORM_FRAMEWORK_MODEL.sh [--run N] [KEY=VALUE ...]
        shell/inside/job.sh [--on-node] PLATFORM FRAMEWORK MODEL [--run N] [KEY=VALUE ...]
        --on-node: one node's part of a Slurm job, in the container that RUNTIME selects; only Slurm starts it
Reads:  the settings, the environment, the prepared data; with --on-node the engine
Writes: OUTPUT_DIR/[label/]train_*.json, OUTPUT_DIR/logs/
Exits:  0 ok (also a result that was there already); 2 bad input before anything is started, or if the RUNTIME does not
        work on this node; 1 for a job that cannot fit into memory; 124 after a timeout; 128 + signal after an
        interrupt; otherwise torchrun's exit code, never 0
Example: train/train_cpu_mega_llama.sh --run 2 TRAIN_ITERS=50

Everything is checked first, the ranks run under the watchdog, and exactly one result is written.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train.energy import sampler, section
from train.job import nodes, processes, rank_environment
from train.job.job import Job, log_path, profile_folder, remove_leftovers, reserve, set_aside, utc_now
from train.job.outcome import Attempt, Completion, exit_code, settle
from train.job.rank_environment import python_of
from train.job.supervise import Ending, run
from train.machine import job_processes
from train.machine.gpus import capacity_gb, threads_of_a_rank
from train.preflight import fit, job_checks, ready
from train.prim import install as prim_install, yaml_config as prim_config
from train.prim.environment import LAUNCHER_NAMES
from train.runner.plan import is_done, resolve, with_micro_batch
from train.settings_map import map as frameworks
from utils import arguments, readings
from utils.arguments import Parser, first_line, refusing
from utils.dataset.gpt_dataset import check_epochs, describe
from utils.dataset.place import data_prefix
from utils.errors import ConfigError, DataError, ForeignFileError
from utils.frameworks import FRAMEWORKS
from utils.hardware.detect import HardwareError
from utils.housekeeping import footprint
from utils.models import NAMES as MODELS
from utils.own_files import note_trees, require_ours
from utils.provenance.origin import speed_variables
from utils.results import store
from utils.settings import layers, profiling
from utils.settings.config import PLATFORMS, require_writable
from utils.settings.layers import Value

KNOWN_WARNINGS = (
    # resolved_config and framework_versions of the result record what is installed
    "Transformer Engine and Apex are not installed",
    "Apex is not installed",
    # of megatron-core about its own defaults and calls
    "full scope is deprecated",
    "`torch.distributed",
    "The .grad attribute of a Tensor that is not a leaf",
    "invalid escape sequence",
    "MimoModelConfig is experimental",
    "Using a large number of experts",
    "Detected a Jax installation",  # of TransformerEngine, which is asked for PyTorch alone
    # of torch about calls of torchtitan on a CPU, and about its time limit for collectives
    "In CPU autocast",
    "DTensor random operators",
    "DTensor manual_seed",
    "Set timeout is now only supported",
)
"""Beginnings of library warnings that mean nothing for a run."""
OPTIONS: dict[str, dict[str, Any]] = {
    "--platform": {"required": True, "choices": PLATFORMS},
    "--framework": {"required": True},
    "--model": {"required": True},
    "--run": {"type": int, "default": 1, "help": "number of the run, from 1 (default: %(default)s)"},
    "settings": {"nargs": "*", "metavar": "KEY=VALUE"},
}


@refusing((ConfigError, DataError, HardwareError))
def main() -> int:
    """Run the job named on the command line."""
    options = Parser(OPTIONS, prog="python -m train.launch", description=first_line(__doc__)).parse_args()
    job, manifest, values = plan_job(options)
    identity = job.identity(manifest["bin_sha256"])
    if is_done(job, identity):  # every node sees the same
        print(f"{job.name}: has an ok result of the same settings, data, code and machine; FORCE=1 runs it again")
        return 0
    # a variable of another program may change the speed, and a secret may end in a log
    chosen = rank_environment.select(os.environ, LAUNCHER_NAMES if FRAMEWORKS[job.framework].starts_its_ranks else ())
    earlier = [*chosen.warnings(), *ready.without_engine(job.config, job.framework)]
    before = job_checks.before(job.config, earlier)
    decided = frameworks.decided(job.framework)
    removed, passed = {}, {}
    for name, value in chosen.variables.items():
        if name in decided:
            removed[name] = value
        else:
            passed[name] = value
    environment = _environment(job, passed) | layers.variable(values)
    for name, value in speed_variables(removed).items():
        print(f"{job.name}: {name}={value} is not passed to {job.framework}, whose settings decide it", file=sys.stderr)
    too_large = fit.refusal(job, capacity_gb(job.config)[0])
    # from here on a signal ends the job with a result
    with processes.stop_request() as stop:
        # node 0 writes the one result of the job
        if job.config.node_rank > 0:
            return 1 if too_large else _follow(job, identity, options.settings, environment, stop)
        try:
            attempt = _begin(job, identity, options.settings)
        except (footprint.FootprintError, ForeignFileError, OSError) as error:
            print(f"error: {job.result_path.parent}: {error}; make room or name another OUTPUT_DIR", file=sys.stderr)
            return 2
        if too_large:
            settle(attempt, attempt.empty_result("oom", too_large))
            return 1
        of_nodes = nodes.VARIABLES if job.config.nodes > 1 else ()
        names = {
            "environment_passed": sorted({*environment, *of_nodes}),
            "environment_withheld": sorted(chosen.withheld),
            "environment_removed": speed_variables(removed),
        }

        def complete(result: dict[str, Any]) -> dict[str, Any]:
            energy, why = readings.attempt(lambda: section.of_result(attempt.job, result))
            if energy is None:
                energy = section.unknown(why)
                result["warnings"].append(f"energy: {why}")
            result["energy_metrics"] = energy
            result["provenance"] |= {key: value for key, value in names.items() if value}
            return job_checks.with_conditions(result, job.config, *before, is_interrupted=bool(stop))

        return _lead(attempt, manifest, environment, stop, complete)


def plan_job(options: argparse.Namespace) -> tuple[Job, dict[str, Any], dict[str, Value]]:
    """Return the job of the command line, the manifest of its data, and its settings with the origin of each.

    Starts and writes nothing. Raises ConfigError, DataError or HardwareError for what the job lacks.
    """
    if options.framework not in FRAMEWORKS:
        raise ConfigError(f"framework: got {options.framework!r}, allowed: {', '.join(FRAMEWORKS)}")
    if options.model not in MODELS:
        raise ConfigError(f"model: got {options.model!r}, allowed: {', '.join(MODELS)}")
    settings = [*options.settings, f"FRAMEWORK={options.framework}", f"MODEL={options.model}"]
    config, values = resolve(options.platform, settings)
    config = with_micro_batch(config, values, options.framework, options.model)
    # the ranks resolve the settings again, and with MBS=auto they would search again
    values["MBS"] = Value(str(config.micro_batch_size), values["MBS"].origin)
    folders = [config.results_dir, config.output_dir / "logs"]
    if config.profiled is not None:
        folders.append(config.output_dir / profiling.FOLDER)
    for folder in folders:
        require_writable(folder, "OUTPUT_DIR")
    manifest = describe(data_prefix(config, options.model), config.data_dir, config=config)
    check_epochs(config, manifest["tokens"])
    job = Job(config, options.framework, options.model, options.run)
    require_ours(store.is_result, job.result_path)
    if FRAMEWORKS[job.framework].starts_its_ranks:
        prim_config.plan_of(job, prim_install.DEFAULT_GPU, log_path(job))
    _python(job)  # its environment is made before anything is started
    ready.require(job.config, job.framework)
    return job, manifest, values


def _begin(job: Job, identity: str, settings: Sequence[str]) -> Attempt:
    """Move an earlier result to the superseded attempts, reserve disk space, and return the new attempt."""
    footprint.mark(job.config.output_dir, footprint.OUTPUT)
    remove_leftovers(job.result_path)
    # a disk that fills up while the job runs must not cost its result
    reserve(job.result_path)
    job = job.numbered(set_aside(job.result_path))
    # files of an attempt that was killed together with its launcher, or of a user
    while profile_folder(job).exists() or any(log_path(job).parent.glob(f"{log_path(job).stem}[._]*")):
        job = job.numbered(job.attempt + 1)
    return Attempt(job, identity, shlex.join(_command(job, settings)), utc_now())


def _lead(
    attempt: Attempt,
    manifest: Mapping[str, Any],
    environment: dict[str, str],
    stop: processes.StopRequest,
    complete: Completion,
) -> int:
    """Run the ranks of this node, which is the only one or number 0, and finalize the result of the job."""
    # what the result names as its command is what runs
    job, command = attempt.job, shlex.split(attempt.command)
    try:
        if job.config.nodes == 1:
            ending = _run_sampled(job, command, environment, stop)
        else:
            meeting = nodes.gather(job, attempt.identity, job.config.start_timeout_seconds, stop)
            ending = _run_sampled(job, command, environment | nodes.environment(job, meeting), stop)
            ending = nodes.collect_endings(job, meeting, ending, stop)
        if ending.exit_code == 0 and not stop:
            ending.data_error = _changed_data(job, manifest)
        return exit_code(ending, settle(attempt, ending, complete))
    except (nodes.NodesError, OSError) as error:
        remove_leftovers(job.result_path)
        settle(attempt, attempt.empty_result("failed", str(error)), complete)
        return stop.exit_code(otherwise=1)
    finally:
        nodes.close(job)


def _run_sampled(
    job: Job, command: Sequence[str], environment: Mapping[str, str], stop: processes.StopRequest
) -> Ending:
    """Run the ranks of this node with the sampler of energy beside them."""
    log = log_path(job)
    try:
        with sampler.beside(job, environment, stop):
            return run(job, command, environment, stop)
    finally:
        # purge removes only files that are listed
        of_frameworks = (log.with_name("hf_trainer"), profile_folder(job))
        _, why = readings.attempt(lambda: note_trees(*of_frameworks, *log.parent.glob(f"{log.stem}[._]*")))
        if why:
            print(f"warning: {job.name}: its files are not listed as the suite's own: {why}", file=sys.stderr)


def _changed_data(job: Job, manifest: Mapping[str, Any]) -> str | None:
    """Return why the data are not those that the job began with, None if they are.

    The result names its data by their digest, which would be that of other data.
    """
    try:
        now = describe(data_prefix(job.config, job.model), job.config.data_dir, is_recorded=False, config=job.config)
    except DataError as error:
        return f"the data were deleted or damaged while the job ran: {error}"
    return None if now == manifest else "the data were replaced while the job ran"


def _follow(
    job: Job, identity: str, settings: Sequence[str], environment: dict[str, str], stop: processes.StopRequest
) -> int:
    """Run the ranks of a node other than 0; node 0 finalizes the result."""
    try:
        meeting = nodes.join(job, identity, job.config.start_timeout_seconds, stop)
        job = job.numbered(meeting.attempt)
        environment = environment | nodes.environment(job, meeting)
        ending = _run_sampled(job, _command(job, settings), environment, stop)
    except (nodes.NodesError, OSError) as error:
        print(f"{job.name}: node {job.config.node_rank}: {error}", file=sys.stderr)
        return stop.exit_code(otherwise=1)
    nodes.report_ending(job, meeting, ending)
    if ending.overdue is not None and ending.stopped_by is None:
        print(f"{job.name}: node {job.config.node_rank}: timeout: {ending.overdue}", file=sys.stderr)
    if ending.overdue:
        return exit_code(ending, "timeout")
    return exit_code(ending, "failed" if ending.exit_code else "ok")


def _command(job: Job, settings: Sequence[str]) -> list[str]:
    """Return the command of the ranks: torchrun with a rendezvous on a free port, so that two jobs do not collide.

    The rendezvous of several nodes is on node 0, and shows each node when another one is gone. Primus is started once
    and starts its ranks itself.
    """
    command = [_python(job), "-m"]
    if not FRAMEWORKS[job.framework].starts_its_ranks:
        rendezvous = _rendezvous(job) if job.config.nodes > 1 else ["--standalone"]
        command += ["torch.distributed.run", *rendezvous, "--nproc-per-node", str(job.config.ranks_per_node), "-m"]
    command += [f"train.train_{job.framework}", "--platform", job.config.platform, "--model", job.model]
    command += ["--run-number", str(job.run), "--attempt", str(job.attempt)]
    for setting in settings:
        command.append(f"MBS={job.config.micro_batch_size}" if setting == "MBS=auto" else setting)
    return command


def _rendezvous(job: Job) -> list[str]:
    config = job.config
    # an address of IPv6 has colons of its own
    address = f"[{config.master_addr}]" if ":" in str(config.master_addr) else config.master_addr
    is_host = int(config.node_rank == 0)
    options = ["--nnodes", str(config.nodes), "--rdzv-backend", "c10d"]
    options += ["--rdzv-id", f"{job.name}_attempt{job.attempt}", "--rdzv-endpoint", f"{address}:{config.master_port}"]
    return [*options, "--rdzv-conf", f"is_host={is_host}"]


def _python(job: Job) -> str:
    """Return the Python of a job; NeMo, Bridge and torchtitan have their own, made if missing. Raises ConfigError."""
    framework = FRAMEWORKS[job.framework]
    if framework.starts_its_ranks and job.config.platform == "cpu":
        python_of(job.framework, "cpu")  # for Primus itself; its job runs with the suite's own
    if framework.has_own_python:
        return python_of(job.framework, job.config.platform)
    return sys.executable


def _environment(job: Job, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the ranks: the launcher's own, the framework's, the user's `chosen`, the mark."""
    own = {
        "OMP_NUM_THREADS": str(threads_of_a_rank(job.config)),
        "PYTHONFAULTHANDLER": "1",  # the stack of a rank that crashes is in its log
        # in the job's own TMPDIR, torch's default, every job would compile its kernels anew
        "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir(), f"torchinductor_{os.getuid()}")),
        "PYTHONWARNINGS": ",".join(f"ignore:{words}" for words in KNOWN_WARNINGS),
    }
    environment = own | frameworks.environment(job.framework, job.config, job.spec) | dict(chosen)
    environment[job_processes.MARKER] = job_processes.marker(job.name)
    profile = job.config.profiled
    if profile is not None and profile.tool == "rocprofv3":
        environment["ROCP_TOOL_ATTACH"] = "1"  # else rocprofv3 cannot attach to the ranks
    return environment


if __name__ == "__main__":
    sys.exit(arguments.run(main))
