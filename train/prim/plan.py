"""What a job of Primus needs before it starts: the installation, the YAML, where everything goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from train.job.job import Job
from train.prim import install as prim_install
from train.prim import yaml_config as prim_config
from train.prim.environment import check_visible
from train.prim.install import Primus
from train.prim.yaml_config import Rendered


@dataclass(frozen=True)
class Plan:
    """One training by Primus, nothing of it started yet."""

    primus: Primus
    gpu: str
    shipped: Path
    """AMD's YAML that ours is made from."""
    rendered: Rendered
    experiment: Path
    """Where our YAML is kept, beside the log."""
    train_log: Path
    """Where Primus keeps its own output."""
    workspace: Path
    """Where Primus keeps its files."""


def make(job: Job, gpu: str, log: Path) -> Plan:
    """Return the plan of a job; `gpu` is a name like MI300X, `log` the job's log.

    Raises ConfigError where Primus is missing, cannot be told what the job asks, or would take other GPUs.
    """
    check_visible(job.config.ranks_per_node)
    primus = prim_install.find()
    shipped = primus.shipped_path(job.model, job.config.precision, gpu)
    name = log.stem.removesuffix(f"_node{job.config.node_rank}")  # the same YAML on all nodes: they share the files
    workspace = log.with_name(f"{name}.primus")
    rendered = prim_config.render(primus, job.config, job.model, shipped, workspace, name)
    return Plan(
        primus=primus,
        gpu=gpu,
        shipped=shipped,
        rendered=rendered,
        experiment=log.with_suffix(".yaml"),
        train_log=log.with_suffix(".primus.log"),
        workspace=workspace,
    )
