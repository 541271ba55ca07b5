"""Plants one fault into the ranks of a real trainer; Python imports this by itself from a folder on PYTHONPATH.

TPRIMAT_TEST_FAULT is `framework:rank:step:name[:argument]`, or several with commas between them, one for each run from
the first on; one of them may be empty, and rank may be `all`. The fault strikes when that rank ends that step.
"""

import ctypes
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path


def sleep_for_ever():
    while True:
        time.sleep(1)


def sleep_unless_restarted():
    if "SLURM_RESTART_COUNT" not in os.environ:
        sleep_for_ever()


def ignore_sigterm_and_sleep():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep_for_ever()


def leave_quietly():
    sys.stdout.flush()
    os._exit(0)


def allocate():
    import torch

    torch.empty(1 << 50, dtype=torch.uint8)


def rename(folder):
    Path(folder).rename(folder + "_renamed")


def segfault():
    ctypes.string_at(0)


def plant(framework, rank, step, strike):
    sys.path.insert(0, str(Path.cwd()))
    from train.job.recorder import StepRecorder

    original = StepRecorder.end_step

    def end_step(self, **step_values):
        original(self, **step_values)
        is_ours = any(f"train_{framework}" in argument for argument in sys.argv)
        if is_ours and rank in ("all", os.environ["RANK"]) and len(self.samples.steps) == step:
            strike()

    StepRecorder.end_step = end_step


def plant_that_of_this_run():
    faults = os.environ["TPRIMAT_TEST_FAULT"].split(",")
    run = int(sys.orig_argv[sys.orig_argv.index("--run-number") + 1])
    if run <= len(faults) and faults[run - 1]:
        framework, rank, step, name, *arguments = faults[run - 1].split(":")
        plant(framework, rank, int(step), partial(globals()[name], *arguments))


if os.environ.get("TPRIMAT_TEST_FAULT") and "--run-number" in sys.orig_argv and "RANK" in os.environ:
    plant_that_of_this_run()
