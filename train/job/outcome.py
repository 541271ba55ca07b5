"""The one result of a job, however it ended, and the exit code that follows from it.

Up to four parties see how a job ends: a rank, the launcher of the ranks, the process that started the launcher (the
matrix) and Slurm. A rank gives its account to `write_of_rank`, the launcher to `settle`, and the other two to
`finalize_result`: nothing else decides what the result holds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import Any

from train.job.job import Draft, Job, disk_reason, log_path, release_reserve, remove_leftovers, set_aside
from train.job.processes import SIGNAL_EXIT_CODE, TIMEOUT_EXIT_CODE, how_ended
from train.job.rank_output import progress
from train.job.supervise import Ending
from train.machine.gpus import cpu_capacity_gb
from utils import frameworks
from utils.memory.estimate import FRAMEWORKS, estimate, usable_gb
from utils.models import ModelSpec
from utils.results import store
from utils.settings.config import RunConfig

CRASHES = (Signals.SIGKILL, Signals.SIGSEGV, Signals.SIGBUS, Signals.SIGILL, Signals.SIGFPE)
"""Signals that explain the errors of the other ranks. SIGABRT does not: collective libraries abort on such errors."""
Completion = Callable[[Draft], Draft]
"""Function that returns a result with what is known of it only when its ranks have ended."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at a job, with what its result records of it."""

    job: Job
    identity: str
    command: str
    started_utc: str

    def empty_result(self, status: str, reason: str | None) -> Draft:
        """Return a result of this attempt without measurements."""
        return self.job.empty_result(status, reason, self.identity, self.command, self.started_utc)


def write_of_rank(attempt: Attempt, result: Draft) -> bool:
    """Write the result of a rank and return True, unless there is one: the first rank that fails knows the cause.

    Raises OSError where the disk refuses, and ResultError if OUTPUT_DIR is gone, which is not made anew.
    """
    _require_output(attempt.job)
    path = attempt.job.result_path
    if result["status"] != "ok":
        release_reserve(path)
    # a rank that fails later sees consequences of the first failure: the first account stays
    is_written = store.write(result, path, replace=False)
    release_reserve(path)
    return is_written


def finalize_result(
    attempt: Attempt,
    before: tuple[int, int] | None,
    reason: str,
    status: str | None = None,
    cause: str | None = None,
) -> None:
    """Write the result that follows from the end of a launcher, where it overrules the file.

    The account is that of the process that started the launcher (the matrix), or of Slurm. `before` is the `stamp` of
    the result before the start; a file that still has it belongs to an earlier attempt. `reason` is for a launcher that
    left no result. Without a `status` such a result is `failed`, and a result in the file keeps the launcher's status.
    `cause` is an end from outside, which the launcher cannot know.

    | account | no result of this attempt | an ok result | any other result |
    |---|---|---|---|
    | of the matrix | failed | stays | stays |
    | of Slurm | status by Slurm's state | stays | where Slurm ended the job: its cause, then the reason |

    Measurements that are in the file stay in it. The result of an earlier attempt is kept among the superseded ones.
    Raises OSError where the disk refuses and ResultError for a damaged file, or if OUTPUT_DIR is gone.
    """
    _require_output(attempt.job)
    path = attempt.job.result_path
    if stamp(path) in (None, before):
        remove_leftovers(path)
        store.write(_renumbered(attempt).empty_result(status or "failed", reason), path)
        return
    if cause is None:
        return
    written = store.read(path)
    if written["status"] != "ok":
        reason = f"{cause}; its launcher says: {written['reason']}"
        store.write(written | {"status": status or written["status"], "reason": reason}, path)


def settle(attempt: Attempt, account: Draft | Ending, complete: Completion = lambda result: result) -> str:
    """Assemble the result of a job whose ranks have ended, write it once, and return its status.

    The status is printed with the reason on stderr unless it is ok.

    | account | no result of this attempt | an ok result | any other result |
    |---|---|---|---|
    | `dict`: no rank could be started | is written | stays | stays |
    | `Ending`: interrupted by a signal | failed | stays: all was measured before | failed |
    | ... overdue (watchdog) | timeout | timeout | timeout |
    | ... a rank crashed (CRASHES) | failed; oom if memory ran out | the same | the same; oom, nan stay |
    | ... another node failed, or the exit code is not 0 | failed | failed | its reason and the nodes'; oom, nan stay |
    | ... the log or the data are not those of the start | failed | failed | stays |
    | ... exit code 0, nothing else known | failed | stays | stays |

    Measurements that are in the file stay in it. `complete` adds what only the launcher knows. A result that cannot be
    written is a failed job; one that stays and cannot be completed keeps its numbers, with warnings on stderr.
    """
    job = attempt.job
    try:
        result, stays = _assembled(attempt, account)
        try:
            store.write(complete(result), job.result_path)
        except (OSError, store.ResultError) as error:
            # a result that a rank has written is worth more than what the launcher would add
            if not stays:
                raise
            for missing in ("energy of the job is", "conditions of the job are"):
                print(f"warning: {job.result_path.name}: the {missing} not in it: {error}", file=sys.stderr)
        remove_leftovers(job.result_path)
        status, reason = str(result["status"]), result["reason"]
    except (OSError, store.ResultError) as error:
        status, reason = "failed", f"no result could be written: {why_unwritten(job, error)}"
    if status != "ok":
        print(f"{job.name}: {status}: {reason}", file=sys.stderr)
    return status


def why_unwritten(job: Job, error: OSError | store.ResultError) -> str:
    """Return why the result of a job could not be written."""
    return disk_reason(error, [job.config.results_dir]) or str(error)


def exit_code(ending: Ending, status: str) -> int:
    """Return the exit code of a launcher whose job ended with `status`; 0 only for ok."""
    if ending.stopped_by is not None:
        return SIGNAL_EXIT_CODE + ending.stopped_by
    if status == "timeout":
        return TIMEOUT_EXIT_CODE
    if status == "ok":
        return 0
    # a launcher that a signal ended has a negative code, and one that ended well can still have failed its job
    return ending.exit_code if ending.exit_code > 0 else 1


def stamp(path: Path) -> tuple[int, int] | None:
    """Return inode and modification time, of which one changes when a file is replaced; None for a missing file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _require_output(job: Job) -> None:
    output = job.config.output_dir
    if not output.is_dir():
        raise store.ResultError(f"OUTPUT_DIR={output} was deleted or renamed while the job ran")


def _assembled(attempt: Attempt, account: Draft | Ending) -> tuple[Draft, bool]:
    """Return the result that follows from the account of the launcher, and whether it is the one in the file."""
    _require_output(attempt.job)
    path = attempt.job.result_path
    release_reserve(path)
    written = store.read(path) if path.exists() else None
    if isinstance(account, dict):
        return written or account, written is not None
    verdict = _verdict(account, written)
    if verdict is None:
        assert written is not None  # without a result there is a verdict
        return written, True
    status, reason = verdict
    if status == "oom":
        gpu_info = written["gpu_info"] if written else {}
        reason += f"; {advice_of(attempt.job, gpu_info)}"
    if account.log_error:
        reason += f"\nthe log is incomplete: {account.log_error}"
    result = written or attempt.empty_result(status, reason)
    return result | {"status": status, "reason": reason}, False


def _renumbered(attempt: Attempt) -> Attempt:
    """Return the attempt under its own number, with the result of an earlier one set aside."""
    number = set_aside(attempt.job.result_path)
    # a launcher that was killed before it wrote a result has left a log under its number
    while log_path(attempt.job.numbered(number + 1)).exists():
        number += 1
    return replace(attempt, job=attempt.job.numbered(number))


def _verdict(ending: Ending, written: Draft | None) -> tuple[str, str] | None:
    """Return status and reason where the launcher overrules the ranks, None where their result stays."""
    status = written["status"] if written else None
    if ending.stopped_by is not None:
        if status == "ok":
            return None  # all was measured before the signal
        return "failed", f"interrupted by {ending.stopped_by.name} {_where(ending)}"
    if ending.overdue is not None:
        if status == "ok":
            return "timeout", f"the result was written, but the ranks did not end; {ending.overdue}"
        return "timeout", ending.overdue
    if status in ("oom", "nan"):
        return None  # a rank knows the cause, and the launcher sees its consequences only
    # before the exit code, which is torchrun's own and the same for every failure of a rank
    crashed = {rank: number for rank, number in ending.signals.items() if number in CRASHES}
    if crashed:
        return _crash(ending, crashed, written)
    last_lines = "; last lines of its log:\n" + "\n".join(ending.last_lines)
    if status is None:
        return "failed", f"{_how(ending)} {_where(ending)} and left no result{last_lines}"
    if status == "ok" and ending.exit_code != 0:
        return "failed", f"the result was complete, then {_how(ending)}{last_lines}"
    if status == "ok" and (ending.data_error or ending.log_error):
        return "failed", f"the result was complete, but {ending.data_error or 'not its log'}"
    if ending.nodes and written:
        before = "the result was complete, then "
        if status != "ok":
            before = written["reason"].strip() + "\n"
        return "failed", before + "; ".join(ending.nodes)
    return None


def _crash(ending: Ending, crashed: dict[int, Signals], written: Draft | None) -> tuple[str, str]:
    ranks = ", ".join(f"rank {rank} {how_ended(-number)}" for rank, number in sorted(crashed.items()))
    reason = f"{ranks} {_where(ending)}"
    status = "failed"
    if Signals.SIGKILL in crashed.values():
        if ending.kernel_oom_kills > 0:
            status = "oom"
            reason += f"; the kernel ended {ending.kernel_oom_kills} process(es) for want of memory meanwhile"
        else:
            reason += "; not by this suite, and not for want of memory by the kernel's own count"
    if written and written["reason"]:
        last_line = written["reason"].strip().splitlines()[-1]
        reason += f"; the other ranks then ended with: {last_line}"
    return status, reason


def _how(ending: Ending) -> str:
    process = "the launcher of the ranks" if ending.exit_code < 0 else "the trainer"
    return "; ".join([*ending.nodes, f"{process} {how_ended(ending.exit_code)}"])


def _where(ending: Ending) -> str:
    step = ending.last_step
    if step is None:
        return progress(step)
    return f"{progress(step)} (loss {step.loss:.4f}, {step.memory_gb:.1f} GB)"


def advice_of(job: Job, gpu_info: Mapping[str, Any]) -> str:
    """Return `advice` for a job that ran out of memory on the device of a result's `gpu_info`."""
    if job.config.platform == "cpu":
        capacity_gb, _ = cpu_capacity_gb(job.config.ranks_per_node)
        return advice(job, capacity_gb)
    return advice(job, gpu_info.get("total_memory_gb"))


def largest_micro_batch(
    config: RunConfig,
    framework: str,
    spec: ModelSpec,
    capacity_gb: float,
    *,
    below: int | None = None,
) -> int | None:
    """Return the largest micro batch, up to MBS, that fits in `capacity_gb` of one device; None if not even 1 fits.

    It divides GBS / DP, so that GA is an integer. After an out-of-memory error, `below=MBS` returns a smaller one.
    """
    share = config.global_batch_size // config.data_parallel_size
    largest = config.micro_batch_size
    if below is not None:
        largest = min(largest, below - 1)
    for size in range(largest, 0, -1):
        if share % size == 0:
            # the global batch stays, so that the training is the same work
            smaller = replace(config, micro_batch_size=size, gradient_accumulation=share // size)
            if estimate(smaller, framework, spec).total_gb <= capacity_gb:
                return size
    return None


def advice(job: Job, capacity_gb: float | None) -> str:
    """Return the smaller micro batch that should fit by the estimate (utils/memory/estimate.py), or another remedy.

    `capacity_gb` is the memory of one device (on a CPU: of one rank); None where it is unknown.
    """
    if capacity_gb is None:
        return "lower MBS; how far cannot be said, because the memory of the device is unknown"
    config, framework, spec = job.config, job.framework, job.spec
    if framework not in FRAMEWORKS:
        return f"lower MBS; how far cannot be said, because there is no formula for {framework} yet"
    needed = f"about {estimate(config, framework, spec).total_gb:.1f} GB are needed by the estimate"
    usable = usable_gb(capacity_gb, config.platform)
    size = largest_micro_batch(config, framework, spec, usable, below=config.micro_batch_size)
    if size is None:
        more = "use more GPUs"
        if frameworks.of(framework).parallelism:
            more = f"raise {'EP' if spec.num_experts else 'TP'} or PP"
        return f"{needed} of {capacity_gb:.1f} GB, and no smaller micro batch fits: {more}, or lower SL"
    return f"{needed} of {capacity_gb:.1f} GB at MBS={config.micro_batch_size}; MBS={size} should fit"
