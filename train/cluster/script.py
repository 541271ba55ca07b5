"""The script that Slurm runs for one job: its requests, and one launcher on every node, in its container."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from train.job import rank_environment
from train.job.job import Job
from train.runner.plan import Matrix
from utils.dataset.place import is_pair
from utils.errors import ConfigError
from utils.settings.config import ROOT, RunConfig

FIRST_PORT, PORTS = 20_000, 20_000
"""Without MASTER_PORT the port follows from the number of the Slurm job, so that two jobs on a node do not collide."""
DECIDED_HERE = (
    *("LAUNCHER", "RUNTIME", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("FRAMEWORK", "MODEL", "OUTPUT_DIR", "DATA_DIR"),
)
"""Settings that the script sets itself."""
NODE_NAMES = (
    *("CONTAINER_ARGS", "CONTAINER_SHM_SIZE", "TPRIMAT_SIF_DIR", "TPRIMAT_HOME", "TPRIMAT_VENV", "GRACE_SECONDS"),
    *("XDG_RUNTIME_DIR", "DOCKER_HOST", "CONTAINER_HOST"),
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


def runtime(config: RunConfig) -> str:
    """Return the container runtime of a job; with `auto` each node chooses, unless SLURM_IMAGE is set."""
    return "enroot" if config.runtime == "auto" and config.slurm_image else config.runtime


def environment(environ: Mapping[str, str] = os.environ) -> rank_environment.Selected:
    """Return the variables that Slurm gets with a job: it stores them, and sbatch and srun hand all of them on.

    A list of names for `--export` would have Slurm load the user's login environment on the node instead (sbatch(1)).
    Raises ConfigError.
    """
    return rank_environment.select(environ, NODE_NAMES, NODE_PREFIXES)


def render(matrix: Matrix, job: Job, *, is_requeued: bool = False) -> str:
    """Return the script; raise ConfigError for a path that cannot be mounted."""
    lines = ["#!/usr/bin/env bash", *(f"#SBATCH {option}" for option in _options(job, is_requeued))]
    lines += ["set -Eeuo pipefail", "", *_addresses(matrix)]
    if job.config.cooldown_seconds:
        lines.append(f"sleep {job.config.cooldown_seconds:g}")
    lines += ["", "# one launcher a node, each with its own number", "# shellcheck disable=SC2016", *_step(matrix, job)]
    return "\n".join(lines) + "\n"


def _options(job: Job, is_requeued: bool) -> list[str]:
    config = job.config
    asked = {"gpus-per-node": f"--gpus-per-node={config.ranks_per_node}", "gres": f"--gres=gpu:{config.ranks_per_node}"}
    gpus = [asked[config.slurm_gpus]] if config.platform != "cpu" and config.slurm_gpus in asked else []
    named = {"account": config.slurm_account, "partition": config.slurm_partition}
    options = [
        f"--job-name={job_name(job)}",
        f"--nodes={config.nodes}",
        "--ntasks-per-node=1",
        *gpus,
        f"--time={config.slurm_time}",
        *(f"--{name}={value}" for name, value in named.items() if value),
        f"--chdir={ROOT}",
        f"--output={log_pattern(job)}",
        "--open-mode=append",
        "--requeue" if is_requeued else "--no-requeue",
        *config.slurm_extra,
    ]
    return [shlex.quote(option) for option in options]


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
    config, kind = job.config, runtime(job.config)
    here = [] if kind == "enroot" else ["--on-node"]
    launcher = [str(ROOT / "shell/inside/job.sh"), *here]
    task = [*launcher, config.platform, job.framework, job.model, "--run", str(job.run), *_settings(matrix, kind)]
    container = _container(config) if kind == "enroot" else []
    words = [
        "exec srun",
        f"--nodes={config.nodes} --ntasks={config.nodes} --ntasks-per-node=1",
        '--cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" --cpu-bind=none',
        "--kill-on-bad-exit=0",
        *(shlex.quote(option) for option in container),
        'bash -c \'exec "$@" "NODE_RANK=$SLURM_NODEID"\' node',
        *(shlex.quote(word) for word in task),
        '"MASTER_ADDR=$MASTER_ADDR" "MASTER_PORT=$MASTER_PORT"',
    ]
    return [" \\\n  ".join(words)]


def _settings(matrix: Matrix, kind: str) -> list[str]:
    """Return every resolved setting: a settings file that is edited while the job waits changes nothing in it."""
    resolved = [f"{key}={value.text}" for key, value in matrix.values.items() if key not in DECIDED_HERE]
    config = matrix.config
    folders = (f"OUTPUT_DIR={config.output_dir}", f"DATA_DIR={config.data_dir}")
    return [*resolved, f"RUNTIME={'native' if kind == 'enroot' else kind}", "LAUNCHER=torchrun", *folders]


def _container(config: RunConfig) -> list[str]:
    """Return the options that pyxis adds to srun: every path is the same inside, and the checkout is read-only."""
    if config.slurm_image is None:
        raise ConfigError("SLURM_IMAGE=: RUNTIME=enroot needs an image: a .sqsh file, or [registry#]name:tag")
    mounts = {ROOT: "ro", config.output_dir: "rw", config.data_dir: "rw"}
    if is_pair(config.dataset) or Path(config.dataset).exists():
        mounts.setdefault(Path(config.dataset).expanduser().absolute().parent, "ro")
    if (ROOT / "secrets.env").exists():
        mounts[ROOT / "secrets.env"] = "hidden"
    options = []
    for path, mode in sorted(mounts.items(), key=lambda item: len(item[0].parts)):
        if any(sign in str(path) for sign in ":,\n"):
            raise ConfigError(f"{path}: pyxis cannot mount a path with a colon or a comma; rename it")
        options.append(f"/dev/null:{path}" if mode == "hidden" else f"{path}:{path}{':ro' if mode == 'ro' else ''}")
    return [
        f"--container-image={config.slurm_image}",
        f"--container-mounts={','.join(options)}",
        f"--container-workdir={ROOT}",
        "--no-container-mount-home",
    ]
