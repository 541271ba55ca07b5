"""Encoding by many machines: datatrove starts tasks, each task writes part files, and one process joins them.

    python -m data.encode ... --executor datatrove --tasks 8 --workers 4
    python -m data.encode ... --executor slurm --tasks 64 --slurm-partition cpu --slurm-time 04:00:00

Task r of n encodes every n-th part, starting with part r, so the list of files need not be divided first. Joining is an
ordinary run of data.encode, which finds all parts finished. On Slurm it is a second job that depends on the first;
input, tokenizer, output and this checkout must have the same path on every machine.
datatrove is optional and imported only here.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from data.encoding import pair
from data.encoding.parts import most_parts, spans
from data.encoding.workers import in_order, one_thread_each, usable
from utils.errors import DataError, UnusableError
from utils.own_files import require_ours

ROOT = Path(__file__).resolve().parents[2]
DATATROVE = "datatrove==0.10.1"


@dataclass(frozen=True)
class EncodeParts:
    """A datatrove pipeline step that encodes the parts of a task; `arguments` are those of `encode`."""

    arguments: dict[str, Any]

    def __call__(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Encode the parts of a task and pass on `data`; raises DataError as `data.encoding.pair.encode` does."""
        one_thread_each()
        job = pair.job_of(**self.arguments)
        own_parts = islice(spans(self.arguments["input"]), rank, None, world_size)
        for _ in in_order(job, own_parts, workers=1):
            # the part files are the result
            pass
        yield from data or ()


@dataclass(frozen=True)
class JoinParts:
    """A datatrove pipeline step that joins the parts of all tasks into the pair."""

    arguments: dict[str, Any]

    def __call__(self, data: Any, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        """Write the pair and its manifest and pass on `data`."""
        pair.encode(**self.arguments)
        yield from data or ()


def run_tasks(arguments: dict[str, Any], tasks: int, workers: int) -> dict[str, Any]:
    """Encode in `tasks` tasks of datatrove on this machine, `workers` at a time; return the manifest."""
    _check_places(arguments)
    tasks = min(tasks, most_parts(arguments["input"]))
    logs = logs_of(arguments["output_prefix"])
    executor = _datatrove().LocalPipelineExecutor(
        [EncodeParts(arguments)],
        tasks=tasks,
        workers=usable(workers, tasks),
        logging_dir=str(logs),
        # what is finished is known by its part files
        skip_completed=False,
    )
    executor.run()
    manifest = pair.encode(**arguments)
    shutil.rmtree(logs)
    return manifest


def submit(arguments: dict[str, Any], tasks: int, partition: str, time: str, options: Sequence[str] = ()) -> str:
    """Submit `tasks` tasks to Slurm and a job that joins their parts; return the id of the joining job.

    The tasks and the join get the partition and the limit `time`; `options` are more options of sbatch, NAME=VALUE.
    Raises UnusableError if datatrove or Slurm is missing or an option of sbatch is not NAME=VALUE, and DataError if
    Slurm refuses a job.
    """
    if not all("=" in option for option in options):
        raise UnusableError(f"--slurm-option: got {' '.join(options)}, wanted NAME=VALUE, e.g. account=research")
    _check_places(arguments)
    tasks = min(tasks, most_parts(arguments["input"]))
    sbatch_options = dict(option.split("=", 1) for option in options)
    common: dict[str, Any] = {
        "time": time,
        "partition": partition,
        # datatrove would ask for the qos `normal` by default
        "qos": sbatch_options.pop("qos", None),
        # if a task fails, the join must be cancelled instead of waiting in the queue forever
        "sbatch_args": {"kill-on-invalid-dep": "yes", **sbatch_options},
        "env_command": _environment(),
        "skip_completed": False,
        "with_srun": False,
    }
    executor = _datatrove().SlurmPipelineExecutor
    logs = logs_of(arguments["output_prefix"])
    encode_job = executor(
        [EncodeParts(arguments)], tasks=tasks, job_name="encode", logging_dir=str(logs / "encode"), **common
    )
    join_job = executor(
        [JoinParts(arguments)], tasks=1, job_name="join", logging_dir=str(logs / "join"), depends=encode_job, **common
    )
    try:
        # this submits `encode_job` first, on which the join depends
        join_job.run()
    except FileNotFoundError as error:
        raise UnusableError("--executor slurm: no sbatch on this machine; run the command on a login node") from error
    except subprocess.CalledProcessError as error:
        raise DataError(
            f"--executor slurm: sbatch refused the job (exit code {error.returncode}); see its message above"
        ) from error
    return str(join_job.job_id)


def _datatrove() -> Any:
    try:
        from datatrove import executor
    except ImportError as error:
        raise UnusableError(
            f"--executor datatrove and slurm need datatrove ({error}); run python -m pip install {DATATROVE}"
        ) from error
    return executor


def _check_places(arguments: dict[str, Any]) -> None:
    pair.check_places(arguments["input"], arguments["tokenizer"], arguments["output_prefix"])
    require_ours(_is_logs, logs_of(arguments["output_prefix"]), is_folder=True)


def _is_logs(folder: Path) -> bool:
    """Recognise a folder of datatrove: it has the settings of an executor somewhere in it, or nothing yet."""
    if folder.is_symlink():
        return False
    return any(folder.rglob("executor.json")) or not any(folder.iterdir())


def logs_of(prefix: Path) -> Path:
    """Return the folder of datatrove's logs of a pair; Slurm jobs write theirs until they end, so those are kept."""
    return prefix.with_name(f".{prefix.name}.datatrove")


def _environment() -> str:
    """Return the shell commands that make a task find this checkout and this Python."""
    path = shlex.quote(str(Path(sys.executable).parent))
    root = shlex.quote(str(ROOT))
    return f"cd {root}; export PATH={path}:$PATH PYTHONPATH={root}"
