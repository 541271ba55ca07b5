"""Show every GPU of this machine and the processes on it; end those that are named. `shell/gpu.sh` is this.

Ends only processes of the user who runs it: those named by process id that hold a GPU or were left behind by the
suite, and with --end-ours all that the suite left behind. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence

from train.machine import gpus, owned
from train.machine.gpu_state import GpuProcess, GpuReading, GpuState, GpuToolError
from train.machine.owned import Owned

VENDORS = {"nvd": "NVIDIA", "amd": "AMD"}
GRACE_SECONDS, KILL_SECONDS = 10.0, 20.0
"""From SIGTERM to SIGKILL, and from there to giving up."""
HEAD = ("GPU", "name", "memory GB", "use", "power W", "cap W", "clock MHz", "memory MHz", "C", "slowed by")
UNKNOWN = "?"


class EndError(ValueError):
    """A process that is not ended here; the message says which, why, and what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0 shown or ended, 1 a driver or a process does not answer, 2 bad input."""
    options = _arguments(arguments)
    readings, errors = read_all()
    _show(readings, errors)
    processes = [one for reading in readings for one in reading.processes or ()]
    try:
        wanted = _wanted(options, processes)
    except EndError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if wanted and not options.yes and not _agreed(wanted):
        return 2
    left = end(wanted)
    for one in left:
        print(f"error: process {one.process_id} did not end; it waits for its device", file=sys.stderr)
    return 1 if left or errors else 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="shell/gpu.sh", description=__doc__)
    parser.add_argument(
        "--end", nargs="+", type=int, default=[], metavar="PID", help="end these processes, which hold a GPU"
    )
    parser.add_argument("--end-ours", action="store_true", help="end what jobs of this suite have left behind")
    parser.add_argument("--yes", action="store_true", help="do not ask before ending them")
    return parser.parse_args(arguments)


def read_all() -> tuple[list[GpuReading], list[str]]:
    """Return the reading of each vendor that has a tool here, and the errors of tools that do not answer."""
    readings, errors = [], []
    for platform in VENDORS:
        if not gpus.installed(platform):
            continue
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
    """Return the row of one GPU; what is not known is a question mark."""
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
    """Return the row of one process; of one in another container only the tool's own words are known."""
    found = owned.look_up(process.process_id)
    return (
        UNKNOWN if process.gpu is None else str(process.gpu),
        str(process.process_id),
        found.user if found else UNKNOWN,
        _number(process.memory_gb, 1),
        _whose(found),
        found.command if found else f"{process.name} (not to be seen from here: another container's, or gone)",
    )


def _whose(found: Owned | None) -> str:
    if found is None or found.job is None:
        return "-"
    return f"{found.job}, left behind" if found.is_left_behind else found.job


def _number(value: float | None, decimals: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:.{decimals}f}"


def _show(readings: Iterable[GpuReading], errors: Iterable[str]) -> None:
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    states = [gpu for reading in readings for gpu in reading.gpus]
    tools = ", ".join(tool for platform in VENDORS for tool in gpus.installed(platform))
    if states:
        print("\n".join(table([HEAD, *map(gpu_row, states)])))
    elif not errors:
        print(f"no GPU: {f'{tools} lists none' if tools else 'no nvidia-smi, amd-smi or rocm-smi is on PATH'}")
    for reading in readings:
        _show_processes(reading)
    on_gpus = {one.process_id for reading in readings for one in reading.processes or ()}
    for one in owned.left_behind():
        if one.process_id not in on_gpus:
            print(f"left behind by {one.job}, on no GPU: process {one.process_id}: {one.command}")


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


def _wanted(options: argparse.Namespace, processes: Sequence[GpuProcess]) -> list[Owned]:
    on_gpus = {one.process_id for one in processes}
    found = {process_id: _may_end(process_id, on_gpus) for process_id in options.end}
    if options.end_ours:
        found |= {one.process_id: one for one in owned.left_behind()}
        if not found:
            print("nothing was left behind by jobs of this suite")
    return list(found.values())


def _may_end(process_id: int, on_gpus: set[int]) -> Owned:
    found = owned.look_up(process_id)
    if found is None:
        raise EndError(f"--end {process_id}: no such process here; end one of another container from inside it")
    if found.user_id != os.getuid():
        raise EndError(f"--end {process_id}: belongs to {found.user}, and only your own processes are ended; ask them")
    if process_id not in on_gpus and not found.is_left_behind:
        raise EndError(f"--end {process_id}: holds no GPU and was not left behind by this suite; use kill for others")
    return found


def _agreed(wanted: Sequence[Owned]) -> bool:
    for one in wanted:
        print(f"to be ended: process {one.process_id}: {one.command}")
    if not sys.stdin.isatty():
        print("error: nobody to ask here; add --yes to end them", file=sys.stderr)
        return False
    print("End them? [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def end(wanted: Sequence[Owned]) -> list[Owned]:
    """End the processes, SIGTERM first and SIGKILL to what is left; return those that live on.

    A process descriptor stands for one process: a number that has gone to another one since is never signalled.
    """
    handles = {}
    try:
        for one in wanted:
            try:
                handles[one] = os.pidfd_open(one.process_id)
            except ProcessLookupError:
                continue
        left = [one for one in handles if _is_same(one)]
        for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            for one in left:
                try:
                    signal.pidfd_send_signal(handles[one], number)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + seconds
            while (left := [one for one in left if _is_same(one)]) and time.monotonic() < deadline:
                time.sleep(0.05)
        for one in handles:
            if one not in left:
                print(f"ended: process {one.process_id}: {one.command}")
        return left
    finally:
        for handle in handles.values():
            os.close(handle)


def _is_same(one: Owned) -> bool:
    now = owned.look_up(one.process_id)
    return now is not None and now.started == one.started


if __name__ == "__main__":
    sys.exit(main())
