"""The nodes of one job: they meet in OUTPUT_DIR, agree on the attempt, and report to node 0 how each of them ended.

They exchange files, because OUTPUT_DIR must be the same folder on all of them anyway: the rank that writes the result
may run on any node, and node 0 finalizes it. Each node rewrites its file again and again, so that a file of an earlier
job is not taken for a waiting node. When all nodes are there, node 0 writes what applies to all of them.
"""

from __future__ import annotations

import itertools
import json
import platform
import secrets
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from signal import Signals
from typing import Any

from train.job import processes
from train.job.job import Job, machine
from train.job.supervise import Ending
from utils.own_files import anything
from utils.results.store import write_json

POLL_SECONDS = 0.5
ENDINGS_SECONDS = 20.0
"""Longest time that node 0 waits for the reports of the others after the end of its own ranks, or until those that it
refuses have read so: the time that torchrun gives its ranks to end by themselves, and the delay of a network file
system."""
REPORTED = ("exit_code", "last_lines", "stopped_by", "overdue", "signals", "kernel_oom_kills")
"""Fields of `Ending` that a node reports."""


class NodesError(RuntimeError):
    """The nodes of a job did not come together; the message names the missing ones and what to do."""


@dataclass(frozen=True)
class Meeting:
    """Attempt, session and hosts, which are the same for all nodes of a job."""

    attempt: int
    session: str
    hosts: tuple[str, ...]
    """In the order of NODE_RANK."""


def folder(job: Job) -> Path:
    """Return the folder in which the nodes of a job meet; it exists only while they run."""
    return job.config.output_dir / "logs" / f".{job.labelled}.nodes"


VARIABLES = ("TPRIMAT_MACHINE", "TPRIMAT_HOSTS")
"""Names of the variables that `environment` returns."""


def environment(job: Job, meeting: Meeting) -> dict[str, str]:
    """Return the environment variables from which the ranks of each node take machine and hosts for the result."""
    return dict(zip(VARIABLES, (machine(job.config), ",".join(meeting.hosts)), strict=True))


def gather(job: Job, identity: str, limit_seconds: float, stop: processes.StopRequest) -> Meeting:
    """On node 0, wait until every other node is there and let them start; raise NodesError.

    `identity` is the job's identity on this node; a node with other settings, data or code is refused.
    """
    place = folder(job)
    for stale in (place / "start.json", *place.glob("ended*.json")):
        stale.unlink(missing_ok=True)
    here = _wait_for_all(job, limit_seconds, stop)
    hosts, nonces, different = [platform.node()], {}, []
    for node, announced in here.items():
        hosts.append(announced["host"])
        nonces[str(node)] = announced["nonce"]
        if announced["identity"] != identity:
            different.append(f"node {node} ({announced['host']})")
    error = None
    if different:
        error = f"{', '.join(different)}: not the settings, data or code of node 0; make them equal"
    meeting = Meeting(job.attempt, secrets.token_hex(6), tuple(hosts))
    write_json(asdict(meeting) | {"nonces": nonces, "error": error}, place / "start.json", is_ours=anything)
    if error is not None:
        files = [place / f"node{node}.json" for node in here]  # each node removes its own when it has read that
        processes.wait_until(lambda: not any(path.exists() for path in files), ENDINGS_SECONDS, stop, POLL_SECONDS)
        raise NodesError(error)
    return meeting


def _wait_for_all(job: Job, limit_seconds: float, stop: processes.StopRequest) -> dict[int, dict[str, Any]]:
    """Return the file of each other node, by its number; a node counts once its file has been seen to change."""
    first: dict[int, dict[str, Any]] = {}
    here: dict[int, dict[str, Any]] = {}

    def are_there() -> bool:
        for node in set(range(1, job.config.nodes)) - here.keys():
            current = _read(folder(job) / f"node{node}.json")
            # a node that waits rewrites its file; one of an earlier job stays as it is
            if current is not None and current != first.setdefault(node, current):
                here[node] = current
        return len(here) == job.config.nodes - 1

    if not processes.wait_until(are_there, limit_seconds, stop, POLL_SECONDS):
        numbers = [str(node) for node in range(1, job.config.nodes) if node not in here]
        missing = f"node{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
        why = f"{missing} of {job.config.nodes} did not come"
        raise _given_up(job, missing, f"{why} within {limit_seconds:g} s", "its own NODE_RANK", stop)
    return dict(sorted(here.items()))


def _given_up(job: Job, who: str, why: str, rank: str, stop: processes.StopRequest) -> NodesError:
    """Return the error of a node that no longer waits for `who`."""
    if stop.signal is not None:
        return NodesError(f"interrupted by {stop.signal.name} while waiting for {who}")
    return NodesError(
        f"{why} (START_TIMEOUT_SECONDS): start the same command there with {rank}; OUTPUT_DIR="
        f"{job.config.output_dir} must be the same folder on all nodes"
    )


def join(job: Job, identity: str, limit_seconds: float, stop: processes.StopRequest) -> Meeting:
    """On a node other than 0, announce this node until node 0 lets it start; raise NodesError."""
    place, node = folder(job), job.config.node_rank
    me = {"nonce": secrets.token_hex(6), "host": platform.node(), "identity": identity}
    beats, start = itertools.count(1), dict[str, Any]()

    def may_start() -> bool:
        write_json(me | {"beat": next(beats)}, place / f"node{node}.json", is_ours=anything)
        start.update(_read(place / "start.json") or {"nonces": {}})
        return start["nonces"].get(str(node)) == me["nonce"]

    if not processes.wait_until(may_start, limit_seconds, stop, POLL_SECONDS):
        why = f"node 0 ({job.config.master_addr}) did not answer within {limit_seconds:g} s"
        raise _given_up(job, "node 0", why, "NODE_RANK=0", stop)
    if start["error"] is not None:
        (place / f"node{node}.json").unlink(missing_ok=True)
        raise NodesError(start["error"])
    return Meeting(start["attempt"], start["session"], tuple(start["hosts"]))


def report_ending(job: Job, meeting: Meeting, ending: Ending) -> None:
    """Report to node 0 how this node's ranks ended; do nothing if node 0 does not wait any more."""
    place = folder(job)
    if place.is_dir():
        report = {key: getattr(ending, key) for key in REPORTED} | {"session": meeting.session}
        write_json(report, place / f"ended{job.config.node_rank}.json", is_ours=anything)


def collect_endings(job: Job, meeting: Meeting, ending: Ending, stop: processes.StopRequest) -> Ending:
    """On node 0, return the ending together with the reports of the other nodes, once all are there or time is up."""
    reports: dict[int, dict[str, Any]] = {}
    others = range(1, job.config.nodes)

    def are_there() -> bool:
        for node in others:
            # one of an earlier session of the job may still be there
            report = _read(folder(job) / f"ended{node}.json")
            if report and report["session"] == meeting.session:
                reports[node] = report
        return len(reports) == len(others)

    # a node that died does not report, so the wait ends after a while
    processes.wait_until(are_there, ENDINGS_SECONDS, stop, POLL_SECONDS / 2)
    last_lines, overdue, oom_kills = list(ending.last_lines), ending.overdue, ending.kernel_oom_kills
    signals = dict(ending.signals)
    for node, report in reports.items():
        last_lines += [f"node {node}: {line}" for line in report["last_lines"]]
        if report["overdue"] and overdue is None:
            overdue = f"node {node} ({meeting.hosts[node]}): {report['overdue']}"
        oom_kills += report["kernel_oom_kills"]
        for rank, number in report["signals"].items():
            signals.setdefault(int(rank), Signals(number))
    failures = [_failure(node, meeting, reports.get(node), ending) for node in others]
    return replace(
        ending,
        last_lines=last_lines,
        overdue=overdue,
        signals=signals,
        kernel_oom_kills=oom_kills,
        nodes=[failure for failure in failures if failure is not None],
    )


def close(job: Job) -> None:
    """Remove the meeting folder; node 0 does this last."""
    shutil.rmtree(folder(job), ignore_errors=True)


def _failure(node: int, meeting: Meeting, report: dict[str, Any] | None, ending: Ending) -> str | None:
    """Return how another node failed, None if it did not; without a report that is unknown where node 0 ended well."""
    who = f"node {node} ({meeting.hosts[node]})"
    if report is None:
        if ending.exit_code == 0 or ending.stopped_by is not None:
            return None
        return f"{who} did not say how it ended: the machine, its launcher or the network is gone"
    if report["stopped_by"] is not None:
        return f"{who} was interrupted by {Signals(report['stopped_by']).name}"
    code = int(report["exit_code"])
    if code == 0:
        return None
    if code < 0:
        who = f"the launcher of the ranks on {who}"
    return f"{who} {processes.how_ended(code)}"


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of a file of a meeting, None if it is not there yet or is being written."""
    try:
        return dict(json.loads(path.read_text(encoding="utf8")))
    except (OSError, ValueError):
        return None
