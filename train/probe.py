"""Measure what this machine's device and libraries can do: matrix products, attention, bandwidth, collectives.

Usage:   ./tprimat probe --platform cpu|nvd|amd [--seconds 10] [--quick] [KEY=VALUE ...]
Reads:   config.env and its overlays, the environment
Writes:  OUTPUT_DIR/probe_<platform>_<host>.json
Exits:   0; 1 no rate could be measured or written; 2 bad input
Example: ./tprimat probe --platform nvd --quick OUTPUT_DIR=output

No training of the same precision can be faster than the best rate of
matrix products: evaluate/checks rejects such a result. It takes about 80 seconds, with --quick 15. Measure on the day
of the runs and stop all other work before: a rate measured beside other work is invalid. On the cpu platform, rates and
bandwidth are those of the whole machine. With several GPUs, the first is measured, and all take part in collectives;
under torchrun, all nodes do. Every process gets the variables of a job of the platform (docs/fair.md); the file records
them (`environment`).
"""

from __future__ import annotations

import argparse
import os
import platform as python_platform
import sys
from collections.abc import Sequence
from typing import Any

from train.machine import conditions
from train.preflight import job_checks
from train.runner import plan as matrix
from train.settings_map import map as frameworks
from utils.arguments import Parser, refusing, run
from utils.errors import ConfigError, ForeignFileError
from utils.hardware.detect import HardwareError, detect_platform
from utils.housekeeping import footprint
from utils.own_files import require_ours
from utils.results import probe_file, store
from utils.settings.config import PLATFORMS, RunConfig, folders, require_writable

SECONDS, QUICK_SECONDS = 10.0, 1.8
"""Seconds of the rate of each precision, which set those of all other parts."""


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError(f"got {text}, wanted seconds above 0, up to 600")
    return value


OPTIONS: dict[str, dict[str, Any]] = {
    "--platform": {"required": True, "choices": PLATFORMS},
    "--seconds": {
        "type": _seconds,
        "help": f"seconds for the rate of each precision; all other parts follow (default: {SECONDS:g})",
    },
    "--quick": {"action": "store_true", "help": "about 15 seconds in all instead of 80"},
    "settings": {"nargs": "*", "metavar": "KEY=VALUE", "help": "settings of the jobs, e.g. OUTPUT_DIR=output"},
}


@refusing((ConfigError, HardwareError, ForeignFileError))
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the file and print what it shows."""
    options = Parser(OPTIONS, module="train.probe").parse_args(arguments)
    import torch  # imported on use, as what measures with it: the help needs no package

    from train.probing import collectives, report

    seconds = options.seconds or (QUICK_SECONDS if options.quick else SECONDS)
    config, _ = matrix.resolve(options.platform, options.settings)
    # before torch is asked for a device, which reads them once
    _become_a_job(config)
    platform = detect_platform(os.environ | {"PLATFORM": options.platform}, torch)
    rank, ranks = collectives.world()
    if rank and ranks > 1:  # of torchrun: only the collectives need it
        collectives.in_this_world(platform, 0.0)
        return 0
    output, _ = folders(platform, arguments=options.settings)
    require_writable(output, "OUTPUT_DIR")
    path = output / probe_file.name(platform, python_platform.node())
    require_ours(probe_file.is_probe, path)
    footprint.mark(output, footprint.OUTPUT)
    # afterwards the device is warm and the cores were busy with the probe itself
    before = conditions.take_snapshot(platform)
    for line in job_checks.warnings(platform, before):
        print(f"warning: {line}", file=sys.stderr)
    content = report.measure(platform, seconds, config, before)
    for name, reason in content["reasons"].items():
        print(f"{name}: not measured: {reason}", file=sys.stderr)
    if not content["rates"]:
        print("error: no rate could be measured", file=sys.stderr)
        return 1
    probe_file.parse(content, path)
    try:
        store.write_json(content, path, is_ours=probe_file.is_probe)
    except OSError as error:
        print(f"error: {path}: cannot be written: {error}; make room or name another OUTPUT_DIR", file=sys.stderr)
        return 1
    print(f"{report.as_text(content)}{path}")
    return 0


def _become_a_job(config: RunConfig) -> None:
    """Start this process anew with the variables that a job of the platform gets and that the user has not set.

    CUDA, HIP and NCCL read them when torch first looks for a GPU. They are those of the settings' first framework.
    """
    framework = config.frameworks[0]
    wanted = frameworks.environment(framework, config, config.spec(config.models[0]))
    missing = {name: value for name, value in wanted.items() if name not in os.environ}
    if missing:
        told = " ".join(f"{name}={value}" for name, value in missing.items())
        print(f"variables of a job of {framework}: {told}", file=sys.stderr, flush=True)
        os.execve(sys.executable, sys.orig_argv, os.environ | missing)


if __name__ == "__main__":
    sys.exit(run(main))
