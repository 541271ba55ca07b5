"""Bus bandwidth follows nccl-tests; two real gloo ranks are measured; one rank has nothing to measure."""

import json
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from train.probing import collectives
from utils.settings.config import ROOT


@pytest.mark.parametrize(
    ("name", "ranks", "wanted"),
    # nccl-tests, doc/PERFORMANCE.md: all-reduce S/t * 2(n-1)/n, all-gather and reduce-scatter S/t * (n-1)/n
    [
        ("all_reduce", 8, 100 * 2 * 7 / 8),
        ("all_gather", 8, 87.5),
        ("reduce_scatter", 8, 87.5),
        ("all_reduce", 2, 100.0),
    ],
)
def test_the_bus_bandwidth_is_that_of_nccl_tests(name, ranks, wanted):
    assert collectives.bus_gb_per_second(name, 10**9, 0.01, ranks) == pytest.approx(wanted)


def test_sizes_go_from_one_mebibyte_to_the_largest_of_the_jobs():
    sent = [{"name": "all_gather", "bytes": 50 * 2**20}, {"name": "send", "bytes": 2**40}]
    assert [size / 2**20 for size in collectives.sizes_of(sent, "cpu")] == [1, 4, 16, 50]
    assert collectives.sizes_of([{"name": "all_reduce", "bytes": 8}], "cpu") == [2**20]
    assert collectives.sizes_of([], "cpu")[-1] == collectives.USUAL_BYTES
    assert collectives.sizes_of([{"name": "all_reduce", "bytes": 2**50}], "cpu")[-1] == 2**28


def test_two_ranks_of_this_machine_exchange_for_real():
    rows = collectives.on_this_machine("cpu", 2, [2**20, 2**21], 0.2, 1)
    assert [(one["name"], one["bytes"]) for one in rows] == [
        (name, size) for name in collectives.NAMES for size in (2**20, 2**21)
    ]
    for one in rows:
        assert (one["ranks"], one["nodes"]) == (2, 1) and one["seconds"] > 0
        wanted = collectives.bus_gb_per_second(one["name"], one["bytes"], one["seconds"], 2)
        assert one["bus_gb_per_second"] == pytest.approx(wanted, rel=1e-3)


def test_one_rank_is_a_reason():
    with pytest.raises(collectives.CollectiveError, match="one rank"):
        collectives.on_this_machine("cpu", 1, [2**20], 0.1, 1)


class Process:
    """A process that ended with an error."""

    exitcode = 3

    def __init__(self, **_):
        self.start = self.kill = self.join = lambda: None

    def is_alive(self):
        return False


def test_ranks_that_fail_are_a_reason(monkeypatch):
    monkeypatch.setattr(collectives.multiprocessing, "get_context", lambda _: SimpleNamespace(Process=Process))
    with pytest.raises(collectives.CollectiveError, match="ended with codes 3, 3"):
        collectives.on_this_machine("cpu", 2, [2**20], 0.1, 1)


WORLD = """
import json, sys
from train.probing import collectives
rows = collectives.in_this_world("cpu", [2**20] if collectives.world()[0] == 0 else None, 0.05)
if collectives.world()[0] == 0:
    json.dump(rows, open(sys.argv[1], "w"))
else:
    assert rows == []
"""


def test_under_torchrun_its_processes_are_the_ranks_of_all_nodes_and_of_one(tmp_path):
    program, found = tmp_path / "program.py", tmp_path / "rows.json"
    program.write_text(WORLD)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(4):  # two nodes of two ranks each, on this machine
        world = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
        known = {name: str(value) for name, value in world.items()} | {
            "MASTER_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
        }
        environment = os.environ | known | {"PYTHONPATH": str(ROOT)}
        processes.append(subprocess.Popen([sys.executable, str(program), str(found)], env=environment, cwd=ROOT))
    assert [process.wait(timeout=120) for process in processes] == [0] * 4
    rows = json.loads(found.read_text())
    assert [(one["name"], one["ranks"], one["nodes"]) for one in rows] == [
        *((name, 4, 2) for name in collectives.NAMES),
        *((name, 2, 1) for name in collectives.NAMES),
    ]
