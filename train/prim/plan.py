"""The plan of a Primus job: the installation, the YAML, and the paths of its files."""

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
    """One training by Primus, not started yet."""

    primus: Primus
    gpu: str
    shipped: Path
    """AMD's YAML from which ours is made."""
    rendered: Rendered
    experiment: Path
    """Our YAML, beside the log."""
    train_log: Path
    """File of Primus's own output."""
    workspace: Path
    """Folder of Primus's files."""


def make(job: Job, gpu: str, log: Path) -> Plan:
    """Return the plan of a job; `gpu` is a name like MI300X, `log` the job's log.

    Raises ConfigError where Primus is missing, lacks a key that the job needs, or would take other GPUs.
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
