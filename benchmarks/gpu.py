"""Try and measure one GPU in parts of minutes: a smoke test, a verdict, speed, profiles, rates; then one archive.

The most valuable parts come first, and models get as many layers as fit into the card. The same command continues
where the last call stopped. On a GPU machine it runs in the image that ./shell/build.sh makes; RUNTIME selects the
engine (docs/containers.md).

Usage:   ./shell/run_gpu_hour.sh [--dry-run] [--minutes N] [--only TEXT] [--device NAME] [OUTPUT_DIR=...] [DATA_DIR=...]
         --dry-run starts no part: it prints the command of the container, if there is one, and the parts with their
         layers, memory and seconds; --minutes (9): no part is started that would need more; --only: parts whose name
         contains TEXT (may be repeated); --device H100 chooses the layers for that card instead of this machine's
Reads:   settings, as shell/run_train.sh; secrets.env; CONTAINER_ARGS, CONTAINER_SHM_SIZE
Writes:  .venv, DATA_DIR, OUTPUT_DIR/hour_*/train_*.json, OUTPUT_DIR/gpu_hour/, output.zip, probe_*.json,
         profiles/, logs/
Exits:   0 all parts that were started succeeded, 2 bad input, 1 otherwise
Example: ./shell/run_gpu_hour.sh --only smoke --only verdict OUTPUT_DIR=output-h100

Parts: facts of the machine (output of the vendor's tools); `smoke`, everything that is installed side by side at two
layers, and kernels against float64 (benchmarks/numerics.py), whose times are no results; `verdict`, Llama with mega and
hf in turn, three runs each; `speed` at SL 8192, in fp8, with titan and bridge where they are installed; a profile of
one step each; the probe (train.probe); runs 4 and 5 of the verdict. A part is started only if its expected time is
left. A finished part is skipped the next time, and so is what has passed of the smoke test. On a CPU all is tiny.

Each part has the largest number of layers with which every framework of its group fits into the card by the estimate
(docs/memory.md), so that the group is comparable. A part for which even the fewest layers are too many is named with
its estimate and not started; so is one whose framework is not installed. `--device H100` chooses the layers for another
card, such as that of the other side.

Results are in OUTPUT_DIR/hour_*/, profiles in OUTPUT_DIR/profiles/; OUTPUT_DIR/gpu_hour/ gets `facts/`, `logs/`,
`parts.json` (what ran, outcomes, seconds), `report/` (the comparison of the verdict), `summary.md` and
`gpu_hour.zip`: results, logs, report, facts, and profiles as far as 16 MiB allow.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import hour_parts
from benchmarks.hour_parts import ASSUMED_TFLOPS, RUNS, VERDICT, Hour, Part, Task, why_missing
from benchmarks.hour_report import close
from train.job import processes
from train.machine import gpus
from train.preflight import ready
from utils import redact
from utils.arguments import Parser, first_line, refusing, run
from utils.errors import ConfigError
from utils.hardware.detect import HardwareError
from utils.hardware.devices import SHORT_NAMES, Device, named
from utils.housekeeping import footprint
from utils.memory.estimate import device_capacity_gb, usable_gb
from utils.own_files import note
from utils.settings.config import PLATFORMS, ROOT, folders, load, require_writable

PLACES = ("OUTPUT_DIR", "DATA_DIR", "RUNTIME")
"""Settings that a caller may give."""
CLOSING_SECONDS = 20
"""Reserved at the end for the comparison, the summary and the archive."""
GRACE_SECONDS = 10
"""For a task that is stopped, to end its ranks and to write its result."""
TOOL_SECONDS = 60
TOOLS = {
    "nvd": ("nvidia-smi", "nvidia-smi -q", "nvidia-smi topo -m", "nvidia-smi --help-query-gpu"),
    "amd": (
        "amd-smi static --json",
        "amd-smi metric --json",
        "amd-smi process --json",
        "amd-smi version --json",
        "rocm-smi -a --json",
        "rocm-smi --showtopo",
    ),
    "cpu": ("lscpu", "free -b"),
}
"""Commands whose output is kept as it is, by platform."""
OPTIONS: dict[str, dict[str, Any]] = {
    "--platform": {"required": True, "choices": PLATFORMS},
    "--minutes": {
        "type": float,
        "default": 9.0,
        "help": "no part is started that would need more (default: %(default)g)",
    },
    "--only": {
        "action": "append",
        "metavar": "TEXT",
        "help": "only parts whose name contains it; may be repeated",
    },
    "--device": {"metavar": "NAME", "help": "card for which layers are chosen (default: this machine's)"},
    "--dry-run": {"action": "store_true", "help": "print the parts with layers, memory and seconds, start nothing"},
    "--output": {"metavar": "FOLDER", "help": "the same as OUTPUT_DIR=FOLDER"},
    "settings": {"nargs": "*", "metavar": "KEY=VALUE", "help": ", ".join(PLACES)},
}


def write_facts(hour: Hour) -> None:
    """Keep the output of the vendor's tools, of pip and of torch under `facts/`; a tool that fails is named."""
    commands = {
        "torch": [sys.executable, "-m", "torch.utils.collect_env"],
        "pip": [sys.executable, "-m", "pip", "freeze"],
    }
    commands |= {re.sub("[ -]+", "_", tool): tool.split() for tool in TOOLS[hour.platform]}
    for name, command in commands.items():
        try:
            ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TOOL_SECONDS)
            text = ran.stdout
            if ran.returncode:
                text += f"exit code {ran.returncode}\n{ran.stderr}"
        except (OSError, subprocess.TimeoutExpired) as error:
            text = f"{command[0]}: {error}\n"
        path = hour.own / "facts" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(redact.text(text), encoding="utf8")
        note(path)


def log_of(hour: Hour, task: Task) -> Path:
    """Return the path of a task's log."""
    return hour.own / "logs" / f"{task.name.replace(' ', '_')}.log"


def run_tasks(hour: Hour, tasks: Sequence[Task]) -> Iterator[tuple[Task, int]]:
    """Run tasks side by side, each with its output in a log; yield each with its exit code when it ends.

    A task starts when cores and memory of the device have room for it. At the deadline those that run are stopped,
    which is exit code 124, and no other is started.
    """
    waiting = list(tasks)
    running: dict[Task, subprocess.Popen[bytes]] = {}
    # each task has a context of its own, which the estimate of a task includes
    room = usable_gb(hour.memory_gb, hour.platform)
    while waiting or running:
        is_late = time.monotonic() > hour.deadline
        if is_late:
            waiting.clear()
        used = sum(task.needs_gb for task in running)
        has_core = len(running) < (os.cpu_count() or 1)
        # the first one starts also where it alone needs more than there is
        if waiting and (not running or (has_core and used + waiting[0].needs_gb <= room)):
            task = waiting.pop(0)
            with log_of(hour, task).open("wb") as log:
                running[task] = subprocess.Popen(
                    task.command,
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=processes.tied(),
                )
        # a list: tasks that end are removed from it
        for task, process in list(running.items()):
            if is_late:
                _stop(process)
            if process.poll() is not None:
                del running[task]
                note(log_of(hour, task))
                yield task, 124 if is_late else process.returncode
        time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a task, which ends its ranks and writes its result first."""
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        # it has had time for its result
        process.kill()
        process.wait()


def run_part(hour: Hour, part: Part) -> bool:
    """Run the tasks of a part that have not passed yet and can run here; return whether none has failed."""
    record = hour.record.setdefault(part.name, {})
    rows, started, waiting = record.setdefault("tasks", {}), time.monotonic(), []
    (hour.own / "logs").mkdir(parents=True, exist_ok=True)
    for task in part.tasks:
        reason = task.lacks or why_missing(task.needs, hour.platform)
        has_passed = task.name in rows and rows[task.name][0] == "ok"
        if reason:
            rows[task.name] = ["not run", reason]
            print(f"not run: {task.name}: {reason}", flush=True)
        # data may have been removed since
        elif not has_passed or part.name == "data":
            rows[task.name] = ["failed", "there was no time left for it"]
            waiting.append(task)
    for task, code in run_tasks(hour, waiting):
        detail = _detail(hour, task, code)
        if part.name == "smoke":  # its times are no results
            detail = re.sub(r".*(loss \S+ -> [\d.]+).*", r"\1", detail)
        rows[task.name] = ["failed" if code else "ok", detail]
        print(f"{rows[task.name][0]}: {task.name}, {time.monotonic() - started:.0f} s: {detail}", flush=True)
    for log in (hour.scratch / "logs").glob("*.log"):
        note(Path(shutil.copy(log, hour.own / "logs")))
    outcomes = {rows[task.name][0] for task in part.tasks}
    for outcome in ("not run", "ok", "failed"):  # the last that occurs counts
        if outcome in outcomes:
            record["outcome"] = outcome
    record["seconds"] = round(time.monotonic() - started, 1)
    (hour.own / "parts.json").write_text(json.dumps(hour.record, indent=1), encoding="utf8")
    note(hour.own / "parts.json")
    return record["outcome"] != "failed"


def _detail(hour: Hour, task: Task, code: int) -> str:
    """Return the last telling line of a task's log: the end of a job, an error, or whatever comes last."""
    text = log_of(hour, task).read_text(encoding="utf8", errors="replace")
    lines = [line for line in text.splitlines() if line]
    telling = [line for line in lines if line.startswith(("=== ", "error"))]
    last = (telling or lines or ["no output"])[-1]
    detail = redact.text(last.removeprefix("=== "))[:300]
    return f"stopped at the deadline: {detail}" if code == 124 else detail


@refusing((ConfigError, HardwareError))
def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts that fit and for which there is time; end with report, summary and archive."""
    options = Parser(OPTIONS, prog="python -m benchmarks.gpu", description=first_line(__doc__)).parse_args(argv)
    if options.output:
        options.settings.append(f"OUTPUT_DIR={options.output}")
    with tempfile.TemporaryDirectory(prefix="tprimat-") as scratch:
        hour = _hour(options, Path(scratch))
        parts = hour_parts.parts(hour)
        if options.only:
            parts = [part for part in parts if any(text in part.name for text in options.only)]
        if hour.device is None and hour.platform != "cpu":
            print(
                f"note: this card is unknown: the seconds assume a peak of {ASSUMED_TFLOPS:g} TFLOP/s", file=sys.stderr
            )
        if options.dry_run:
            for part in parts:
                print(_planned(hour, part))
            return 0
        # a later call continues the same hour
        if not (hour.own / "facts").exists():
            write_facts(hour)
        if hour.platform != "cpu":  # the jobs find the answer in their environment, which saves ten seconds of each
            ready.without_engine(load(hour.platform, 1, arguments=["FRAMEWORK=mega"], environ={}), "mega")
        if not run_part(hour, hour_parts.prepare(hour)):
            return 1
        passed = [_run(hour, part) for part in parts]
        close(hour)
    return 0 if all(passed) else 1


def _hour(options: argparse.Namespace, scratch: Path) -> Hour:
    """Return the hour with its folder and the record of earlier calls; raise ConfigError."""
    for setting in options.settings:
        if setting.partition("=")[0] not in PLACES:
            raise ConfigError(f"gpu-hour: got {setting}, wanted {' or '.join(PLACES)}; all other settings are its own")
    output, data = folders(options.platform, arguments=options.settings)
    memory_gb, device = _card(options)
    deadline = time.monotonic() + 60 * options.minutes - CLOSING_SECONDS
    hour = Hour(output, data, options.platform, memory_gb, deadline, device, scratch)
    if options.dry_run:
        return hour
    require_writable(hour.own, "OUTPUT_DIR")
    footprint.mark(output, footprint.OUTPUT)
    earlier = hour.own / "parts.json"
    if earlier.exists():
        try:
            hour.record = json.loads(earlier.read_text(encoding="utf8"))
        except ValueError as error:
            raise ConfigError(f"{earlier}: {error}; remove it, and every part runs again") from error
    return hour


def _card(options: argparse.Namespace) -> tuple[float, Device | None]:
    """Return memory (GB) and datasheet of the card; raise ConfigError where the memory is unknown."""
    if options.device is not None:
        device = named(options.device)
        if device is None:
            raise ConfigError(f"--device: got {options.device!r}, wanted one of {', '.join(SHORT_NAMES)}")
        return device_capacity_gb(device, options.platform), device
    memory_gb, source = gpus.capacity_gb(load(options.platform, 1, arguments=["CPU_RANKS=1"], environ={}))
    if memory_gb is None:
        raise ConfigError(f"gpu hour: the memory of the GPU is unknown ({source}); name the card, e.g. --device H100")
    return memory_gb, named(gpus.device(options.platform) or "")


def _planned(hour: Hour, part: Part) -> str:
    expected = f"{part.seconds:.0f} s expected"
    if part.size is None:
        return f"{part.name}: {expected}"
    layers = f"{part.name}: {part.size.spec.num_layers} layers"
    memory = f"about {part.size.needs_gb:.1f} GB of {hour.memory_gb:.1f} GB"
    if not hour.fits(part.size):
        return f"does not fit: {layers}, {memory}"
    return f"{layers}, {memory}, {expected}"


def _run(hour: Hour, part: Part) -> bool:
    """Run a part unless it is done, does not fit or has no time; return False if it failed."""
    left = hour.deadline - time.monotonic()
    if hour.record.get(part.name, {}).get("outcome") == "ok":
        print(f"done already: {part.name}", flush=True)
    elif part.size is not None and not hour.fits(part.size):
        print(_planned(hour, part), flush=True)
    elif part.seconds > left:
        print(f"no time for: {part.name} ({part.seconds:.0f} s expected, {left:.0f} s left)", flush=True)
    else:
        passed = run_part(hour, part)
        if part.name == f"{VERDICT} hf run {RUNS}":  # a machine may be gone before the hour ends
            close(hour)
        return passed
    return True


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(run(main))
