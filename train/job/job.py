"""One job of the matrix: its settings, names, paths, identity, temporary folder, and disk space for its result.

The ranks get the temporary folder as TMPDIR, and it goes with the job, however the job ends. Without it torchrun
(`torchelastic_*`), torch.compile (`torchinductor_*`) and multiprocessing (`pymp-*`) leave folders in the temporary
folder of the machine. The launcher locks a file in its folder (flock(2)), and the kernel releases the lock when the
launcher dies: a folder whose lock is free was left behind by a launcher that was killed.
"""

from __future__ import annotations

import datetime
import errno
import fcntl
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from utils.errors import causes
from utils.models import ModelSpec
from utils.own_files import note
from utils.provenance import origin
from utils.provenance.digests import sha256_code, sha256_json
from utils.readings import attempt
from utils.results import schema, store
from utils.results.performance import RunsRule
from utils.results.schema import NO_ENERGY
from utils.settings import profiling
from utils.settings.config import ROOT, RunConfig

Draft = dict[str, Any]
"""A result that is not written yet, or that was read to be changed."""
RESERVE_BYTES = 1 << 18
"""A result without samples takes 5 KB, one with 500 steps 60 KB."""
DISK_SENTENCES = {
    errno.ENOSPC: "the disk of {folder} is full ({free:,} bytes free)",
    errno.EDQUOT: "the disk quota for {folder} is used up",
    errno.EROFS: "the disk of {folder} can only be read",
    errno.EFBIG: "a file in {folder} is larger than allowed (ulimit -f)",
}
_NUMPY = re.compile(r"\d+ requested and \d+ written")
"""`ndarray.tofile` of numpy raises this without an error number when the disk is full."""
FOLDER_PREFIX = "tprimat_"
"""Short, because the path of a Unix socket in the folder has at most 107 bytes (unix(7))."""
LOCK = ".tprimat_job"
"""File in the folder; a folder without it is not a job's."""


@dataclass(frozen=True)
class Job:
    """One training: a framework, a model, a run number, and the attempt at it (from 1)."""

    config: RunConfig
    framework: str
    model: str
    run: int = 1
    attempt: int = 1

    @property
    def spec(self) -> ModelSpec:
        """The model that is trained."""
        return self.config.spec(self.model)

    def numbered(self, attempt: int) -> Job:
        """Return the same job as another attempt."""
        return replace(self, attempt=attempt)

    @property
    def kind(self) -> tuple[str, str]:
        """Framework and model: equal for all runs of a job."""
        return self.framework, self.model

    @property
    def rule(self) -> RunsRule:
        """The number of runs of this framework and model."""
        return RunsRule.of(self.config.runs)

    @property
    def name(self) -> str:
        """Name of the job in messages and log files."""
        return store.result_name(self.config.platform, self.framework, self.model, self.run).removesuffix(".json")

    @property
    def labelled(self) -> str:
        """Name of the job with its label, in the names of other files than its result."""
        return f"{self.config.label}_{self.name}" if self.config.label else self.name

    @property
    def result_path(self) -> Path:
        """Path of the job's result."""
        return self.config.results_dir / f"{self.name}.json"

    def identity(self, dataset_bin_sha256: str) -> str:
        """Return one digest over settings, data, code and machine: two jobs with the same digest are the same job."""
        return sha256_json(
            {
                "asked": self.config.asked() | {"dataset": dataset_bin_sha256},
                "platform": self.config.platform,
                "framework": self.framework,
                "model": self.spec.as_dict(),
                "method": self.config.method,
                "run": self.run,
                "code": sha256_code(ROOT),
                "host": machine(self.config),
            }
        )

    def empty_result(self, status: str, reason: str | None, identity: str, command: str, started: str) -> Draft:
        """Return a result without measurements, with `reason` beside every null (format: utils/results/schema.py)."""
        ended = utc_now()
        provenance, why = attempt(lambda: origin.describe(command, started, ended))
        if provenance is None:
            known = {"command": command, "started_utc": started, "finished_utc": ended}
            provenance = schema.unknown("provenance", why) | known
        result: Draft = {
            "schema_version": schema.SCHEMA_VERSION,
            "status": status,
            "reason": reason,
            "warnings": [f"provenance: {why}"] if why else [],
            "platform": self.config.platform,
            "framework": self.framework,
            "model": self.model,
            "model_size": self.config.model_size,
            "method": self.config.method,
            "label": self.config.label,
            "run": self.run,
            "attempt": self.attempt,
            "identity_sha256": identity,
        }
        for section, keys in schema.SECTIONS.items():
            # one reason for all keys: nothing of the section is known
            result[section] = dict.fromkeys(keys) | {"reasons": {"*": reason or "not measured"}}
        result["training_config"] = self.config.asked()
        result["energy_metrics"] = schema.unknown("energy_metrics", NO_ENERGY)
        result["provenance"] = provenance
        result["repeats"] = self.rule.as_dict()
        for key in schema.SAMPLES:
            result[key] = []
        return result


def machine(config: RunConfig) -> str:
    """Return the name of the machine in a job's identity: TPRIMAT_MACHINE if it is set, else this host's name.

    It is the same on all nodes of a job, and under Slurm on whichever nodes the job gets the next time.
    """
    named = os.environ.get("TPRIMAT_MACHINE")
    if named:
        return named
    return f"{config.nodes} nodes at {config.master_addr}" if config.nodes > 1 else platform.node()


def utc_now() -> str:
    """Return the time as ISO 8601 in UTC, whole seconds."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def log_path(job: Job, node: int | None = None) -> Path:
    """Return the path of the log of an attempt on this node, or on the node of the given number."""
    node = job.config.node_rank if node is None else node
    of_node = f"_node{node}" if node > 0 else ""
    return job.config.output_dir / "logs" / f"{job.labelled}_attempt{job.attempt}{of_node}.log"


def profile_folder(job: Job) -> Path:
    """Return the folder of an attempt's profile, the same on all nodes."""
    return job.config.output_dir / profiling.FOLDER / log_path(job, 0).stem


def set_aside(path: Path) -> int:
    """Move an existing result to the superseded attempts beside it; return the number of the next attempt (from 1).

    The result keeps its own attempt number. Numbers continue from the largest existing one, so that no attempt is
    overwritten after somebody removed an earlier one.
    """
    kept = path.parent / store.SUPERSEDED
    last = 0
    for earlier in kept.glob(f"{path.stem}_attempt*.json"):
        match = re.fullmatch(r".*_attempt(\d+)", earlier.stem)
        if match is not None:
            last = max(last, int(match[1]))
    if not path.exists():
        return last + 1
    # the result keeps its own number, which is larger where earlier attempts left no result
    number = max(last + 1, _attempt_of(path))
    kept.mkdir(exist_ok=True)
    note(path.replace(kept / f"{path.stem}_attempt{number}.json"))
    return number + 1


def _attempt_of(path: Path) -> int:
    """Return the attempt number of a result; 0 for a file that is not a result."""
    try:
        return int(store.read(path)["attempt"])
    except store.ResultError:
        return 0


def reserve(result_path: Path) -> None:
    """Reserve space for a result beside its path; raise OSError if the disk has none."""
    path = _reserve_path(result_path)
    with path.open("wb") as file:
        try:
            # truncating would reserve nothing: a sparse file takes no blocks
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError:
            path.unlink()
            raise
    note(path)


def release_reserve(result_path: Path) -> None:
    """Free the reserved space just before the result is written; do nothing if none was reserved."""
    _reserve_path(result_path).unlink(missing_ok=True)


def remove_leftovers(result_path: Path) -> None:
    """Remove the temporary files and the reserve that a killed writer of this result has left.

    Call it only when no process can be writing the result.
    """
    release_reserve(result_path)
    for path in result_path.parent.glob(f".{result_path.name}.*"):
        path.unlink(missing_ok=True)


def _reserve_path(result_path: Path) -> Path:
    return result_path.with_name(f".{result_path.name}.reserve")


def disk_reason(error: BaseException, folders: Sequence[Path]) -> str | None:
    """Return the disk's reason for an error in a program that writes into `folders`; None for any other error.

    An error names a file only if it could not be opened. Without a name, the reason names the folder whose disk has
    the least space free.
    """
    for cause in causes(error):
        if not isinstance(cause, OSError):
            continue
        number = cause.errno
        if number is None and _NUMPY.search(str(cause)):
            number = errno.ENOSPC
        if number in DISK_SENTENCES:
            folder = min(folders, key=_free)
            if isinstance(cause.filename, str):
                folder = Path(cause.filename).parent
            return DISK_SENTENCES[number].format(folder=folder, free=_free(folder))
    return None


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _free(folder: Path) -> int:
    return shutil.disk_usage(existing(folder)).free


@contextmanager
def job_folder() -> Iterator[Path]:
    """Yield a new locked folder, which is removed when the block ends; raise OSError if it cannot be made.

    First removes what killed launchers have left.
    """
    remove_left_behind()
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    try:
        with (folder / "unlocked").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "unlocked").rename(folder / LOCK)  # under this name it is always locked while the launcher lives
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_behind() -> None:
    """Remove the folders of this user's launchers that were killed; those of running launchers stay."""
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*/{LOCK}"):
        with suppress(OSError), path.open("r+") as lock:  # BlockingIOError: its launcher runs
            if os.fstat(lock.fileno()).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
