"""Collectives between ranks: all-reduce, all-gather and reduce-scatter over sizes, with their bus bandwidth.

    python -m train.probing.collectives PLATFORM SECONDS FILE.json      under torchrun

The ranks are the processes of torchrun, on all its nodes, with gloo on a CPU and NCCL or RCCL on GPUs; a probe that was
not started by torchrun starts it for the ranks of one machine. Bus bandwidth is size over time, times 2 (n - 1) / n for
all-reduce and (n - 1) / n for the other two, where size is the larger of input and output of a rank; it does not depend
on the number of ranks n if the slowest link limits. Source: NVIDIA nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from train.probing.rates import short, spread_percent
from utils.settings.config import ROOT

SIZES = {"cpu": tuple(2**power for power in (20, 22, 24, 26)), "cuda": tuple(2**power for power in range(20, 31, 2))}
"""Bytes of the larger of input and output of a rank, by the kind of device."""
Row = dict[str, Any]
"""One collective of one size, as a row of the file."""
TIMEOUT_SECONDS = 600
LEAST_ROUNDS, MOST_ROUNDS = 6, 200


OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor, Any], Any]] = {
    # sums would grow
    "all_reduce": lambda whole, part, group: dist.all_reduce(whole, op=dist.ReduceOp.MAX, group=group),
    "all_gather": lambda whole, part, group: dist.all_gather_into_tensor(whole, part, group=group),
    "reduce_scatter": lambda whole, part, group: dist.reduce_scatter_tensor(part, whole, group=group),
}
"""Calls of torch.distributed with the larger and the smaller of input and output of a rank, and the group."""


def bus_gb_per_second(name: str, size: int, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth of one call, in GB/s."""
    # an all-reduce is a reduce-scatter and an all-gather
    passes = 2 if name == "all_reduce" else 1
    return passes * size / seconds / 1e9 * (ranks - 1) / ranks


def on_this_machine(platform: str, ranks: int, seconds: float, threads: int | None) -> list[Row]:
    """Return the rows of the file for `ranks` processes of this machine; raise RuntimeError with the reason."""
    if ranks < 2:
        raise RuntimeError("one rank has nothing to exchange")
    environ = dict(os.environ)
    if threads is not None:
        environ["OMP_NUM_THREADS"] = str(threads)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        command = [*launcher, "-m", __name__, platform, str(seconds), str(rows)]
        try:
            ended = subprocess.run(
                command, cwd=ROOT, env=environ, capture_output=True, timeout=TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"the ranks did not end within {TIMEOUT_SECONDS} s") from error
        if ended.returncode:
            raise RuntimeError(f"torchrun ended with exit code {ended.returncode}")
        return list(json.loads(rows.read_text(encoding="utf8")))


def world() -> tuple[int, int]:
    """Return this process's number and the number of all, as torchrun gave them; 0 and 1 without torchrun."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def in_this_world(platform: str, seconds: float) -> list[Row]:
    """Return the rows for the processes of torchrun: of all together, and of several nodes also those of one node.

    Every process calls it; `seconds` is that of number 0, which alone gets the rows.
    """
    rank, ranks = world()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    # the other ranks wait here while number 0 measures its own device
    timeout = timedelta(hours=2)
    if platform == "cpu":
        device = torch.device("cpu")
        dist.init_process_group("gloo", timeout=timeout)
    else:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=timeout, device_id=device)  # else torch guesses it, and warns
    plan = [seconds]
    dist.broadcast_object_list(plan, src=0)
    rows = list(_rows(device, plan[0], ranks // local))
    if 1 < local < ranks:
        rows += _rows(device, plan[0], 1, dist.new_subgroups(local)[0])
    dist.barrier()
    dist.destroy_process_group()
    return rows if rank == 0 else []


def _rows(device: torch.device, seconds: float, nodes: int, group: Any = None) -> Iterator[Row]:
    ranks, sizes = dist.get_world_size(group), SIZES[device.type]
    for name in OPERATIONS:
        for size in sizes:
            whole = torch.ones(max(1, size // 4 // ranks) * ranks, device=device)
            part = torch.ones(whole.numel() // ranks, device=device)
            run = partial(OPERATIONS[name], whole, part, group)
            times = _rounds(run, device, group, seconds / len(OPERATIONS) / len(sizes))
            middle = statistics.median(times)
            yield {
                "name": name,
                "bytes": whole.nbytes,
                "ranks": ranks,
                "nodes": nodes,
                "seconds": float(f"{middle:.6g}"),
                "spread_percent": spread_percent(times),
                "bus_gb_per_second": short(bus_gb_per_second(name, whole.nbytes, middle, ranks)),
            }


def _rounds(run: Callable[[], Any], device: torch.device, group: Any, seconds: float) -> Sequence[float]:
    """Return the seconds of each round, those of the slowest rank; all ranks do the same number of rounds."""
    warm = [_timed(run, device, group) for _ in range(3)][-1]
    wanted = min(MOST_ROUNDS, max(LEAST_ROUNDS, int(seconds / max(warm, 1e-6))))
    # each rank has its own clock, and one round more of one rank would wait for ever
    count = torch.tensor(wanted, device=device)
    dist.all_reduce(count, op=dist.ReduceOp.MIN, group=group)
    # a collective ends when its slowest rank ends
    times = torch.tensor([_timed(run, device, group) for _ in range(int(count))], dtype=torch.float64, device=device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX, group=group)
    return times.tolist()


def _timed(run: Callable[[], Any], device: torch.device, group: Any) -> float:
    dist.barrier(group)
    _wait(device)
    start = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    ROWS = in_this_world(sys.argv[1], float(sys.argv[2]))
    if ROWS:
        Path(sys.argv[3]).write_text(json.dumps(ROWS), encoding="utf8")
