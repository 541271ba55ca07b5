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

import argparse
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
        **{"nargs": "+", "type": int, "default": [], "metavar": "PID"},
        "help": "end these processes, which hold a GPU",
    },
    "--end-ours": {"action": "store_true", "help": "end processes that jobs of this suite left behind"},
    "--yes": {"action": "store_true", "help": "do not ask before ending processes"},
}
VENDORS = {"nvd": "NVIDIA", "amd": "AMD"}
GRACE_SECONDS, KILL_SECONDS = 10.0, 20.0
"""Seconds from SIGTERM to SIGKILL, and from SIGKILL to giving up."""
HEAD = ("GPU", "name", "memory GB", "use", "power W", "cap W", "clock MHz", "memory MHz", "C", "slowed by")
UNKNOWN = "?"


@refusing((ConfigError,))
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if shown or ended, 1 if a driver or a process does not answer, 2 for bad input."""
    options = Parser(OPTIONS, module="train.machine.gpu_command").parse_args(arguments)
    readings, errors = read_all()
    on_gpus = {one.process_id for reading in readings for one in reading.processes or ()}
    _show(readings, errors, on_gpus)
    wanted = _wanted(options, on_gpus)
    if wanted and not options.yes and not _agreed(wanted):
        return 2
    left = end(wanted)
    for one in left:
        print(
            f"error: process {one.process_id} did not end after SIGKILL; it is waiting for its device", file=sys.stderr
        )
    return 1 if left or errors else 0


def read_all() -> tuple[list[GpuReading], list[str]]:
    """Return the reading of each vendor whose tool is installed, and the errors of tools that do not answer."""
    readings, errors = [], []
    for platform in filter(gpus.installed, VENDORS):
        try:
            readings.append(gpus.read(platform))
        except GpuToolError as error:
            errors.append(str(error))
    return readings, errors


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with columns of equal width."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def gpu_row(gpu: GpuState) -> tuple[str, ...]:
    """Return the row of one GPU; unknown values are question marks."""
    cap = _number(gpu.power_cap_watts)
    if gpu.default_power_cap_watts not in (None, gpu.power_cap_watts):
        cap += f" (default {_number(gpu.default_power_cap_watts)})"
    slowed = UNKNOWN if gpu.throttle_reasons is None else ", ".join(gpu.throttle_reasons) or "-"
    return (
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
    )


def process_row(process: GpuProcess) -> tuple[str, ...]:
    """Return the row of one process. Of a process in another container only the tool's data are known."""
    found = job_processes.look_up(process.process_id)
    return (
        UNKNOWN if process.gpu is None else str(process.gpu),
        str(process.process_id),
        found.user if found else UNKNOWN,
        _number(process.memory_gb, 1),
        _whose(found),
        found.command if found else f"{process.name} (not visible from here: in another container, or gone)",
    )


def _whose(found: SuiteProcess | None) -> str:
    if found is None or found.job is None:
        return "-"
    return f"{found.job}, left behind" if found.is_left_behind else found.job


def _number(value: float | None, decimals: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:.{decimals}f}"


def _show(readings: Iterable[GpuReading], errors: Iterable[str], on_gpus: set[int]) -> None:
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    states = [gpu for reading in readings for gpu in reading.gpus]
    tools = ", ".join(tool for platform in VENDORS if (tool := gpus.installed(platform)))
    if states:
        print("\n".join(table([HEAD, *map(gpu_row, states)])))
    elif not errors:
        print(f"no GPU: {f'{tools} lists none' if tools else 'neither nvidia-smi nor amd-smi is on PATH'}")
    for reading in readings:
        _show_processes(reading)
    for one in job_processes.left_behind():
        if one.process_id not in on_gpus:
            print(f"left behind by {one.job}, without a GPU: process {one.process_id}: {one.command}")


def _show_processes(reading: GpuReading) -> None:
    if not reading.gpus:
        return
    if reading.processes is None:
        print(f"processes: unknown ({reading.why_no_processes})")
    elif reading.processes:
        head = ("GPU", "PID", "user", "memory GB", "job of this suite", "command")
        print("\n".join(table([head, *map(process_row, reading.processes)])))
    else:
        print(f"processes: {reading.tool} lists none")


def _wanted(options: argparse.Namespace, on_gpus: set[int]) -> list[SuiteProcess]:
    found = {process_id: _may_end(process_id, on_gpus) for process_id in options.end}
    if options.end_ours:
        found |= {one.process_id: one for one in job_processes.left_behind()}
        if not found:
            print("nothing was left behind by jobs of this suite")
    return list(found.values())


def _may_end(process_id: int, on_gpus: set[int]) -> SuiteProcess:
    found = job_processes.look_up(process_id)
    if found is None:
        raise ConfigError(
            f"--end {process_id}: no such process here; end a process of another container from inside that container"
        )
    if found.user_id != os.getuid():
        raise ConfigError(
            f"--end {process_id}: belongs to {found.user}, and only your own processes can be ended; ask that user"
        )
    if process_id not in on_gpus and not found.is_left_behind:
        raise ConfigError(
            f"--end {process_id}: holds no GPU and was not left behind by this suite; use kill for other processes"
        )
    return found


def _agreed(wanted: Sequence[SuiteProcess]) -> bool:
    for one in wanted:
        print(f"to be ended: process {one.process_id}: {one.command}")
    if not sys.stdin.isatty():
        print("error: standard input is no terminal, so nobody can be asked; add --yes to end them", file=sys.stderr)
        return False
    print("End them? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def end(wanted: Sequence[SuiteProcess]) -> list[SuiteProcess]:
    """End the processes with SIGTERM, then SIGKILL; return those that are still alive.

    A process descriptor refers to one process, so a process id that was reused since is never signalled.
    """
    handles = {}
    try:
        for one in wanted:
            with suppress(ProcessLookupError):
                handles[one] = os.pidfd_open(one.process_id)
        left = [one for one in handles if _is_same(one)]
        for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            for one in left:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handles[one], number)
            deadline = time.monotonic() + seconds
            while (left := [one for one in left if _is_same(one)]) and time.monotonic() < deadline:
                time.sleep(0.05)
        for one in [one for one in handles if one not in left]:
            print(f"ended: process {one.process_id}: {one.command}")
        return left
    finally:
        for handle in handles.values():
            os.close(handle)


def _is_same(one: SuiteProcess) -> bool:
    now = job_processes.look_up(one.process_id)
    return now is not None and now.started == one.started


if __name__ == "__main__":
    sys.exit(run(main))
