"""The watchdog: it runs the ranks of a job, keeps their output, ends hangs and leaves no process behind.

`run` returns an `Ending`; `train/job/outcome.py` decides what it means for the result. `describe_ranks` reports a
hanging job: use of cores and GPUs, memory, and the stack of every rank. 100 % utilisation proves nothing here: ranks
that wait for one another in a collective show it too. The stacks show the cause.
"""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING

from train.job import processes
from train.job.job import Job, job_folder, log_path
from train.job.rank_output import OutputReader, RankOutput, RemoteLog
from utils.results.raw_samples import Step
from utils.settings.config import RunConfig

if TYPE_CHECKING:
    import psutil  # imported on use, as in processes.py

GRACE_SECONDS = 10.0
"""Time between SIGTERM and SIGKILL."""
POLL_SECONDS = 0.2
SAMPLE_SECONDS = 1.0
STACK_SECONDS = 1.0
"""Time for a rank to print its stack before the next rank is signalled."""
TOOL_TIMEOUT_SECONDS = 20
GPU_TOOLS = (
    ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used,memory.total", "--format=csv,noheader"],
    ["rocm-smi", "--showuse", "--showmemuse"],
)


@dataclass
class Ending:
    """The end of a job's ranks, as their launcher saw it."""

    exit_code: int
    """Of torchrun; negative for a signal, as in subprocess."""
    last_step: Step | None = None
    last_lines: list[str] = field(default_factory=list)
    stopped_by: Signals | None = None
    """The signal that asked the launcher to stop."""
    overdue: str | None = None
    """For a job that the watchdog ended: the limit that it broke, and the state of its ranks."""
    signals: dict[int, Signals] = field(default_factory=dict)
    """Signal by rank, as torchrun reports them, without those that torchrun sent itself."""
    kernel_oom_kills: int = 0
    """Processes that the kernel ended on the whole machine meanwhile because memory ran out."""
    log_error: str | None = None
    """Why the log is incomplete; None if it is complete."""
    data_error: str | None = None
    """Why the data are not those that the job began with; None if they are, or if the job did not end well."""
    nodes: list[str] = field(default_factory=list)
    """One sentence for each other node that did not end well."""


def run(job: Job, command: Sequence[str], environment: Mapping[str, str], stop: processes.StopRequest) -> Ending:
    """Run the command until it exits or times out; none of its processes and temporary files is left afterwards.

    The logs of the other nodes are read too: the steps may be printed in one of them. Raises OSError if the log or the
    temporary folder cannot be made.
    """
    # torchrun puts each rank into a session of its own, and may die before its ranks
    processes.adopt_orphans()
    config = job.config
    with job_folder() as folder:
        oom_kills = kernel_oom_kills()
        output = RankOutput(log_path(job))
        others = []
        for node in range(config.nodes):
            if node != config.node_rank:
                others.append(RemoteLog(log_path(job, node), lambda _, line: output.show(line)))
        started = time.monotonic()
        child = processes.Child(command, output.take, {**environment, "TMPDIR": str(folder)})
        overdue = None
        while not child.has_ended() and not stop and overdue is None:
            time.sleep(POLL_SECONDS)
            for other in others:
                other.read()
            overdue = _overdue(_furthest(output, others), config, started)
        if overdue is not None:
            overdue += "; " + describe_ranks(output.take)
        exit_code = child.close(GRACE_SECONDS)
        output.close()
        for other in others:
            other.read()
    return Ending(
        exit_code=exit_code,
        last_step=_furthest(output, others).last_step,
        last_lines=list(output.last_lines),
        stopped_by=stop.signal,
        overdue=overdue,
        signals=output.signals,
        kernel_oom_kills=kernel_oom_kills() - oom_kills,
        log_error=output.log_error,
    )


def _furthest(output: OutputReader, others: Sequence[OutputReader]) -> OutputReader:
    """Return the output with the latest step: only one node prints steps."""
    return max((output, *others), key=lambda reader: reader.last_step_at or -math.inf)


def _overdue(output: OutputReader, config: RunConfig, started: float) -> str | None:
    """Return which limit the job broke, None if it broke none; the end has the same limit as the start."""
    now, step = time.monotonic(), output.last_step
    waited = now - (output.last_step_at or started)
    is_between_steps = step is not None and step.number < step.total
    limit = config.step_timeout_seconds if is_between_steps else config.start_timeout_seconds
    if waited <= limit:
        return None
    name = "STEP_TIMEOUT_SECONDS" if is_between_steps else "START_TIMEOUT_SECONDS"
    if step is None:
        return f"no step was finished in {waited:.0f} s ({name}={limit:g})"
    last = f"step {step.number} of {step.total} ({step.time}, loss {step.loss:.4f}, {step.memory_gb:.1f} GB)"
    return f"nothing was finished in the {waited:.0f} s after {last} ({name}={limit:g})"


def kernel_oom_kills() -> int:
    """Return how many processes the kernel has ended since boot because memory ran out (/proc/vmstat)."""
    counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counts.get("oom_kill", 0))


def describe_ranks(write: Callable[[str], None]) -> str:
    """Return use and memory of each rank in one line; write stacks and the GPU tools' tables, line by line."""
    ranks = _ranks()
    if not ranks:
        return "no rank was running"
    # before the stacks, because printing them takes the ranks' own time
    use = _use(ranks)
    for rank, process in sorted(ranks.items()):
        write(f"--- stack of rank {rank} (process {process.pid}), the newest call first\n")
        _print_stack(process, write)
    for command in GPU_TOOLS:
        if shutil.which(command[0]):
            write(f"--- {' '.join(command)}\n")
            _print_output(command, write)
            use += f"; use of the GPUs ({command[0]}) is in the log"
    return use + "; the stack of every rank is in the log"


def _ranks() -> dict[int, psutil.Process]:
    """Return the processes that torchrun started, by RANK; their own children, which inherit RANK, are left out."""
    import psutil

    found: dict[int, psutil.Process] = {}
    for process in processes.descendants():
        try:
            rank = process.environ().get("RANK")
            is_first = psutil.Process(process.ppid()).environ().get("RANK") is None
        except psutil.Error:
            continue  # it has just ended
        if rank is not None and is_first:
            found[int(rank)] = process
    return found


def _use(ranks: dict[int, psutil.Process]) -> str:
    for process in ranks.values():
        _cpu_percent(process)
    time.sleep(SAMPLE_SECONDS)
    return ", ".join(f"rank {rank}: {_cpu_percent(process)}" for rank, process in sorted(ranks.items()))


def _cpu_percent(process: psutil.Process) -> str:
    """Return the use since the last call, where 100 % is one core, and the memory."""
    import psutil

    try:
        return f"{process.cpu_percent():.0f} % of a core, {process.memory_info().rss / 1e9:.1f} GB resident"
    except psutil.Error:
        return "ended"


def _print_stack(process: psutil.Process, write: Callable[[str], None]) -> None:
    if _catches(process, signal.SIGUSR1):  # train/common/trainer.py has faulthandler print to the log on it
        processes.send(process, signal.SIGUSR1)
        time.sleep(STACK_SECONDS)
    elif shutil.which("py-spy"):
        _print_output(["py-spy", "dump", "--pid", str(process.pid)], write)
    else:
        write("not available: the rank was still importing, and py-spy is not installed\n")


def _catches(process: psutil.Process, number: signal.Signals) -> bool:
    """Return True if the process has a handler for the signal; without one it would end (proc(5): SigCgt)."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return False
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "SigCgt":  # a mask in hexadecimal digits; signal 1 is its lowest bit
            return bool(int(value, 16) >> (number - 1) & 1)
    return False


def _print_output(command: list[str], write: Callable[[str], None]) -> None:
    try:
        ran = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TOOL_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        write(f"{command[0]} did not answer in {TOOL_TIMEOUT_SECONDS} s\n")
        return
    for line in ran.stdout.splitlines():
        write(line + "\n")
