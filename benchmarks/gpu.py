"""Try and measure one GPU in parts of minutes: a smoke test, a verdict, speed, profiles, rates; then one archive.

The most valuable parts come first, and models get as many layers as fit into the card. The same command continues
where the last call stopped. On a GPU machine it runs in the image that ./shell/build.sh makes; RUNTIME selects the
engine (docs/containers.md).

Usage:   ./shell/run_gpu_hour.sh [--dry-run] [--minutes N] [--only TEXT] [--device NAME] [OUTPUT_DIR=...] [DATA_DIR=...]
         --dry-run starts no part: it prints the command of the container, if there is one, and the parts with their
         layers, memory and seconds; --minutes (9): no part is started that would need more; --only: parts whose name
         contains TEXT (may be repeated); --device H100 chooses the layers for that card instead of this machine's
Reads:   settings, as shell/run_train.sh; secrets.env; CONTAINER_ARGS, CONTAINER_SHM_SIZE
Writes:  .venv, DATA_DIR, OUTPUT_DIR/hour_*/train_*.json, OUTPUT_DIR/gpu_hour/, output.zip, probe_*.json, profiles/, logs/
Exits:   0 all parts that were started succeeded, 2 bad input, 1 otherwise
Example: ./shell/run_gpu_hour.sh --only smoke --only verdict OUTPUT_DIR=output-h100

Parts: facts of the machine (output of the vendor's tools); `smoke`, everything that is installed side by side at two
layers, kernels against float64 (benchmarks/numerics.py), its times are no results; `verdict`, Llama with mega and hf in
turn, three runs each; `speed` at SL 8192, in fp8, with titan and bridge where they are installed; a profile of one step
each; the probe (train.probe); runs 4 and 5 of the verdict. A part is started only if its expected time is left. A
finished part is skipped the next time, and so is what has passed of the smoke test. On a CPU all is of tiny size.

Each part has the largest number of layers with which every framework of its group fits into the card by the estimate
(docs/memory.md), so that the group is comparable. A part for which even the fewest layers are too many is named with
its estimate and not started; so is one whose framework is not installed. `--device H100` chooses the layers for another
card, such as that of the other side.

Results are in OUTPUT_DIR/hour_*/, profiles in OUTPUT_DIR/profiles/; OUTPUT_DIR/gpu_hour/ gets `facts/`, `logs/`,
`parts.json` (what ran, seconds, exit codes), `report/` (the comparison of the verdict), `summary.md` and
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
from utils.arguments import Parser, first_line, refusing, run
from utils.errors import ConfigError
from utils.hardware.devices import SHORT_NAMES, Device, named
from utils.housekeeping import footprint
from utils.memory.estimate import usable_gb
from utils.own_files import note
from utils.settings.config import PLATFORMS, ROOT, folders, load, require_writable

PLACES = ("OUTPUT_DIR", "DATA_DIR", "RUNTIME")
"""Settings that a caller may give."""
CLOSING_SECONDS = 20
"""Reserved at the end for the comparison, the summary and the archive."""
GRACE_SECONDS = 10
"""For a task that is stopped, to end its ranks and write its result."""

TOOLS = {
    "nvd": ("nvidia-smi", "nvidia-smi -q", "nvidia-smi topo -m", "nvidia-smi --help-query-gpu"),
    "amd": (
        *("amd-smi static --json", "amd-smi metric --json", "amd-smi process --json", "amd-smi version --json"),
        *("rocm-smi -a --json", "rocm-smi --showtopo"),
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
    """Keep the output of the vendor's tools, of pip and of torch under `facts/`; a tool that is missing is named."""
    folder = hour.own / "facts"
    folder.mkdir(parents=True, exist_ok=True)
    about_torch = "import torch.utils.collect_env as c; print(c.get_pretty_env_info())"
    commands = {"torch": [sys.executable, "-c", about_torch], "pip": [sys.executable, "-m", "pip", "freeze"]}
    commands |= {tool.replace(" ", "_").replace("-", "_"): tool.split() for tool in TOOLS[hour.platform]}
    for name, command in commands.items():
        if shutil.which(command[0]) is None:
            (folder / f"{name}.txt").write_text(f"{command[0]} is not installed\n", encoding="utf8")
            continue
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        text = ran.stdout + (f"\nexit code {ran.returncode}\n{ran.stderr}" if ran.returncode else "")
        (folder / f"{name}.txt").write_text(text, encoding="utf8")
    note(*(folder / f"{name}.txt" for name in commands))


def run_tasks(hour: Hour, tasks: Sequence[Task]) -> Iterator[tuple[Task, int, float]]:
    """Run tasks side by side, each with its output in a log; yield exit code and seconds of each when it ends.

    A task starts when cores and memory of the device have room for it. At the deadline those that run are stopped,
    which is exit code 124, and no other is started.
    """
    waiting, running = list(tasks), {}
    room = usable_gb(hour.memory_gb, hour.platform)
    while waiting or running:
        is_late = time.monotonic() > hour.deadline
        if is_late:
            waiting.clear()
        used = sum(task.needs_gb for task in running)
        has_core = len(running) < (os.cpu_count() or 1)
        if waiting and (not running or (has_core and used + waiting[0].needs_gb <= room)):
            task = waiting.pop(0)
            running[task] = _start(hour, task), time.monotonic()
        for task, (process, started) in list(running.items()):
            code = _stop(process) if is_late else process.poll()
            if code is not None:
                del running[task]
                yield task, code, time.monotonic() - started
        time.sleep(0.05)


def _log(hour: Hour, task: Task) -> Path:
    return hour.own / "logs" / f"{re.sub(r'[^A-Za-z0-9]', '_', task.name)}.log"


def _start(hour: Hour, task: Task) -> subprocess.Popen[bytes]:
    _log(hour, task).parent.mkdir(parents=True, exist_ok=True)
    with _log(hour, task).open("wb") as log:
        return subprocess.Popen(
            task.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=processes.tied()
        )


def _stop(process: subprocess.Popen[bytes]) -> int:
    """End a task, which ends its ranks and writes its result, and return the exit code of a timeout."""
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return 124


def run_part(hour: Hour, part: Part) -> bool:
    """Run the tasks of a part that have not passed yet and can run here; return whether none has failed."""
    rows = hour.record.setdefault(part.name, {}).setdefault("tasks", {})
    started, waiting = time.monotonic(), []
    for task in part.tasks:
        reason = task.lacks or why_missing(task.needs, hour.platform)
        if reason:
            rows[task.name] = {"outcome": "not run", "detail": reason}
            print(f"not run: {task.name}: {reason}", flush=True)
        elif rows.get(task.name, {}).get("outcome") != "ok":
            rows[task.name] = {"outcome": "failed", "detail": "there was no time for it"}
            waiting.append(task)
    for task, code, seconds in run_tasks(hour, waiting):
        outcome, log = "failed" if code else "ok", _log(hour, task)
        detail = _detail(log, code)
        rows[task.name] = {"outcome": outcome, "detail": detail, "exit_code": code, "log": log.name}
        print(f"{outcome}: {task.name}, {seconds:.0f} s: {detail}", flush=True)
        note(log)
    if part.name == "smoke":
        _keep_smoke(hour, rows)
    outcomes = {rows[task.name]["outcome"] for task in part.tasks}
    hour.record[part.name]["outcome"] = next(one for one in ("failed", "ok", "not run") if one in outcomes)
    hour.record[part.name]["seconds"] = round(time.monotonic() - started, 1)
    (hour.own / "parts.json").write_text(json.dumps(hour.record, indent=1), encoding="utf8")
    note(hour.own / "parts.json")
    return "failed" not in outcomes


def _detail(log: Path, code: int) -> str:
    """Return what the last telling line of a log says: the end of a job, an error, or whatever comes last."""
    lines = [line for line in log.read_text(encoding="utf8", errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("=== ", "error"))]
    last = (telling or lines or ["no output"])[-1].removeprefix("=== ")[:300]
    return f"stopped, its time was over: {last}" if code == 124 else last


def _keep_smoke(hour: Hour, rows: dict[str, dict[str, Any]]) -> None:
    """Keep of the smoke test its checks, its losses and the logs of its ranks; its times are no results."""
    numerics = hour.own / "logs" / "numerics.log"
    text = numerics.read_text(encoding="utf8").strip().rpartition("\n")[2] if numerics.exists() else ""
    for check in json.loads(text) if text.startswith("[") else ():
        error = "not computed" if check["error"] is None else f"error {check['error']:.1e} of {check['limit']:.1e}"
        outcome = "ok" if check["is_ok"] else "failed"
        rows[f"numerics: {check['name']}"] = {"outcome": outcome, "detail": f"{error} {check['note']}"}
        rows["numerics"]["detail"] = "each check has a row"
    for row in rows.values():
        if loss := re.search(r"loss \S+ -> [\d.]+", row["detail"]):
            row["detail"] = loss[0]
    for log in (hour.scratch / "logs").glob("*.log"):
        note(Path(shutil.copy(log, hour.own / "logs")))


@refusing((ConfigError,))
def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts that fit and for which there is time; end with report, summary and archive."""
    options = Parser(OPTIONS, prog="python -m benchmarks.gpu", description=first_line(__doc__)).parse_args(argv)
    if options.output:
        options.settings.append(f"OUTPUT_DIR={options.output}")
    with tempfile.TemporaryDirectory(prefix="tprimat-") as scratch:
        hour = _hour(options, Path(scratch))
        parts = hour_parts.parts(hour)
        chosen = [part for part in parts if not options.only or any(text in part.name for text in options.only)]
        if hour.device is None and hour.platform != "cpu":
            print(
                f"note: this card is unknown: the seconds assume a peak of {ASSUMED_TFLOPS:g} TFLOP/s", file=sys.stderr
            )
        if options.dry_run:
            print("\n".join(_planned(hour, part) for part in chosen))
            return 0
        if not (hour.own / "facts").exists():
            write_facts(hour)
        if not run_part(hour, hour_parts.prepare(hour)):
            return 1
        is_good = all([_run(hour, part) for part in chosen])
        close(hour)
    return 0 if is_good else 1


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
    known = hour.own / "parts.json"
    try:
        hour.record = json.loads(known.read_text(encoding="utf8")) if known.exists() else {}
    except ValueError as error:
        raise ConfigError(f"{known}: {error}; remove it, and every part runs again") from error
    return hour


def _card(options: argparse.Namespace) -> tuple[float, Device | None]:
    """Return memory (GB) and datasheet of the card; raise ConfigError where the memory is unknown."""
    if options.device is not None:
        device = named(options.device)
        if device is None:
            raise ConfigError(f"--device: got {options.device!r}, wanted one of {', '.join(SHORT_NAMES)}")
        return device.memory_gb, device
    memory_gb, source = gpus.capacity_gb(load(options.platform, 1, arguments=["CPU_RANKS=1"], environ={}))
    if memory_gb is None:
        raise ConfigError(f"gpu hour: the memory of the GPU is unknown ({source}); name the card, e.g. --device H100")
    return memory_gb, named(gpus.device(options.platform) or "")


def _planned(hour: Hour, part: Part) -> str:
    expected = f"{part.seconds:.0f} s expected"
    if part.size is None:
        return f"{part.name}: {expected}"
    of_card = f"{part.name}: {part.size.layers}, about {part.size.needs_gb:.1f} GB of {hour.memory_gb:.1f} GB"
    return f"{of_card}, {expected}" if hour.fits(part.size) else f"does not fit: {of_card}"


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
