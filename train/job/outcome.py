"""What the end of a job means: see that one true result stands, whatever killed the job, and say what it is.

A trainer writes its own result and knows most. It is overruled where the launcher knows better: a rank that loses its
neighbour reports a broken connection, and only the launcher has seen that the neighbour was killed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from train.job.job import Job
from train.job.oom import advice
from train.job.reserve import release_reserve, remove_leftovers
from train.job.supervise import Ending
from utils.memory.estimate import cpu_capacity_gb
from utils.results import store

TIMEOUT_EXIT_CODE = 124
"""As timeout(1) has it."""
SIGNAL_EXIT_CODE = 128
"""Plus the number of the signal, as shells have it."""
CRASHES = (Signals.SIGKILL, Signals.SIGSEGV, Signals.SIGBUS, Signals.SIGILL, Signals.SIGFPE)
"""Ends of a rank that explain the errors of the others. SIGABRT does not: collective libraries abort on such errors."""


@dataclass(frozen=True)
class Attempt:
    """What a result says of the attempt that it stands for, when the launcher has to write it."""

    job: Job
    identity: str
    command: str
    started_utc: str


def settle(attempt: Attempt, ending: Ending) -> int:
    """Make sure that a true result stands, say on stderr what it is unless it is ok, and return the exit code."""
    path = attempt.job.result_path
    release_reserve(path)
    written = _written(path)
    verdict = _verdict(ending, written)
    if verdict is not None:
        status, reason = verdict
        if status == "oom":
            reason += f"; {_advice(attempt.job, written)}"
        if ending.log_error:
            reason += f"\nthe log is incomplete: {ending.log_error}"
        leave(attempt, status, reason, written)
        written = store.read(path)
    remove_leftovers(path)
    assert written is not None
    if written["status"] != "ok":
        print(f"{attempt.job.name}: {written['status']}: {written['reason']}", file=sys.stderr)
    return _exit_code(ending, written["status"])


def leave(attempt: Attempt, status: str, reason: str, written: dict[str, Any] | None = None) -> None:
    """Write a result with this status; what the trainer had `written` of the same attempt is kept in it."""
    if written is None:
        written = attempt.job.empty_result(status, reason, attempt.identity, attempt.command, attempt.started_utc)
    store.write(written | {"status": status, "reason": reason}, attempt.job.result_path)


def _written(path: Path) -> dict[str, Any] | None:
    return store.read(path) if path.exists() else None


def _verdict(ending: Ending, written: dict[str, Any] | None) -> tuple[str, str] | None:
    """Return status and reason where the launcher's word counts, None where the trainer's own result stands."""
    status = written["status"] if written else None
    if ending.stopped_by is not None:
        if status == "ok":
            return None  # all was measured and written before the interrupt
        return "failed", f"interrupted by {ending.stopped_by.name} {_where(ending)}"
    if ending.overdue is not None:
        done = "the result was written, but the ranks did not end; " if status == "ok" else ""
        return "timeout", done + ending.overdue
    if status in ("oom", "nan"):
        return None
    crashed = {rank: number for rank, number in ending.signals.items() if number in CRASHES}
    if crashed:
        return _crash(ending, crashed, written)
    if status is None:
        return "failed", f"{_how(ending)} {_where(ending)} and left no result; last lines of its log:\n" + "\n".join(
            ending.last_lines
        )
    if status == "ok" and ending.exit_code != 0:
        return "failed", f"the result was complete, then {_how(ending)}; last lines of its log:\n" + "\n".join(
            ending.last_lines
        )
    if ending.nodes and written:
        before = "the result was complete, then " if status == "ok" else f"{written['reason'].strip()}\n"
        return "failed", before + "; ".join(ending.nodes)
    return None


def _crash(ending: Ending, crashed: dict[int, Signals], written: dict[str, Any] | None) -> tuple[str, str]:
    who = ", ".join(f"rank {rank} was ended by {number.name}" for rank, number in sorted(crashed.items()))
    reason = f"{who} {_where(ending)}"
    is_oom = ending.kernel_oom_kills > 0 and Signals.SIGKILL in crashed.values()
    if is_oom:
        reason += f"; the kernel ended {ending.kernel_oom_kills} process(es) for want of memory meanwhile"
    elif Signals.SIGKILL in crashed.values():
        reason += "; not by this suite, and not for want of memory by the kernel's own count"
    if written and written["reason"]:
        reason += "; the other ranks then ended with: " + written["reason"].strip().splitlines()[-1]
    return "oom" if is_oom else "failed", reason


def _advice(job: Job, written: dict[str, Any] | None) -> str:
    total = written["gpu_info"].get("total_memory_gb") if written else None
    capacity = cpu_capacity_gb(job.config.ranks_per_node)[0] if job.config.platform == "cpu" else total
    return advice(job.config, job.framework, job.spec, capacity)


def _how(ending: Ending) -> str:
    if ending.exit_code < 0:
        how = f"the launcher of the ranks was ended by {Signals(-ending.exit_code).name}"
    else:
        how = f"the trainer ended with exit code {ending.exit_code}"
    return "; ".join([*ending.nodes, how])


def _where(ending: Ending) -> str:
    step = ending.last_step
    if step is None:
        return "before the first step was finished"
    return f"after step {step.number} of {step.total} (loss {step.loss:.4f}, {step.memory_gb:.1f} GB)"


def _exit_code(ending: Ending, status: str) -> int:
    if ending.stopped_by is not None:
        return SIGNAL_EXIT_CODE + ending.stopped_by
    if status == "timeout":
        return TIMEOUT_EXIT_CODE
    if status == "ok":
        return ending.exit_code
    return ending.exit_code if ending.exit_code > 0 else 1
