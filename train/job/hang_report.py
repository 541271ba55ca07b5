"""Report of a hanging job: use of cores and GPUs, memory, and the stack of every rank.

100 % utilisation proves nothing here: ranks that wait for one another in a collective show it too. The stacks show the
cause.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from train.job import processes

SAMPLE_SECONDS = 1.0
STACK_SECONDS = 1.0
"""Time for a rank to print its stack before the next rank is signalled."""
TOOL_TIMEOUT_SECONDS = 20
GPU_TOOLS = (
    ["nvidia-smi", "--query-gpu=index,utilization.gpu,memory.used,memory.total", "--format=csv,noheader"],
    ["rocm-smi", "--showuse", "--showmemuse"],
)


def kernel_oom_kills() -> int:
    """Return how many processes the kernel has ended since boot because memory ran out (/proc/vmstat)."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        name, count = line.split()
        if name == "oom_kill":
            return int(count)
    return 0


def describe_ranks(write: Callable[[str], None]) -> str:
    """Return use and memory of each rank in one line; write stacks and the GPU tools' tables, line by line."""
    ranks = _ranks()
    if not ranks:
        return "no rank was running"
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
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


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
