"""Collectives between ranks: all-reduce, all-gather and reduce-scatter over sizes, with their bus bandwidth.

On one machine the ranks are processes that are started here, with gloo on a CPU and NCCL or RCCL on GPUs. When the
probe itself was started by torchrun, the ranks are its processes, on all nodes. Bus bandwidth is size over time, times
2 (n - 1) / n for all-reduce and (n - 1) / n for the other two, where size is the larger of input and output of a rank;
it does not depend on the number of ranks n if the slowest link limits. Source: NVIDIA nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from train.probing.rates import LEAST_SAMPLES, median, short

NAMES = ("all_reduce", "all_gather", "reduce_scatter")
SIZES = {"cpu": tuple(2**power for power in (20, 22, 24, 26)), "cuda": tuple(2**power for power in range(20, 31, 2))}
"""Bytes of the larger of input and output of a rank, by the kind of device."""
TIMEOUT = timedelta(seconds=600)
MOST_ROUNDS = 200
ONE_RANK = "one rank has nothing to exchange"


class CollectiveError(RuntimeError):
    """Collectives could not be measured; the message is the reason."""


def bus_gb_per_second(name: str, size: int, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth of one call, in GB/s."""
    return size / seconds / 1e9 * (2 if name == "all_reduce" else 1) * (ranks - 1) / ranks


def on_this_machine(
    platform: str, ranks: int, sizes: Sequence[int], seconds: float, threads: int | None
) -> list[dict[str, Any]]:
    """Return the rows of the file for `ranks` processes of this machine; raise CollectiveError."""
    if ranks < 2:
        raise CollectiveError(ONE_RANK)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (platform, ranks, folder, list(sizes), seconds, threads)
        processes = [context.Process(target=_rank, args=(rank, *arguments), daemon=True) for rank in range(ranks)]
        for process in processes:
            process.start()
        deadline = time.monotonic() + TIMEOUT.total_seconds()
        while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
            if any(process.exitcode for process in processes):
                break  # the others would wait for it
            time.sleep(0.05)
        for process in processes:
            process.kill()
            process.join()
        found = Path(folder) / "rows.json"
        if not found.exists():
            codes = ", ".join(str(process.exitcode) for process in processes)
            raise CollectiveError(f"the ranks ended with codes {codes}")
        rows: list[dict[str, Any]] = json.loads(found.read_text(encoding="utf8"))
    return rows


def _rank(
    rank: int, platform: str, ranks: int, folder: str, sizes: list[int], seconds: float, threads: int | None
) -> None:
    """Take part as one rank; rank 0 writes the rows."""
    warnings.simplefilter("ignore")  # of torch about gloo
    if threads is not None:
        torch.set_num_threads(threads)
    device = _device(platform, rank)
    backend = "gloo" if platform == "cpu" else "nccl"
    dist.init_process_group(
        backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks, timeout=TIMEOUT
    )
    rows = _rows(device, sizes, seconds, nodes=1)
    if rank == 0:
        (Path(folder) / "rows.json").write_text(json.dumps(rows), encoding="utf8")
    dist.barrier()
    dist.destroy_process_group()


def world() -> tuple[int, int]:
    """Return this process's number and the number of all, as torchrun gave them; 0 and 1 without torchrun."""
    return _number("RANK", 0), _number("WORLD_SIZE", 1)


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise


def in_this_world(platform: str, sizes: Sequence[int] | None, seconds: float) -> list[dict[str, Any]]:
    """Return the rows for the processes of torchrun: of all together, and of several nodes also those of one node.

    Every process calls it; `sizes` and `seconds` are those of number 0, which alone gets the rows.
    """
    rank, ranks = world()
    local = _number("LOCAL_WORLD_SIZE", ranks)
    device = _device(platform, _number("LOCAL_RANK", 0))
    dist.init_process_group("gloo" if platform == "cpu" else "nccl", timeout=timedelta(hours=2))
    plan: list[Any] = [list(sizes or ()), seconds]
    dist.broadcast_object_list(plan, src=0)
    rows = _rows(device, plan[0], plan[1], ranks // local)
    if 1 < local < ranks:
        rows += _rows(device, plan[0], plan[1], 1, dist.new_subgroups(local)[0])
    dist.barrier()
    dist.destroy_process_group()
    return rows if rank == 0 else []


def _device(platform: str, local_rank: int) -> torch.device:
    if platform == "cpu":
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _rows(
    device: torch.device, sizes: Sequence[int], seconds: float, nodes: int, group: Any = None
) -> list[dict[str, Any]]:
    ranks, found = dist.get_world_size(group), []
    for name in NAMES:
        for size in sizes:
            whole = torch.ones(max(1, size // 4 // ranks) * ranks, device=device)
            samples = _samples(_operation(name, whole, group), device, group, seconds / len(NAMES) / len(sizes))
            middle, moved = median(samples), whole.nbytes
            found.append(
                {
                    **{"name": name, "bytes": moved, "ranks": ranks, "nodes": nodes},
                    "seconds": float(f"{middle.seconds:.6g}"),
                    "spread_percent": round(middle.spread_percent, 2),
                    "bus_gb_per_second": short(bus_gb_per_second(name, moved, middle.seconds, ranks)),
                }
            )
    return found


def _operation(name: str, whole: torch.Tensor, group: Any) -> Callable[[], Any]:
    part = torch.ones(whole.numel() // dist.get_world_size(group), device=whole.device)
    return {
        "all_reduce": lambda: dist.all_reduce(whole, op=dist.ReduceOp.MAX, group=group),  # sums would grow
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
    }[name]


def _samples(run: Callable[[], Any], device: torch.device, group: Any, seconds: float) -> list[float]:
    """Return the seconds of each round, those of the slowest rank."""
    for _ in range(2):
        run()
    taken = _timed(run, device, group)
    count = torch.tensor(float(min(MOST_ROUNDS, max(LEAST_SAMPLES, seconds / max(taken, 1e-6)))), device=device)
    dist.all_reduce(count, op=dist.ReduceOp.MIN, group=group)  # all ranks do the same number of rounds
    times = torch.tensor([_timed(run, device, group) for _ in range(int(count))], dtype=torch.float64, device=device)
    dist.all_reduce(times, op=dist.ReduceOp.MAX, group=group)
    return [float(one) for one in times]


def _timed(run: Callable[[], Any], device: torch.device, group: Any) -> float:
    dist.barrier(group)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
