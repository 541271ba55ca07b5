"""Replacement of functions of torch and other libraries in this process, for good."""

from __future__ import annotations

from typing import Any


def replace(holder: Any, **stand_ins: Any) -> None:
    """Put each stand-in into a module or class under its name."""
    for name, stand_in in stand_ins.items():
        setattr(holder, name, stand_in)
