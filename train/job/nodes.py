"""The nodes of one job: they meet in OUTPUT_DIR, agree on the attempt, and tell node 0 how each of them ended.

They meet in files, because OUTPUT_DIR has to be the same folder on all of them anyway: the rank that holds the result
may run on any node, and node 0 accounts for all. Each node says again and again that it is there, so what an earlier
job left behind is not taken for one that waits. When nobody is missing, node 0 answers with what holds for all.
"""

from __future__ import annotations

import json
import platform
import secrets
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from signal import Signals
from typing import Any

from train.job import processes
from train.job.job import Job, machine
from train.job.supervise import Ending
from utils.results.store import write_json

POLL_SECONDS = 0.5
ENDINGS_SECONDS = 20.0
"""How long node 0 waits, when its own ranks have ended, to hear how the others did: the time that torchrun gives its
ranks to end by themselves, and what a network file system takes to show a new file."""
TOLD = ("exit_code", "last_lines", "stopped_by", "overdue", "signals", "kernel_oom_kills")
"""What a node tells of its ending."""


class NodesError(RuntimeError):
    """The nodes of a job have not come together; the message says who is missing and what to do."""


@dataclass(frozen=True)
class Meeting:
    """What holds for all nodes of a job."""

    attempt: int
    session: str
    hosts: tuple[str, ...]
    """By number of the node."""


def folder(job: Job) -> Path:
    """Return where the nodes of a job meet; it is gone when none of them runs."""
    label = f"{job.config.label}_" if job.config.label else ""
    return job.config.output_dir / "logs" / f".{label}{job.name}.nodes"


def environment(job: Job, meeting: Meeting) -> dict[str, str]:
    """Return what the ranks of each node have to know for a result that says where it comes from."""
    return {"TPRIMAT_MACHINE": machine(job.config), "TPRIMAT_HOSTS": ",".join(meeting.hosts)}


def gather(job: Job, identity: str, limit_seconds: float, stop: processes.StopRequest) -> Meeting:
    """Wait, on node 0, until every other node is there, and tell them to start; raise NodesError.

    `identity` is the job's on this node: a node with other settings, data or code is not let in.
    """
    place = folder(job)
    for stale in (place / "start.json", *place.glob("ended*.json")):
        stale.unlink(missing_ok=True)
    here = _wait_for_all(job, limit_seconds, stop)
    meeting = Meeting(job.attempt, secrets.token_hex(6), (platform.node(), *(said["host"] for said in here.values())))
    strangers = [f"node {node} ({said['host']})" for node, said in here.items() if said["identity"] != identity]
    error = f"{', '.join(strangers)}: not the settings, data or code of node 0; make them equal" if strangers else None
    nonces = {str(node): said["nonce"] for node, said in here.items()}
    write_json(asdict(meeting) | {"nonces": nonces, "error": error}, place / "start.json")
    if error is not None:
        raise NodesError(error)
    return meeting


def _wait_for_all(job: Job, limit_seconds: float, stop: processes.StopRequest) -> dict[int, dict[str, Any]]:
    """Return what each of the other nodes says of itself, by its number; one counts once it is seen to say it again."""
    first: dict[int, dict[str, Any]] = {}
    here: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + limit_seconds
    while missing := [node for node in range(1, job.config.nodes) if node not in here]:
        for node in missing:
            said = _read(folder(job) / f"node{node}.json")
            if said is not None and said != first.setdefault(node, said):
                here[node] = said
        if stop.signal is not None:
            raise NodesError(f"interrupted by {stop.signal.name} while waiting for {_numbers(missing)}")
        if time.monotonic() > deadline:
            raise NodesError(
                f"{_numbers(missing)} of {job.config.nodes} did not come within {limit_seconds:g} s "
                "(START_TIMEOUT_SECONDS): start the same command there with its own NODE_RANK; OUTPUT_DIR="
                f"{job.config.output_dir} must be the same folder on all nodes"
            )
        time.sleep(POLL_SECONDS)
    return dict(sorted(here.items()))


def join(job: Job, identity: str, limit_seconds: float, stop: processes.StopRequest) -> Meeting:
    """Say, on another node than 0, that this one is there, until node 0 says start; raise NodesError."""
    place, node, nonce, beat = folder(job), job.config.node_rank, secrets.token_hex(6), 0
    deadline = time.monotonic() + limit_seconds
    while True:
        beat += 1
        me = {"nonce": nonce, "beat": beat, "host": platform.node(), "identity": identity}
        write_json(me, place / f"node{node}.json")
        start = _read(place / "start.json")
        if start is not None and start["nonces"].get(str(node)) == nonce:
            break
        if stop.signal is not None:
            raise NodesError(f"interrupted by {stop.signal.name} while waiting for node 0")
        if time.monotonic() > deadline:
            raise NodesError(
                f"node 0 ({job.config.master_addr}) did not answer within {limit_seconds:g} s (START_TIMEOUT_SECONDS): "
                f"start the same command there with NODE_RANK=0; OUTPUT_DIR={job.config.output_dir} must be the same "
                "folder on all nodes"
            )
        time.sleep(POLL_SECONDS)
    if start["error"] is not None:
        raise NodesError(start["error"])
    return Meeting(start["attempt"], start["session"], tuple(start["hosts"]))


def tell(job: Job, meeting: Meeting, ending: Ending) -> None:
    """Let node 0 know how this node's ranks ended; does nothing where node 0 waits no longer."""
    place = folder(job)
    if place.is_dir():
        said = {key: getattr(ending, key) for key in TOLD} | {"session": meeting.session}
        write_json(said, place / f"ended{job.config.node_rank}.json")


def account(job: Job, meeting: Meeting, ending: Ending, stop: processes.StopRequest) -> Ending:
    """Return, on node 0, the ending with what the other nodes tell of theirs, once all have or the wait is over."""
    told: dict[int, dict[str, Any]] = {}
    deadline = time.monotonic() + ENDINGS_SECONDS
    others = range(1, job.config.nodes)
    while len(told) < len(others) and time.monotonic() < deadline and not stop:
        for node in others:
            said = _read(folder(job) / f"ended{node}.json")
            if said is not None and said["session"] == meeting.session:
                told[node] = said
        time.sleep(POLL_SECONDS / 2)
    overdue = (
        f"node {node} ({meeting.hosts[node]}): {said['overdue']}" for node, said in told.items() if said["overdue"]
    )
    signals = {int(rank): Signals(number) for said in told.values() for rank, number in said["signals"].items()}
    return replace(
        ending,
        last_lines=ending.last_lines + [f"node {node}: {line}" for node in told for line in told[node]["last_lines"]],
        overdue=ending.overdue or next(overdue, None),
        signals=signals | ending.signals,
        kernel_oom_kills=ending.kernel_oom_kills + sum(said["kernel_oom_kills"] for said in told.values()),
        nodes=[line for node in others if (line := _bad_news(node, meeting, told.get(node), ending)) is not None],
    )


def close(job: Job) -> None:
    """Take the meeting place away; node 0 does it last."""
    shutil.rmtree(folder(job), ignore_errors=True)


def _bad_news(node: int, meeting: Meeting, said: dict[str, Any] | None, ending: Ending) -> str | None:
    who = f"node {node} ({meeting.hosts[node]})"
    if said is None:
        if ending.exit_code == 0 or ending.stopped_by is not None:
            return None
        return f"{who} did not say how it ended: the machine, its launcher or the network is gone"
    if said["stopped_by"] is not None:
        return f"{who} was interrupted by {Signals(said['stopped_by']).name}"
    if said["exit_code"] < 0:
        return f"the launcher of the ranks on {who} was ended by {Signals(-said['exit_code']).name}"
    return f"{who} ended with exit code {said['exit_code']}" if said["exit_code"] else None


def _numbers(nodes: list[int]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"


def _read(path: Path) -> dict[str, Any] | None:
    """Return what a file of a meeting says, None where it is not there (yet)."""
    try:
        return dict(json.loads(path.read_text(encoding="utf8")))
    except (OSError, ValueError):
        return None
