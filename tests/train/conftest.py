"""A made-up machine for jobs, whose tools, files and limits are those that a test gives it; a copy of the checkout."""

from __future__ import annotations

import resource
import shutil

import pytest
from checkout import ROOT
from smi_machine import Machine

from tests.support.launching import Launcher

LIMITS = {resource.RLIMIT_NOFILE: 65536}


@pytest.fixture
def limits(monkeypatch):
    """The limits of a process that a test may change; what is not named has none."""
    found, infinite = LIMITS.copy(), resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (found.get(which, infinite), infinite))
    return found


@pytest.fixture
def host(tmp_path, monkeypatch, limits):
    """A machine without any file or tool, with the usual limits of a process."""
    (tmp_path / "machine").mkdir()
    made = Machine(tmp_path / "machine")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("NODE_RANK", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return made


@pytest.fixture
def job(host, tmp_path, monkeypatch):
    return Launcher(tmp_path, monkeypatch)


@pytest.fixture
def checkout(tmp_path):
    """A copy of the checkout that a test can edit."""
    copy = tmp_path / "checkout"
    for folder in ("utils", "data", "train", "evaluate", "shell"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("config*.env"), *ROOT.glob("*-requirements.txt")):
        shutil.copy(path, copy)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    return copy
