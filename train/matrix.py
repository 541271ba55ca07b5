"""Set up, prepare the data, train every job of the matrix, validate the results and compare them: the main command.

On a GPU machine it runs in the image that ./shell/build.sh makes; RUNTIME selects the engine (docs/containers.md).
FRAMEWORK, MODEL and RUNS select the jobs. A failed job does not stop the others. It keeps what exists: the environment,
the data, and jobs with an ok result of the same settings, data, code and machine (FORCE=1 trains them again). After an
interrupt, the same command continues where it stopped. ORDER=interleaved runs run 1 of every job before run 2 of any,
so that a slow drift of the machine affects all jobs alike.

Usage:   ./shell/run_train.sh [--dry-run] [--here] [--no-compare] [KEY=VALUE ...]
         --dry-run starts no job: it prints the command of the container, if there is one, and the plan of the matrix
         --here trains on this machine without a container; --no-compare leaves out the comparison at the end. Both
         together are ./shell/train.sh, which --compare makes compare again
Reads:   config.env and its overlays, the environment, secrets.env; CONTAINER_ARGS, CONTAINER_SHM_SIZE
Writes:  .venv, DATA_DIR, OUTPUT_DIR/[label/]train_*.json, logs/, status.json, compare.{html,md,png,json}
Exits:   0 every job succeeded and the results are valid, 2 bad input, 128 + signal interrupted, 1 otherwise
Example: ./shell/run_train.sh MODEL=mistral RUNS=5

This module is the part after the setup: plan -> pre-flight -> data -> jobs -> validation (-> comparison).
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from train.job import processes
from train.job.rank_environment import python_of
from train.machine import gpus
from train.preflight import matrix_checks as preflight
from train.preflight.fit import terminal_table
from train.runner import plan
from train.runner.run_job import follow_up, run_job, run_on_other_node, show_ends, show_progress
from train.runner.state import (
    CHECKS,
    COMPARISON,
    DATA,
    FAILED,
    FINISHED,
    INTERRUPTED,
    TRAINING,
    VALIDATION,
    WARNING,
    MatrixState,
    StatusFile,
    lock,
)
from train.runner.view import View, add_to_log
from utils import redact
from utils.arguments import Parser, first_line, refusing, run
from utils.errors import ConfigError, DataError
from utils.frameworks import FRAMEWORKS, counterpart, in_all
from utils.hardware.detect import HardwareError, visible_gpus
from utils.settings.config import PLATFORMS, ROOT, require_writable, values_of

OPTIONS: dict[str, dict[str, Any]] = {
    "--platform": {"required": True, "choices": PLATFORMS},
    "--dry-run": {"action": "store_true", "help": "print the plan and start nothing"},
    "--set-up": {"action": "store_true", "help": "install the packages of the matrix, and start no job"},
    "--compare": {"action": "store_true", "help": "compare the results at the end"},
    "settings": {"nargs": "*", "metavar": "KEY=VALUE"},
}
SETUP = ROOT / "shell" / "setup.sh"
SETUP_GRACE_SECONDS = 10.0
AGAIN = "run the same command again to continue"
NOTHING_COMPARABLE = 3
"""Exit code of evaluate.compare for results without two sides, which is no failure of a matrix of one job."""


@refusing((ConfigError, DataError, HardwareError))
def main() -> int:
    """Run the matrix that the command line selects; with METHOD=both the matrices of both methods in turn."""
    options = Parser(OPTIONS, prog="python -m train.matrix", description=first_line(__doc__)).parse_args()
    if options.set_up:
        return _set_up(options.platform, options.settings)
    asked = without_missing(options.platform, options.settings, is_dry_run=options.dry_run)
    matrices = plan.matrices(options.platform, asked, is_dry_run=options.dry_run)
    for matrix in matrices:
        preflight.check(matrix)
        has_primus = any(FRAMEWORKS[name].starts_its_ranks for name in matrix.config.frameworks)
        if has_primus and matrix.config.platform == "cpu":
            # without a checkout of Primus the matrix would fail only at its job
            from train.prim import install as prim_install

            prim_install.find()
        if options.dry_run:
            print(redact.text(plan.text(matrix)))
            if (table := terminal_table(matrix.jobs)) is not None:
                print(f"\n{table}")
    if options.dry_run:
        return 0
    output = plan.require_folders(matrices)
    # node 0 alone prepares the data and writes status.json
    if matrices[0].config.node_rank > 0:
        with processes.stop_request() as stop:
            return run_on_other_node(matrices, stop)
    # two matrices in one folder would replace one another's results
    with lock(output) as is_locked, processes.stop_request() as stop:
        run_one = partial(_run, stop=stop, is_locked=is_locked)
        return run_all(matrices, run_one, stop, is_compared=options.compare)


def without_missing(platform: str, settings: Sequence[str], *, is_dry_run: bool = False) -> list[str]:
    """Return the settings of a matrix with only those frameworks that have a Python here, each change said on stderr.

    FRAMEWORK=all loses the frameworks that have none. Where a vendor's own framework has none and its `older` one has,
    that one runs instead. A framework that is asked for by name stays: its job has the error. On a CPU environments
    are made here; a dry run makes none and assumes that they can be made. On a machine without the
    platform's GPUs it assumes the frameworks of the vendor's image. Raises HardwareError as `visible_gpus` does.
    """
    asked = values_of(platform, settings)["FRAMEWORK"].text
    if is_dry_run and not (gpus.has_torch() and visible_gpus(platform)):
        if platform != "cpu":
            print(
                "note: no torch here sees a GPU, so the plan assumes the frameworks of the vendor's image",
                file=sys.stderr,
            )
        return list(settings)
    names = in_all(platform) if asked == "all" else asked.split(",")
    kept = []
    for name in names:
        newer = counterpart(name, platform)
        older = FRAMEWORKS[newer].older if newer else None
        if asked == "all" and FRAMEWORKS[name].has_own_python and (reason := _missing(name, platform)):
            print(f"FRAMEWORK=all: {name} is left out: {reason}", file=sys.stderr)
        elif newer and older and (reason := _missing(newer, platform)) and not _missing(older, platform):
            print(f"FRAMEWORK={name}: {older} runs in place of {newer}: {reason}", file=sys.stderr)
            kept.append(older)
        else:
            kept.append(name)
    return list(settings) if kept == names else [*settings, f"FRAMEWORK={','.join(kept)}"]


def _missing(name: str, platform: str) -> str | None:
    """Return the reason why a framework has no Python here, None where it has one."""
    try:
        python_of(name, platform)
    except ConfigError as error:
        return str(error)
    return None


def _set_up(platform: str, settings: Sequence[str]) -> int:
    """Install the packages of a matrix, with this phase in status.json meanwhile; bad input is found before that.

    Standard library only: shell/run_train.sh calls it with any Python 3.10 or later where .venv does not match the
    checkout.
    """
    processes.end_with_parent(signal.SIGTERM)  # a signal that ends the script alone ends the setup too
    with processes.stop_request() as stop:
        if platform != "cpu" and not gpus.count(platform):
            return _install(lambda: None, stop)  # without torch nobody knows the GPUs, so nothing can be planned yet
        matrix, *_ = plan.matrices(platform, settings, is_dry_run=True)
        if not matrix.config.strict:  # strict checks look at the machine, and are made once, before the jobs
            with contextlib.redirect_stderr(io.StringIO()):  # the matrix prints its plan
                preflight.check(matrix)
        require_writable(matrix.config.output_dir, "OUTPUT_DIR")
        with lock(matrix.config.output_dir):
            status = StatusFile(matrix.config.output_dir, MatrixState.of(matrix.jobs))
            with status.kept():
                status.write()
                if code := _install(status.write_sometimes, stop):
                    status.end(INTERRUPTED if stop else FAILED)
                return code


def _install(refresh: Callable[[], None], stop: processes.StopRequest) -> int:
    """Run shell/setup.sh in a session of its own, so that a signal ends it with all that it has started."""
    # pip must not wait for an answer of a person
    process = subprocess.Popen(
        [str(SETUP)], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=processes.tied()
    )
    processes.wait_until(lambda: process.poll() is not None, stop=stop, refresh=refresh)
    if stop.signal is not None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(SETUP_GRACE_SECONDS)
                break
        print(f"interrupted by {stop.signal.name} during the setup; {AGAIN}", file=sys.stderr)
    return stop.exit_code(otherwise=process.returncode)


def run_all(
    matrices: Sequence[plan.Matrix],
    run_one: Callable[[plan.Matrix, StatusFile], tuple[int, bool]],
    stop: processes.StopRequest,
    *,
    is_compared: bool,
    end: str = FINISHED,
) -> int:
    """Run every matrix, then the comparison of their results; return the first exit code that is not 0.

    `run_one` runs one matrix and returns its exit code, and whether to go on after it. `end` is the last state.
    """
    # the ranks of a launcher that was killed become children of this process, which ends them
    processes.adopt_orphans()
    codes = []
    for matrix in matrices:
        if len(matrices) > 1:
            print(f"=== METHOD={matrix.config.method}, results in {matrix.config.results_dir}", flush=True)
        status = StatusFile(matrix.config.output_dir, MatrixState.of(matrix.jobs))
        with status.kept():
            code, is_under_way = run_one(matrix, status)
        codes.append(code)
        if stop or not is_under_way:
            status.end(INTERRUPTED if stop else FAILED)
            return code
    if is_compared:
        with status.kept():
            codes.append(compare(matrices, stop, status))
    status.end(INTERRUPTED if stop else end)
    return stop.exit_code(otherwise=next((code for code in codes if code), 0))


def _run(
    matrix: plan.Matrix, status: StatusFile, stop: processes.StopRequest, is_locked: Callable[[], bool]
) -> tuple[int, bool]:
    """Prepare the data, run the jobs and validate them; return the exit code, and whether to go on after it.

    `is_locked` checks that OUTPUT_DIR is still there and still this process's.
    """
    state = status.matrix
    status.enter(DATA)
    print("=== data", flush=True)
    # in a container these are fewer than the cores of the machine
    workers = str(len(os.sched_getaffinity(0)))
    prepare = [sys.executable, "-m", "data.prepare", "--platform", matrix.config.platform, "--workers", workers]
    if code := processes.run_step(
        [*prepare, *matrix.arguments], stop, status.write_sometimes, plan.environment(matrix), subprocess.DEVNULL
    ):
        return code, False
    status.enter(CHECKS)
    digests = plan.data_digests(matrix.config)
    status.enter(TRAINING)
    print("=== training", flush=True)
    with view_of(state, matrix.config.output_dir) as view:
        while (job := state.next_job) is not None:
            _pause(matrix.config.cooldown_seconds if job.number > 1 else 0.0, view, status, stop)
            if stop:
                break
            run_job(matrix, job, digests[job.job.model], view, status, stop)
            # the next job would make the folder anew, and its results would be in two places
            if not is_locked():
                view.print(
                    f"error: OUTPUT_DIR={matrix.config.output_dir} was deleted, renamed or replaced; no job is started"
                )
                return 1, False
            if not stop:
                follow_up(state, job, view.print)
        # a fixed number of runs is no news
        show_ends(state, view.log if matrix.rule.is_fixed else view.print)
    return validate(status, stop), True


def view_of(state: MatrixState, output_dir: Path) -> View:
    """Return the view that fits the standard output; a terminal that cannot move its cursor gets plain lines."""
    log_path = output_dir / "logs" / "matrix.log"
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        return View(state, log_path)
    from train.runner.live_view import LiveView  # needs rich, and a plan needs no package

    return LiveView(state, log_path)


def validate(status: StatusFile, stop: processes.StopRequest) -> int:
    """Validate the results of a matrix that has ended; return 1 if a job or the validation failed, 128 + signal."""
    state = status.matrix
    if stop.signal is not None:
        print(f"interrupted by {stop.signal.name}: {state.good}; {AGAIN}", file=sys.stderr)
        return stop.exit_code(otherwise=1)
    status.enter(VALIDATION)
    print(f"=== validation: {state.counts}", flush=True)
    for line in state.unrecorded_warnings:
        print(f"{WARNING}{line}", flush=True)
    paths = [str(job.job.result_path) for job in state.jobs]
    code = _reading("evaluate.validate", paths, None, stop, status)
    return stop.exit_code(otherwise=int(code != 0 or state.failed > 0))


def compare(matrices: Sequence[plan.Matrix], stop: processes.StopRequest, status: StatusFile) -> int:
    """Compare the results of all matrices; return 0, also where there is nothing to compare, or 1."""
    status.enter(COMPARISON)
    folders = list(dict.fromkeys(matrix.config.results_dir for matrix in matrices))
    loss = matrices[0].config.target_loss
    target = [] if loss is None else ["--target-loss", str(loss)]
    code = _reading("evaluate.compare", [*map(str, folders), *target], "comparison", stop, status)
    if code in (0, NOTHING_COMPARABLE):
        status.matrix.report = folders[0] / "compare.html"
    return int(code not in (0, NOTHING_COMPARABLE))


def _reading(
    module: str, arguments: Sequence[str], title: str | None, stop: processes.StopRequest, status: StatusFile
) -> int:
    """Run a command of evaluate that shows little here; add its whole text to the log and return its exit code."""
    with tempfile.TemporaryDirectory(prefix="tprimat-") as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", module, *arguments, "--brief", "--log", str(log)]
        if title:
            print(f"=== {title}", flush=True)
        code = processes.run_step(command, stop, status.write_sometimes)
        if log.exists():
            add_to_log(status.folder, log.read_text(encoding="utf8"))
    return code


def _pause(seconds: float, view: View, status: StatusFile, stop: processes.StopRequest) -> None:
    if not seconds:
        return
    status.matrix.pause = f"cooling down for {seconds:g} s"
    processes.wait_until(lambda: False, seconds, stop, refresh=partial(show_progress, view, status))
    status.matrix.pause = None


if __name__ == "__main__":
    sys.exit(run(main))
