"""Show every GPU of either vendor (memory, use, power and its cap, clocks, what slows it down) and its processes.

--end ends the processes that you name, if they are yours. --end-ours ends what jobs of this suite left behind:
processes whose launcher is gone (TPRIMAT_JOB in their environment). Both ask first. Another user's process is never
ended. The command needs no environment of the suite, only Python 3.10 or later.

Usage:   ./shell/gpu.sh [--end PID ...] [--end-ours] [--yes]
         --yes does not ask
Reads:   nvidia-smi, amd-smi, /proc, /sys
Writes:  nothing; ends the selected processes
Exits:   0 shown and ended as asked, also on a machine without a GPU; 1 a driver or a process does not answer;
         2 bad input, or not agreed
Example: ./shell/gpu.sh --end-ours
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from train.machine import gpus, job_processes
from train.machine.gpu_state import GpuProcess, GpuReading, GpuState, GpuToolError
from train.machine.job_processes import SuiteProcess
from utils.arguments import Parser, refusing, run
from utils.errors import ConfigError

OPTIONS: dict[str, dict[str, Any]] = {
    "--end": {
        "nargs": "+",
        "type": int,
        "default": [],
        "metavar": "PID",
        "help": "end these processes, which hold a GPU",
    },
    "--end-ours": {"action": "store_true", "help": "end processes that jobs of this suite left behind"},
    "--yes": {"action": "store_true", "help": "do not ask before ending processes"},
}
VENDORS = {"nvd": "NVIDIA", "amd": "AMD"}
GRACE_SECONDS, KILL_SECONDS = 10.0, 20.0
"""Seconds from SIGTERM to SIGKILL, and from SIGKILL to giving up."""
GPU_HEAD = ("GPU", "name", "memory GB", "use", "power W", "cap W", "clock MHz", "memory MHz", "C", "slowed by")
PROCESS_HEAD = ("GPU", "PID", "user", "memory GB", "job of this suite", "command")
UNKNOWN = "?"


@refusing((ConfigError,))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if shown or ended, 1 if a driver or a process does not answer, 2 for bad input."""
    options = Parser(OPTIONS, module="train.machine.gpu_command").parse_args(arguments)
    tools = [platform for platform in VENDORS if gpus.installed(platform)]
    code = 0
    on_gpus: set[int] = set()
    for platform in tools:
        try:
            reading = gpus.read(platform)
        except GpuToolError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 1
            continue
        _show(reading)
        on_gpus.update(process.process_id for process in reading.processes or ())
    # on a machine without a GPU this is the answer, not an error
    if not tools:
        print("no GPU: neither nvidia-smi nor amd-smi is on PATH")
    left_behind = {process.process_id: process for process in job_processes.left_behind()}
    for process in left_behind.values():
        # those on a GPU are in its table
        if process.process_id not in on_gpus:
            print(f"left behind by {process.job}, without a GPU: process {process.process_id}: {process.command}")
    wanted = {process_id: _may_end(process_id, on_gpus) for process_id in options.end}
    if options.end_ours:
        wanted |= left_behind
        if not wanted:
            print("nothing was left behind by jobs of this suite")
    if not wanted:
        return code
    if not options.yes and not _is_agreed(wanted.values()):
        return 2
    return 1 if end(wanted.values()) else code


def _show(reading: GpuReading) -> None:
    """Print the GPUs of one vendor and the processes on them."""
    if not reading.gpus:
        print(f"no GPU: {reading.tool} lists none")
        return
    print("\n".join(table([GPU_HEAD, *map(_gpu_row, reading.gpus)])))
    if reading.processes is None:
        print(f"processes: unknown ({reading.why_no_processes})")
    elif reading.processes:
        print("\n".join(table([PROCESS_HEAD, *map(_process_row, reading.processes)])))
    else:
        print(f"processes: {reading.tool} lists none")


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with columns of equal width."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _gpu_row(gpu: GpuState) -> list[str]:
    """Return the row of one GPU; unknown values are question marks."""
    cap = _number(gpu.power_cap_watts)
    if gpu.default_power_cap_watts not in (None, gpu.power_cap_watts):
        cap += f" (default {_number(gpu.default_power_cap_watts)})"
    slowed = UNKNOWN
    if gpu.throttle_reasons is not None:
        slowed = ", ".join(gpu.throttle_reasons) or "-"
    return [
        f"{VENDORS[gpu.vendor]} {gpu.index}",
        gpu.name or UNKNOWN,
        f"{_number(gpu.memory_used_gb, 1)} of {_number(gpu.memory_total_gb, 1)}",
        f"{_number(gpu.utilization_percent)} %",
        _number(gpu.power_watts),
        cap,
        f"{_number(gpu.sm_clock_mhz)} of {_number(gpu.max_sm_clock_mhz)}",
        f"{_number(gpu.memory_clock_mhz)} of {_number(gpu.max_memory_clock_mhz)}",
        _number(gpu.temperature_celsius),
        slowed,
    ]


def _process_row(holder: GpuProcess) -> list[str]:
    """Return the row of one process; /proc shows none of another container."""
    index = UNKNOWN if holder.gpu is None else str(holder.gpu)
    process = job_processes.look_up(holder.process_id)
    user, job = UNKNOWN, "-"
    command = f"{holder.name} (not visible from here: in another container, or gone)"
    if process is not None:
        user, job, command = process.user, process.job or "-", process.command
        if process.is_left_behind:
            job += ", left behind"
    return [index, str(holder.process_id), user, _number(holder.memory_gb, 1), job, command]


def _number(value: float | None, decimals: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:.{decimals}f}"


def _may_end(process_id: int, on_gpus: set[int]) -> SuiteProcess:
    """Return the process; raise ConfigError unless it is this user's and holds a GPU or was left behind."""
    process = job_processes.look_up(process_id)
    if process is None:
        raise ConfigError(
            f"--end {process_id}: no such process here; end a process of another container from inside that container"
        )
    # root could end it, and would not know whose work it is
    if process.user_id != os.getuid():
        raise ConfigError(
            f"--end {process_id}: belongs to {process.user}, and only your own processes can be ended; ask that user"
        )
    # a slip in a number must not end an editor
    if process_id not in on_gpus and not process.is_left_behind:
        raise ConfigError(
            f"--end {process_id}: holds no GPU and was not left behind by this suite; use kill for other processes"
        )
    return process


def _is_agreed(wanted: Iterable[SuiteProcess]) -> bool:
    for process in wanted:
        print(f"to be ended: process {process.process_id}: {process.command}")
    # a script that forgot --yes must not wait for ever
    if not sys.stdin.isatty():
        print("error: standard input is no terminal, so nobody can be asked; add --yes to end them", file=sys.stderr)
        return False
    print("End them? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def end(wanted: Iterable[SuiteProcess]) -> list[SuiteProcess]:
    """End the processes with SIGTERM, then SIGKILL; return those that are still alive."""
    left = list(wanted)
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        for process in left:
            _send(process, number)
        deadline = time.monotonic() + seconds
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            for process in list(left):
                if not process.is_alive():
                    print(f"ended: process {process.process_id}: {process.command}")
                    left.remove(process)
    for process in left:
        print(
            f"error: process {process.process_id} did not end after SIGKILL; it is waiting for its device",
            file=sys.stderr,
        )
    return left


def _send(process: SuiteProcess, number: signal.Signals) -> None:
    """Send a signal, unless the process has ended and another one has its id by now."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(process.process_id)
        try:
            # The handle stays with one process for good. Compared after it is opened, it cannot be of another one.
            if process.is_alive():
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


if __name__ == "__main__":
    sys.exit(run(main))
