"""Install the packages of a matrix, with its phase in status.json meanwhile; bad input is found before that.

Called by shell/train.sh where .venv does not match the checkout, with any Python 3.10 or later: standard library only.
Exits 0 when the packages are there, 2 for bad input with nothing installed, 128 + signal after an interrupt, 1
otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from train.job import processes
from train.machine import gpus
from train.preflight import matrix_checks as preflight
from train.runner import plan
from train.runner.state import FAILED, INTERRUPTED, MatrixState, StatusFile
from utils.arguments import Parser, run
from utils.errors import ConfigError, DataError
from utils.housekeeping import footprint
from utils.settings.config import PLATFORMS, ROOT, require_writable

BAD_INPUT = 2
POLL_SECONDS = 0.1
GRACE_SECONDS = 10.0
SETUP = ROOT / "shell" / "setup.sh"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = _arguments(argv)
    processes.end_with_parent(signal.SIGTERM)  # a signal that ends the script alone ends the setup too
    try:
        with processes.stop_request() as stop:
            if options.platform != "cpu" and not gpus.count(options.platform):
                return _install(None, stop)  # without torch nobody knows the GPUs, so nothing can be planned yet
            methods = plan.by_method(options.platform, options.settings)
            matrix, *_ = [plan.make(options.platform, settings, is_dry_run=True) for settings in methods]
            if not matrix.config.strict:  # strict checks look at the machine, and are made once, before the jobs
                with contextlib.redirect_stderr(io.StringIO()):  # the matrix prints its plan
                    preflight.check(matrix)
            require_writable(matrix.config.output_dir, "OUTPUT_DIR")
            with footprint.lock(matrix.config.output_dir):
                status = StatusFile(matrix.config.output_dir, MatrixState.of(matrix.jobs))
                with status.kept():
                    return _install(status, stop)
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def _install(status: StatusFile | None, stop: processes.StopRequest) -> int:
    """Run shell/setup.sh in a session of its own, so that a signal ends it with all that it has started."""
    if status:
        status.write()
    process = subprocess.Popen(
        [str(SETUP)], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=processes.tied()
    )
    while process.poll() is None and not stop:
        if status:
            status.write_sometimes()
        time.sleep(POLL_SECONDS)
    if stop.signal is not None:
        _end(process)
        print(f"interrupted by {stop.signal.name} during the setup; run the same command again", file=sys.stderr)
    if status and (stop or process.returncode):
        status.end(INTERRUPTED if stop else FAILED)
    return stop.exit_code(otherwise=process.returncode)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
            return


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m train.set_up", description=__doc__)
    parser.add_argument("--platform", required=True, choices=PLATFORMS)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(run(main))
