"""Measure what this machine's device and libraries can do: rates, bandwidth, and every operator of a job's step.

    python -m train.probe --platform cpu|nvd|amd [--seconds 10] [--quick] [--operators none]
        [--framework mega,hf] [--model llama,...] [KEY=VALUE ...]

Measures the rates of matrix products, memory bandwidth, each distinct operator of the jobs (as a rehearsal lists them,
cold and warm), collectives and the data loader, and writes OUTPUT_DIR/probe_<platform>_<host>.json. No training of the
same precision can be faster than the best rate: evaluate/probe.py rejects such a result. It takes about five minutes,
with --quick one. Measure on the day of the runs and stop all other work before: a rate measured beside other work is
invalid. On the cpu platform, rates and bandwidth are those of the whole machine, operators those of one rank with its
threads. With several GPUs, the first is measured, and all take part in collectives; under torchrun, all nodes do.
Every process gets the variables of a job of the platform (docs/fair.md); the file records them (`environment`).
Exits 0; 1 if no rate, or no operator, could be measured or written, 2 for bad input.
"""

from __future__ import annotations

import argparse
import os
import platform as python_platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from train.machine import conditions
from train.preflight import job_checks
from train.probing import collectives, jobs, report, whole
from train.probing.whole import Plan
from train.runner import plan as matrix
from train.settings_map import map as frameworks
from utils.arguments import Parser, run
from utils.errors import ConfigError, ForeignFileError
from utils.hardware.detect import HardwareError, detect_platform
from utils.housekeeping import footprint
from utils.models import MODELS
from utils.own_files import require_ours
from utils.results import probe_file, store
from utils.settings.config import PLATFORMS, folders, load, require_writable

SECONDS, QUICK_SECONDS = 10.0, 1.8
"""Seconds of the rate of each precision, which set those of all other parts: five minutes and one in all."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the file and print what it shows."""
    options = _arguments(arguments)
    try:
        _become_a_job(options)
        found = detect_platform({**os.environ, "PLATFORM": options.platform}, torch)
        rank, ranks = collectives.world()
        if rank and ranks > 1:  # of torchrun: only the collectives need it
            collectives.in_this_world(found, None, 0.0)
            return 0
        output, _ = folders(found, arguments=options.settings)
        require_writable(output, "OUTPUT_DIR")
        path = output / probe_file.name(found, python_platform.node())
        require_ours(probe_file.is_probe, path)
        footprint.mark(output, footprint.OUTPUT)
        plan = _plan(found, options)
        before = conditions.take_snapshot(found)
        for line in job_checks.warnings(found, before):
            print(f"warning: {line}", file=sys.stderr)
        content = whole.measure(found, options.seconds, plan, before)
    except (ConfigError, HardwareError, ForeignFileError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, reason in content["reasons"].items():
        if reason != whole.NO_OPERATORS:
            print(f"{name}: not measured: {reason}", file=sys.stderr)
    return _write(content, path) or _ending(content, plan)


def _become_a_job(options: argparse.Namespace) -> None:
    """Start this process anew with the variables that a job of the platform gets and that the user has not set.

    CUDA, HIP and NCCL read them when torch first looks for a GPU. They are those of the first framework that is
    measured; without jobs, those of mega on one GPU. Raises ConfigError.
    """
    if options.operators == "none":
        config, framework, model = load(options.platform, 1, environ={}), "mega", "llama"
    else:
        config, _ = matrix.resolve(options.platform, options.settings)
        framework = (options.framework or config.frameworks)[0]
        model = (options.model or config.models)[0]
    wanted = frameworks.environment(framework, config, config.spec(model))
    missing = {name: value for name, value in wanted.items() if name not in os.environ}
    if missing:
        told = " ".join(f"{name}={value}" for name, value in missing.items())
        print(f"variables of a job of {framework}: {told}", file=sys.stderr, flush=True)
        os.execve(sys.executable, sys.orig_argv, os.environ | missing)


def _write(content: dict[str, Any], path: Path) -> int:
    """Write the file and print its content; return 1 if it is empty or cannot be written."""
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


def _ending(content: dict[str, Any], plan: Plan) -> int:
    """Return 1 if operators were asked for and none was measured."""
    if plan.config is not None and plan.pairs and not content["operators"]:
        print("error: no operator could be measured; the reasons are above", file=sys.stderr)
        return 1
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m train.probe", description=__doc__.split("\n")[0])
    parser.add_argument("--platform", required=True, choices=PLATFORMS)
    parser.add_argument(
        "--seconds",
        type=_seconds,
        help=f"seconds for the rate of each precision; all other parts follow (default: {SECONDS:g})",
    )
    parser.add_argument("--quick", action="store_true", help="a minute in all instead of about five")
    parser.add_argument(
        "--operators",
        choices=("all", "none"),
        default="all",
        help="none: only rates and bandwidth, without operators, collectives and loader (default: %(default)s)",
    )
    parser.add_argument(
        "--framework",
        type=_words_of("framework", jobs.FRAMEWORKS),
        metavar="F[,F]",
        help="frameworks whose operators are measured, of mega and hf (default: those of FRAMEWORK)",
    )
    parser.add_argument(
        "--model",
        type=_words_of("model", tuple(MODELS)),
        metavar="M[,M]",
        help="models whose operators are measured (default: those of MODEL)",
    )
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of the jobs, e.g. OUTPUT_DIR=output")
    options = parser.parse_intermixed_args(arguments)
    if options.seconds is None:
        options.seconds = QUICK_SECONDS if options.quick else SECONDS
    return options


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError(f"got {text}, wanted seconds above 0, up to 600")
    return value


def _words_of(what: str, known: Sequence[str]) -> Any:
    """Return the reader of a list of known words with commas."""

    def read(text: str) -> tuple[str, ...]:
        words = tuple(dict.fromkeys(text.split(",")))
        unknown = [word for word in words if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"got {what} {unknown[0]!r}, wanted of {', '.join(known)}")
        return words

    return read


def _plan(platform: str, options: argparse.Namespace) -> Plan:
    """Rehearse the jobs whose operators are measured; raise ConfigError for bad settings."""
    if options.operators == "none":
        return Plan(None, (), (), {})
    fixed = [f"{key}={','.join(words)}" for key, words in _named(options) if words]
    config, values = matrix.resolve(platform, [*options.settings, *fixed])
    pairs = jobs.pairs_of(config, options.framework, options.model)
    sized = [(matrix.with_micro_batch(config, values, *pair), *pair) for pair in pairs]
    if sized:
        names = ", ".join(" ".join(pair) for pair in pairs)
        print(f"rehearsing {names}: 10 to 60 s", file=sys.stderr)
    rehearsed, reasons = jobs.rehearse(sized, options.settings)
    if not pairs:
        asked = ", ".join(config.frameworks)
        reasons = {"operators": f"FRAMEWORK={asked}: a rehearsal knows {', '.join(jobs.FRAMEWORKS)} only"}
    return Plan(config, tuple(pairs), rehearsed, reasons)


def _named(options: argparse.Namespace) -> tuple[tuple[str, tuple[str, ...] | None], ...]:
    return ("FRAMEWORK", options.framework), ("MODEL", options.model)


if __name__ == "__main__":
    sys.exit(run(main))
