"""Train at every combination of values of several settings, draw heat maps of speed and memory, write the best ones.

KEY=V1,V2 gives a setting several values. Points that cannot fit into the memory of the device, by the estimate, are
marked and not started. Points with an ok result are kept, so after an interrupt the same command continues. Each point
is run once unless RUNS is given. More: docs/train.md

Usage:   ./shell/run_sweep.sh [--dry-run] [--here] KEY=VALUE,VALUE[,...] [KEY=VALUE ...]
         --dry-run starts no job: it prints the command of the container, if there is one, and all points; --here
         trains on this machine without a container (also ./shell/sweep.sh)
Reads:   config.env and all that run_train.sh reads; LABEL is the name of the sweep (default: sweep)
Writes:  as run_train.sh without its comparison, and OUTPUT_DIR/sweeps/<name>.json, <name>.png, <name>_best.env
Exits:   0 every point that was started has an ok result, 2 bad input, 128 + signal interrupted, 1 otherwise
Example: ./shell/run_sweep.sh FRAMEWORK=mega MODEL=llama MBS=1,2,4 SL=2048,4096,8192

Every combination is a point: a matrix of its own under a label of its own. Points whose settings are refused are marked
and not started, too. At the end evaluate.sweep draws the heat maps and writes the best settings.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train.job import processes
from train.machine.gpus import capacity_gb
from train.preflight import fit
from train.runner import plan
from utils import redact
from utils.arguments import Parser, first_line, refusing, run
from utils.errors import ConfigError, DataError, ForeignFileError
from utils.hardware.detect import HardwareError
from utils.own_files import require_ours
from utils.results import sweep_file
from utils.results.store import write_json
from utils.results.sweep_file import Point, Sweep
from utils.settings.config import PLATFORMS, folders, require_writable, values_of
from utils.settings.keys import KEYS
from utils.settings.layers import parse_values

OPTIONS: dict[str, dict[str, Any]] = {
    "--platform": {"required": True, "choices": PLATFORMS},
    "--dry-run": {"action": "store_true", "help": "print the points and start nothing"},
    "settings": {"nargs": "*", "metavar": "KEY=VALUE[,VALUE...]", "help": "settings; several values: an axis"},
}
NOT_STARTED = (sweep_file.DOES_NOT_FIT, sweep_file.IMPOSSIBLE)
MOST_POINTS = 1000
NAME = "sweep"
"""Name of a sweep without LABEL."""
LISTS = {"FRAMEWORK": "mega,hf", "MODEL": "llama,qwen"}
"""Settings that are lists in every run, with an example; in a sweep each of their values is a point."""
NOT_SWEPT = ("LABEL", "OUTPUT_DIR", "DATA_DIR", "METHOD", "RUNS", "FORCE", "RUNTIME", "LAUNCHER", "NODE_RANK")
_LONGEST_LABEL = 80


@refusing((ConfigError, DataError, HardwareError, ForeignFileError))
def main() -> int:
    """Run the sweep that the command line selects."""
    options = Parser(OPTIONS, prog="python -m train.sweep", description=first_line(__doc__)).parse_args()
    sweep = sweep_of(options.platform, options.settings)
    for point in sweep.points:
        _look_ahead(sweep, point, is_dry_run=options.dry_run)
    print(redact.text(text(sweep)), flush=True)
    if all(point.state == sweep_file.IMPOSSIBLE for point in sweep.points):
        raise ConfigError(f"no point is possible: {sweep.points[0].reason}")
    if options.dry_run:
        return 0
    output = folders(options.platform, arguments=arguments_of(sweep, sweep.points[0]))[0]
    path = sweep_file.path_of(output, sweep.name)
    require_writable(path.parent, "OUTPUT_DIR")
    require_ours(sweep_file.is_sweep, path)
    with processes.stop_request() as stop:
        processes.adopt_orphans()
        return _run_all(sweep, path, stop)


def text(sweep: Sweep) -> str:
    """Return the plan: the axes, then each point with what is known of it before it starts."""
    axes = ", ".join(f"{key} {', '.join(values)}" for key, values in sweep.axes.items())
    lines = [f"sweep {sweep.name}: {len(sweep.points)} points, {axes}"]
    for number, point in enumerate(sweep.points, 1):
        state = "runs" if point.state == sweep_file.WAITING else point.state
        line = f"{number:>4}  {state:12}  {point.name}"
        if point.reason:
            line += f"  ({point.reason})"
        lines.append(line)
    return "\n".join(lines)


def _look_ahead(sweep: Sweep, point: Point, *, is_dry_run: bool) -> None:
    """Mark a point that must not be started, with the reason."""
    try:
        matrix = plan.make(sweep.platform, arguments_of(sweep, point), is_dry_run=is_dry_run)
        capacity, _ = capacity_gb(matrix.config)
        for job in matrix.first_runs:
            refusal = fit.refusal(job, capacity)
            if refusal:
                point.state, point.reason = sweep_file.DOES_NOT_FIT, refusal
                return
    except ConfigError as error:
        point.state, point.reason = sweep_file.IMPOSSIBLE, str(error)


def _run_all(sweep: Sweep, path: Path, stop: processes.StopRequest) -> int:
    """Run every point that can be started, then the evaluation; return the exit code."""
    for number, point in enumerate(sweep.points, 1):
        if point.state in NOT_STARTED:
            continue
        # a sweep that is killed shows which points are left
        _write(sweep, path)
        print(f"=== point {number} of {len(sweep.points)}: {point.name}", flush=True)
        point.state = sweep_file.RUNNING
        command = [sys.executable, "-m", "train.matrix", "--platform", sweep.platform, *arguments_of(sweep, point)]
        code = processes.run_step(command, stop)
        if stop:
            point.state = sweep_file.WAITING
            break
        if code:
            point.state, point.reason = sweep_file.FAILED, f"exit code {code} of its matrix; see its results"
        else:
            point.state, point.reason = sweep_file.OK, None
    _write(sweep, path)
    if stop.signal is not None:
        left = sum(point.state == sweep_file.WAITING for point in sweep.points)
        print(
            f"interrupted by {stop.signal.name}: {left} of {len(sweep.points)} points are left; run the same command "
            "again to continue",
            file=sys.stderr,
        )
        return stop.exit_code(otherwise=1)
    print("=== evaluation", flush=True)
    code = processes.run_step([sys.executable, "-m", "evaluate.sweep", str(path)], stop)
    counts = Counter(point.state for point in sweep.points)
    states = [f"{counts[state]} {state}" for state in sweep_file.STATES if counts[state]]
    print(f"sweep {sweep.name}: {', '.join(states)}", flush=True)
    has_failed = code != 0 or counts[sweep_file.FAILED] > 0
    return stop.exit_code(otherwise=int(has_failed))


def _write(sweep: Sweep, path: Path) -> None:
    write_json(sweep.as_dict(), path, is_ours=sweep_file.is_sweep)


def sweep_of(platform: str, arguments: Sequence[str]) -> Sweep:
    """Return the sweep that the arguments describe: `KEY=V1,V2` is an axis, `KEY=V` holds for all points.

    RUNS is 1 unless it is given: a sweep compares many settings roughly, and the settings that it finds are run again.
    Raises ConfigError for a value that its setting does not take, no axis, a value given twice, a setting that cannot
    be swept, and bad grammar. Values that do not fit together are found later, point by point.
    """
    texts: dict[str, str] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or key not in KEYS:
            values_of(platform, [argument])  # raises ConfigError with what is allowed
        texts[key] = text
    # settings that are no axis decide which others are allowed, so one value of each axis is resolved with them
    firsts = [f"{key}={text.partition(',')[0]}" for key, text in texts.items()]
    known = {key: value.text for key, value in values_of(platform, firsts).items()}
    for key, example in LISTS.items():
        texts.setdefault(key, known[key])
        if "all" in texts[key].split(","):
            raise ConfigError(f"{key}={texts[key]}: a sweep needs names; name them, e.g. {key}={example}")
    if known["METHOD"] == "both":
        raise ConfigError("METHOD=both: a sweep changes the settings of one method; set METHOD=equal or METHOD=best")
    if known["LAUNCHER"] == "slurm":
        raise ConfigError("LAUNCHER=slurm: a sweep runs inside one allocation; start it there with LAUNCHER=torchrun")
    axes = {key: _values(key, text) for key, text in texts.items() if "," in text}
    if not axes:
        raise ConfigError("a sweep needs two values of at least one setting, e.g. MBS=1,2,4; got one value of each")
    fixed = {"RUNS": "1"}
    for key, text in texts.items():
        for value in axes.get(key, [text]):
            parse_values(values_of(platform, [f"{key}={value}"]))
        if key not in axes and key != "LABEL":
            fixed[key] = text
    sweep = Sweep(texts.get("LABEL") or NAME, platform, axes, fixed)
    sweep.points = _points(sweep)
    return sweep


def arguments_of(sweep: Sweep, point: Point) -> list[str]:
    """Return the settings of a point as KEY=VALUE arguments."""
    values = sweep.fixed | point.settings | {"LABEL": point.label}
    return [f"{key}={value}" for key, value in values.items()]


def _values(key: str, text: str) -> list[str]:
    if key in NOT_SWEPT:
        raise ConfigError(f"{key}={text}: got several values, but {key} is the same for all points; give one value")
    values = text.split(",")
    if "" in values or len(set(values)) < len(values):
        raise ConfigError(f"{key}={text}: got an empty value or one twice, wanted different values, e.g. MBS=1,2,4")
    return values


def _points(sweep: Sweep) -> list[Point]:
    # one more than the most is enough to refuse; all of them may be too many to count
    combinations = list(itertools.islice(itertools.product(*sweep.axes.values()), MOST_POINTS + 1))
    if len(combinations) > MOST_POINTS:
        raise ConfigError(f"got more than {MOST_POINTS} points, wanted fewer; leave values out")
    points = []
    for values in combinations:
        settings = dict(zip(sweep.axes, values, strict=True))
        points.append(Point(settings, _label(sweep.name, settings)))
    return points


def _label(name: str, settings: Mapping[str, str]) -> str:
    """Return the label of a point: the sweep's name and the values, shortened by a hash where that is too long."""
    plain = "_".join([name, *(f"{key}{value}" for key, value in settings.items())])
    label = re.sub(r"[^A-Za-z0-9._-]", "-", plain)
    if label == plain and len(label) <= _LONGEST_LABEL:
        return label
    # two points whose labels would be equal after the change have different digests
    digest = hashlib.sha256(plain.encode()).hexdigest()[:12]
    return f"{label[: _LONGEST_LABEL - 13]}_{digest}"


if __name__ == "__main__":
    sys.exit(run(main))
