"""A real Slurm cluster of two nodes inside this machine, on loopback, for as long as a block of a test lasts."""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo", "squeue")
PARTITION = "two"
PATIENCE_SECONDS = 600
PATH = f"{os.environ['PATH']}:/usr/sbin"
CONFIGURATION = """
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
JobAcctGatherType=jobacct_gather/none
SlurmdTimeout=10
InactiveLimit=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first_port} CPUs=2 RealMemory=16000 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second_port} CPUs=2 RealMemory=16000 State=UNKNOWN
PartitionName={partition} Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Return why no cluster can run here, None if one can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if absent:
        return f"no Slurm: {', '.join(absent)} not installed (apt-get install slurmctld slurmd slurm-client munge)"
    return None if os.geteuid() == 0 else "no Slurm: its daemons have to be started by root"


@contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the environment in which Slurm's commands find the cluster; its files are in `folder`.

    A node is lost when its slurmd (`node_process`) has not answered for 10 s, and is back when `node_back` starts it.
    """
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    with ExitStack() as stack:  # three ports that are free
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [listener.getsockname()[1] for listener in listeners]
    named = dict(zip(("controller_port", "first_port", "second_port"), ports, strict=True))
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(host=platform.node().split(".")[0], folder=folder, partition=PARTITION, **named)
    )
    environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(configuration)}
    munge = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("key-file", "log-file", "pid-file")]
    munge += [f"--seed-file={folder}/munge.seed", f"--socket={folder}/munge.socket", "--force", "--foreground"]
    commands = [
        ["munged", *munge],
        ["slurmctld", "-D", "-i"],
        ["slurmd", "-D", "-N", "n1"],
        ["slurmd", "-D", "-N", "n2"],
    ]
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            stack.enter_context(_daemon(command, environment, folder / f"{number}_{command[0]}.log"))
            if command[0] == "munged":
                _wait_for((folder / "munge.socket").exists, folder)
        _wait_for(lambda: _idle_nodes(environment) == 2, folder)
        yield environment


def node_process(environment: dict[str, str], node: str) -> int:
    """Return the process id of a node's slurmd."""
    return int((Path(environment["SLURM_CONF"]).parent / f"slurmd-{node}.pid").read_text())


def has_step_processes(job: str) -> bool:
    """Return whether a step of a job is still running on either node, also on one whose slurmd was killed."""
    titles = (" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
    return any(title.startswith(f"slurmstepd: [{job}.") for title in titles)


@contextmanager
def node_back(environment: dict[str, str], node: str) -> Iterator[None]:
    """Start the slurmd of a node, unless it runs already, for the duration of the block."""
    folder = Path(environment["SLURM_CONF"]).parent
    with ExitStack() as stack:
        if not _runs(environment, node):
            stack.enter_context(_daemon(["slurmd", "-D", "-N", node], environment, folder / f"again_{node}.log"))
        _wait_for(lambda: _idle_nodes(environment) == 2, folder)
        yield


def _runs(environment: dict[str, str], node: str) -> bool:
    try:
        return "slurmd" in Path(f"/proc/{node_process(environment, node)}/cmdline").read_text()
    except FileNotFoundError:  # ended, and has taken its file along if it was asked to end
        return False


@contextmanager
def _daemon(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _idle_nodes(environment: dict[str, str]) -> int:
    answer = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%T"], env=environment, capture_output=True, text=True, timeout=600
    )
    return answer.stdout.split().count("idle")


def _wait_for(is_true: Callable[[], bool], folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*.log")))
            raise TimeoutError(f"the cluster did not come up:\n{logs}")
        time.sleep(0.2)
