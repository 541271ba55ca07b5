"""The choice of a view: live lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from train.runner.state import MatrixState
from train.runner.view import View


def view_of(state: MatrixState, output_dir: Path) -> View:
    """Return the view that fits the standard output; a terminal that cannot move its cursor gets plain lines."""
    log_path = output_dir / "logs" / "matrix.log"
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return View(state, log_path)
    from train.runner.live_view import LiveView  # needs rich, and a plan needs no package

    return LiveView(state, log_path)
