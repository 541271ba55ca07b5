"""Train every job of the matrix on a Slurm cluster: submit one Slurm job each, follow them, collect the results.

Run it on a login node. OUTPUT_DIR, DATA_DIR and this checkout must be the same folders on the nodes.
shell/run_slurm.sh prepares the data there first, because nodes often have no internet access; this module submits and
follows. Jobs with an ok result are skipped and jobs in the queue are followed, so the same command continues where it
stopped. Ctrl-C cancels what has not ended.
More: docs/clusters.md

Usage:   ./shell/run_slurm.sh [--dry-run] [--no-wait] [--requeue] [KEY=VALUE ...]
         --dry-run prints the script of each job and submits nothing; --no-wait submits and exits, and the same command
         follows the jobs later; --requeue lets Slurm start a job again after its node has failed
Reads:   config.env and its overlays, the environment, secrets.env; SLURM_*, RUNTIME
Writes:  DATA_DIR, OUTPUT_DIR/[label/]train_*.json, OUTPUT_DIR/logs/, OUTPUT_DIR/status.json
Exits:   0 every job has a valid ok result, 2 bad input, 128 + signal interrupted, 1 otherwise
Example: ./shell/run_slurm.sh PLATFORM=nvd NNODES=4 GPUS_PER_NODE=8 SLURM_PARTITION=gpu SLURM_ACCOUNT=mine

Jobs run one after another, because traffic of a neighbour on the network or the file system would be in every
measurement.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from train.cluster import follow as slurm_queue
from train.job import processes, rank_environment
from train.job.job import Job, utc_now
from train.job.outcome import Attempt, stamp
from train.matrix import run_all, validate, view_of
from train.preflight import matrix_checks as preflight
from train.runner import plan
from train.runner.plan import Matrix
from train.runner.run_job import conclude, follow_up, show_ends
from train.runner.state import CHECKS, FINISHED, SKIPPED, SUBMITTED, TRAINING, WAITING, JobState, StatusFile, lock
from train.runner.view import View
from utils import redact
from utils.arguments import Parser, first_line, refusing, run
from utils.dataset.place import is_pair
from utils.errors import ConfigError, DataError
from utils.hardware.detect import HardwareError
from utils.settings.config import PLATFORMS, ROOT, RunConfig

OPTIONS: dict[str, dict[str, Any]] = {
    "--platform": {"required": True, "choices": PLATFORMS},
    "--dry-run": {"action": "store_true", "help": "print the script of each job and submit nothing"},
    "--no-wait": {"action": "store_true", "help": "submit the jobs and exit; without it they are followed"},
    "--requeue": {"action": "store_true", "help": "let Slurm restart a job whose node has failed"},
    "settings": {"nargs": "*", "metavar": "KEY=VALUE"},
}
NOT_FOLLOWED = "submitted; the same command without --no-wait follows the jobs, `scancel <number>` cancels one"
SUBMITS_MORE = "when they have ended, the same command submits the further runs that RUNS=auto decides"


@refusing((ConfigError, DataError, HardwareError), failed=(slurm_queue.SlurmError,))
def main() -> int:
    """Run the matrix that the command line selects; with METHOD=both the matrices of both methods in turn."""
    options = Parser(OPTIONS, prog="python -m train.slurm", description=first_line(__doc__)).parse_args()
    settings = [*options.settings, "LAUNCHER=slurm"]
    matrices = plan.matrices(options.platform, settings, is_dry_run=options.dry_run)
    for matrix in matrices:
        # the identity of a job names its machine, and Slurm picks the nodes later
        os.environ["TPRIMAT_MACHINE"] = machine(matrix.config)
        preflight.check(matrix)
        if options.dry_run:
            for job in matrix.jobs:
                print(redact.text(render(matrix, job, is_requeued=options.requeue)))
    for line in environment().warnings("the jobs"):
        print(f"warning: {line}", file=sys.stderr)
    if options.dry_run:
        return 0
    with lock(plan.require_folders(matrices)), processes.stop_request() as stop:
        run_one = partial(_run, options=options, stop=stop)
        end = SUBMITTED if options.no_wait else FINISHED
        return run_all(matrices, run_one, stop, is_compared=not options.no_wait, end=end)


def _run(
    matrix: plan.Matrix, status: StatusFile, options: argparse.Namespace, stop: processes.StopRequest
) -> tuple[int, bool]:
    os.environ["TPRIMAT_MACHINE"] = machine(matrix.config)
    state = status.matrix
    status.enter(CHECKS)
    digests = plan.data_digests(matrix.config)
    status.enter(TRAINING)
    with view_of(state, matrix.config.output_dir) as view:
        while not stop:
            waiting = [job for job in state.jobs if job.state == WAITING]
            if not waiting:
                break
            jobs = _submit(matrix, waiting, digests, view, is_requeued=options.requeue)
            # without --no-wait, and after the last job, the results decide whether another round follows
            if options.no_wait and jobs:
                break
            slurm_queue.follow(jobs, view, status, stop)
            if stop:
                break
            # RUNS=auto decides after the last run of each kind whether another one follows
            last_of_kind = {job.job.kind: job for job in waiting}
            for job in last_of_kind.values():
                follow_up(state, job, view.print)
        if options.no_wait:
            view.print(NOT_FOLLOWED)
            if not matrix.rule.is_fixed:
                view.print(SUBMITS_MORE)
            return 0, True
        show_ends(state, view.log if matrix.rule.is_fixed else view.print)
    return validate(status, stop), True


def _submit(
    matrix: plan.Matrix,
    waiting: Sequence[JobState],
    digests: Mapping[str, str],
    view: View,
    *,
    is_requeued: bool,
) -> list[slurm_queue.SlurmJob]:
    """Submit every job that has no ok result and is not in the queue; each waits for the one before it."""
    queued = slurm_queue.queued([job_name(state.job) for state in waiting])
    jobs: list[slurm_queue.SlurmJob] = []
    for state in waiting:
        job = state.job
        identity = job.identity(digests[job.model])
        if plan.is_done(job, identity):
            state.started = time.monotonic()
            conclude(state, SKIPPED)
            view.print(f"{state.title}: has an ok result already; FORCE=1 runs it again")
            continue
        number = queued.get(job_name(job))
        if number is None:
            script = render(matrix, job, is_requeued=is_requeued)
            # one after the other: a neighbour's traffic would be in the measurement
            after = jobs[-1].number if jobs else None
            number = slurm_queue.submit(script, environment().variables, after)
            view.print(f"{state.title}: submitted as Slurm job {number}")
        else:
            view.print(f"{state.title}: is in the queue already, as Slurm job {number}")
        attempt = Attempt(job, identity, shlex.join(plan.command(matrix, job)), utc_now())
        log_path = Path(str(log_pattern(job)).replace("%j", number))
        jobs.append(slurm_queue.SlurmJob(number, state, attempt, stamp(job.result_path), log_path))
    return jobs


# The script that Slurm runs for one job: its requests, and one launcher on every node, in its container

FIRST_PORT, PORTS = 20_000, 20_000
"""Without MASTER_PORT the port follows from the number of the Slurm job, so that two jobs on a node do not collide."""
DECIDED_HERE = (
    "LAUNCHER",
    "RUNTIME",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "FRAMEWORK",
    "MODEL",
    "OUTPUT_DIR",
    "DATA_DIR",
)
"""Settings that the script sets itself."""
NODE_NAMES = (
    "CONTAINER_ARGS",
    "CONTAINER_SHM_SIZE",
    "TPRIMAT_SIF_DIR",
    "TPRIMAT_HOME",
    "TPRIMAT_VENV",
    "GRACE_SECONDS",
    "XDG_RUNTIME_DIR",
    "DOCKER_HOST",
    "CONTAINER_HOST",
)
NODE_PREFIXES = ("APPTAINER_", "SINGULARITY_", "ENROOT_", "SBATCH_")
"""Variables that only the scripts on a node, its container engine or sbatch read; ranks do not get them."""
DEFAULT_ORIGIN = "config."
"""Beginning of the origin of a setting from a settings file of the checkout."""


def machine(config: RunConfig) -> str:
    """Return the name of the machine in the identity of a job: any nodes that Slurm picks from the partition."""
    return f"{config.nodes} nodes of Slurm, partition {config.slurm_partition or 'default'}"


def job_name(job: Job) -> str:
    """Return the name of a job in Slurm's queue; the same job with another folder of results has another name."""
    return f"tprimat-{job.name}-{hashlib.sha256(str(job.result_path).encode()).hexdigest()[:8]}"


def log_pattern(job: Job) -> Path:
    """Return the path of a job's output; Slurm replaces `%j` by the number of the job."""
    return job.config.output_dir / "logs" / f"{job.labelled}_slurm%j.log"


def environment(environ: Mapping[str, str] = os.environ) -> rank_environment.Selected:
    """Return the variables that Slurm gets with a job: it stores them, and sbatch and srun hand all of them on.

    A list of names for `--export` would have Slurm load the user's login environment on the node instead (sbatch(1)).
    Raises ConfigError.
    """
    return rank_environment.select(environ, NODE_NAMES, NODE_PREFIXES)


def render(matrix: Matrix, job: Job, *, is_requeued: bool = False) -> str:
    """Return the script; raise ConfigError for a path that cannot be mounted."""
    lines = ["#!/usr/bin/env bash"]
    lines += [f"#SBATCH {option}" for option in _options(job, is_requeued)]
    lines += ["set -Eeuo pipefail", "", *_addresses(matrix)]
    if job.config.cooldown_seconds:
        lines.append(f"sleep {job.config.cooldown_seconds:g}")
    lines += ["", "# one launcher a node, each with its own number", "# shellcheck disable=SC2016", *_step(matrix, job)]
    return "\n".join(lines) + "\n"


def _options(job: Job, is_requeued: bool) -> list[str]:
    config = job.config
    options = [f"--job-name={job_name(job)}", f"--nodes={config.nodes}", "--ntasks-per-node=1"]
    if config.platform != "cpu":
        # clusters count GPUs in one of two ways; with any other value of SLURM_GPUS none are asked for
        if config.slurm_gpus == "gpus-per-node":
            options.append(f"--gpus-per-node={config.ranks_per_node}")
        elif config.slurm_gpus == "gres":
            options.append(f"--gres=gpu:{config.ranks_per_node}")
    options.append(f"--time={config.slurm_time}")
    if config.slurm_account:
        options.append(f"--account={config.slurm_account}")
    if config.slurm_partition:
        options.append(f"--partition={config.slurm_partition}")
    options += [f"--chdir={ROOT}", f"--output={log_pattern(job)}", "--open-mode=append"]
    options.append("--requeue" if is_requeued else "--no-requeue")
    return [shlex.quote(option) for option in [*options, *config.slurm_extra]]


def _addresses(matrix: Matrix) -> list[str]:
    """Return the lines that set MASTER_ADDR and MASTER_PORT; the batch script runs on node 0 of the job."""
    config = matrix.config
    lines = [
        f"export PLATFORM={config.platform} TPRIMAT_MACHINE={shlex.quote(machine(config))}",
        "MASTER_ADDR=$(hostname)",
        'if [[ $(scontrol --oneliner show node "${SLURMD_NODENAME:-}") =~ NodeAddr=([^[:space:]]+) ]]; then',
        "  MASTER_ADDR=${BASH_REMATCH[1]}",
        "fi",
    ]
    if matrix.values["MASTER_PORT"].origin.startswith(DEFAULT_ORIGIN):
        lines.append(f"MASTER_PORT=$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))")
    else:
        lines.append(f"MASTER_PORT={config.master_port}")
    return [*lines, "export MASTER_ADDR MASTER_PORT"]


def _step(matrix: Matrix, job: Job) -> list[str]:
    config = job.config
    # with `auto` each node chooses its container runtime, unless SLURM_IMAGE is set
    runtime = config.runtime
    if runtime == "auto" and config.slurm_image:
        runtime = "enroot"
    launcher = [str(ROOT / "shell/inside/job.sh")]
    container: list[str] = []
    if runtime == "enroot":
        container = _container(config)
    else:
        launcher.append("--on-node")
    task = [*launcher, config.platform, job.framework, job.model, "--run", str(job.run), *_settings(matrix, runtime)]
    words = [
        "exec srun",
        f"--nodes={config.nodes} --ntasks={config.nodes} --ntasks-per-node=1",
        '--cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" --cpu-bind=none',
        # each launcher ends by itself and reports to node 0; Slurm must not kill the others before
        "--kill-on-bad-exit=0",
        *map(shlex.quote, container),
        'bash -c \'exec "$@" "NODE_RANK=$SLURM_NODEID"\' node',
        *map(shlex.quote, task),
        '"MASTER_ADDR=$MASTER_ADDR" "MASTER_PORT=$MASTER_PORT"',
    ]
    return [" \\\n  ".join(words)]


def _settings(matrix: Matrix, runtime: str) -> list[str]:
    """Return every resolved setting: a settings file that is edited while the job waits changes nothing in it."""
    settings = [f"{key}={value.text}" for key, value in matrix.values.items() if key not in DECIDED_HERE]
    # pyxis starts the container, so the launcher in it uses none
    settings.append(f"RUNTIME={'native' if runtime == 'enroot' else runtime}")
    config = matrix.config
    return [*settings, "LAUNCHER=torchrun", f"OUTPUT_DIR={config.output_dir}", f"DATA_DIR={config.data_dir}"]


def _container(config: RunConfig) -> list[str]:
    """Return the options that pyxis adds to srun: every path is the same inside, and the checkout is read-only."""
    if config.slurm_image is None:
        raise ConfigError("SLURM_IMAGE=: RUNTIME=enroot needs an image: a .sqsh file, or [registry#]name:tag")
    modes = {ROOT: "ro", config.output_dir: "rw", config.data_dir: "rw"}
    if is_pair(config.dataset) or Path(config.dataset).exists():
        modes.setdefault(Path(config.dataset).expanduser().absolute().parent, "ro")
    if (ROOT / "secrets.env").exists():
        modes[ROOT / "secrets.env"] = "hidden"
    mounts = []
    # a folder is mounted before what lies in it
    for path in sorted(modes, key=lambda path: len(path.parts)):
        if any(sign in str(path) for sign in ":,\n"):
            raise ConfigError(f"{path}: pyxis cannot mount a path with a colon or a comma; rename it")
        mount = {"rw": f"{path}:{path}", "ro": f"{path}:{path}:ro", "hidden": f"/dev/null:{path}"}
        mounts.append(mount[modes[path]])
    return [
        f"--container-image={config.slurm_image}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={ROOT}",
        "--no-container-mount-home",
    ]


if __name__ == "__main__":
    sys.exit(run(main))
