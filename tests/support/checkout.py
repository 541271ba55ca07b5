"""Where the checkout under test lies, its settings, and copies of it for a user who has nothing installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from utils.settings import config

ROOT = Path(__file__).resolve().parents[2]
OF_PIP = ("PIP_", "SSL_CERT_", "REQUESTS_CA_BUNDLE")
"""Beginnings of the variables by which pip finds its index; they stay, and so do its settings file and its cache."""
SYSTEM = ("/usr/bin", "/bin")


def settings_of(*settings: str, platform: str = "cpu", gpus: int | None = None, **options: Any) -> config.RunConfig:
    """Return the checked settings of a job, as every command loads them; a string may hold several KEY=VALUE."""
    arguments = [word for setting in settings for word in setting.split()]
    return config.load(platform, gpus, arguments=arguments, environ={}, **options)


def copy_to(root: Path, *patterns: str) -> Path:
    """Copy files and folders of this checkout that match a pattern to the same places below another root."""
    for path in [path for pattern in patterns for path in ROOT.glob(pattern)]:
        target = root / path.relative_to(ROOT)
        if path.is_dir():
            shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return root


def copy_checkout(folder: Path) -> Path:
    """Copy the files of the checkout that git does not ignore to `folder`, a repository as a clone gives it."""
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    return copy_to(folder, *filter(None, listed.decode().split("\0")))


def python_of(version: str) -> Path | None:
    """Return a Python of a version (`3.12`) on PATH or among those of pyenv, whose shims may fail; None without one."""
    name, pyenv = f"python{version}", Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = Path(shutil.which(name) or "/nowhere")
    for path in (Path(sys.base_prefix, "bin", name), *pyenv.glob(f"{version}.*/bin/{name}"), named):
        if path.is_file() and not subprocess.run([path, "-c", "import ensurepip"], capture_output=True).returncode:
            return path
    return None


def environment_of_user(home: Path, *pythons: Path) -> dict[str, str]:
    """Return the environment of a user with an empty `home` whose PATH has the system's programs and some Pythons.

    The Python of the tests comes first. pip's configuration and cache are those of this user.
    """
    home.mkdir(parents=True)
    folders = (Path(sys.base_prefix, "bin"), *SYSTEM, *(python.parent for python in pythons))
    kept = {name: value for name, value in os.environ.items() if name.startswith(OF_PIP) or name.endswith("_proxy")}
    cache = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True)
    kept.setdefault("PIP_CACHE_DIR", cache.stdout.strip())
    for settings in (Path.home() / ".pip/pip.conf", Path.home() / ".config/pip/pip.conf"):
        if settings.is_file():
            kept.setdefault("PIP_CONFIG_FILE", str(settings))
    return kept | {"HOME": str(home), "PATH": ":".join(map(str, folders)), "PYTHONNOUSERSITE": "1", "LANG": "C.UTF-8"}
