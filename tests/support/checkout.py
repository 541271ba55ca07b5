"""Where the checkout under test lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from utils.settings import config

ROOT = Path(__file__).resolve().parents[2]


# Settings of a job as every command loads them, without the environment of this process.


def settings_of(*settings: str, platform: str = "cpu", gpus: int | None = None, **options: Any) -> config.RunConfig:
    """Return the checked settings; a string may hold several KEY=VALUE."""
    arguments = [word for setting in settings for word in setting.split()]
    return config.load(platform, gpus, arguments=arguments, environ={}, **options)
