"""The fit table: the memory that each job needs by the estimate, and the devices that have it.

    python -m train.preflight.fit_table --write docs/generated/fit.md

`shell/run_train.sh --dry-run` prints it for the jobs of a matrix, also on a machine without a GPU. The devices are rows
of utils/hardware/devices.py, with the memory of their datasheets; what a driver reports is up to 7 % more, because
boards are sold in GB and built in GiB. No number has been measured on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from train.job.job import Job
from train.preflight.fit import LAYERS
from train.settings_map.tables import rendered
from utils.arguments import Parser, report, run
from utils.errors import ConfigError, ForeignFileError
from utils.files import write_whole
from utils.hardware.devices import DEVICES, Device
from utils.memory.estimate import FRAMEWORKS, estimate
from utils.memory.fit import change_text, changes_that_fit, lower_bound_gb, usable_gb
from utils.models import NAMES
from utils.settings.config import load

NAME = "fit table"
"""Name of the table in the marker comments around it."""
SHOWN = {
    "nvd": ("NVIDIA H100 SXM 80GB", "NVIDIA H200 SXM 141GB", "NVIDIA B200 180GB"),
    "amd": ("AMD Instinct MI300X", "AMD Instinct MI325X", "AMD Instinct MI355X"),
}
"""Devices of a platform, by their names in the table of devices."""
DOCUMENTED = (
    (8, ()),
    (8, ("SL=8192",)),
    (1, ()),
    (1, ("OPTIMIZER_STATE=bf16",)),
    (1, ("OPTIMIZER_STATE=bf16", "SL=8192")),
)
"""Numbers of GPUs and settings of the rows in docs/generated/fit.md."""


def devices_of(*platforms: str) -> list[Device]:
    """Return the devices of the platforms in the order of SHOWN."""
    by_name = {device.name: device for device in DEVICES}
    return [by_name[name] for platform in platforms for name in SHOWN[platform]]


def row(job: Job, devices: Sequence[Device]) -> list[str]:
    """Return the GB that a job needs, and for each device `fits`, `may not fit`, or the settings that would fit."""
    found = estimate(job.config, job.framework, job.spec)
    return [f"{found.total_gb:.1f}", *(_verdict(job, device) for device in devices)]


def _verdict(job: Job, device: Device) -> str:
    capacity_gb = device.memory_gb
    config = replace(job.config, platform=next(name for name, shown in SHOWN.items() if device.name in shown))
    found = estimate(config, job.framework, job.spec)
    if found.total_gb <= usable_gb(capacity_gb, config.platform):
        return "fits"
    changes = changes_that_fit(config, job.framework, job.spec, capacity_gb)
    may = "may not fit" if lower_bound_gb(found) <= capacity_gb else "no"
    return f"{may}; {change_text(changes[0])}" if changes else may


def terminal_table(jobs: Iterable[Job]) -> str | None:
    """Return the table of the jobs of one platform for a terminal; None for a CPU and for jobs without a formula."""
    first = {(job.framework, job.model): job for job in jobs if job.framework in FRAMEWORKS}
    if not first or (platform := next(iter(first.values())).config.platform) not in SHOWN:
        return None
    devices = devices_of(platform)
    lines = [f"memory of one GPU by the estimate, GB; not measured; {LAYERS}:"]
    width = max(len(device.name) for device in devices)
    for (framework, model), job in first.items():
        needs, *verdicts = row(job, devices)
        lines.append(f"  {framework} {model} needs {needs}")
        for device, verdict in zip(devices, verdicts, strict=True):
            lines.append(f"    {device.name:{width}}  {device.memory_gb:>5g}  {verdict}")
    return "\n".join(lines)


def documented_table() -> str:
    """Return the table of docs/generated/fit.md: mega and hf, every model, without the environment's settings."""
    devices = devices_of("nvd", "amd")
    heads = [
        "job (PRECISION=bf16, MBS=1)",
        "GPUs",
        "needs, GB",
        *(f"{one.name} ({one.memory_gb:g})" for one in devices),
    ]
    lines = [heads, ["---"] * len(heads)]
    for gpus, settings in DOCUMENTED:
        for model in NAMES:
            for framework in FRAMEWORKS:
                arguments = ["DATASET=synth", f"FRAMEWORK={framework}", f"MODEL={model}", *settings]
                job = Job(load("nvd", gpus, arguments=arguments, environ={}), framework, model)
                what = " ".join([f"`{framework}`", model, *(f"`{one}`" for one in settings)])
                lines.append([what, str(gpus), *row(job, devices)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _has_markers(path: Path) -> bool:
    return f"<!-- begin: {NAME} -->".encode() in path.read_bytes()


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table of docs/generated/fit.md, or write it into a file between its marker comments."""
    parser = Parser(prog="python -m train.preflight.fit_table", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="file in which to replace the marked table")
    options = parser.parse_args(argv)
    if options.write is None:
        print(documented_table())
        return 0
    try:
        text = rendered(options.write.read_text(encoding="utf8"), {NAME: documented_table()})
        write_whole(options.write, text, is_ours=_has_markers)
    except (ConfigError, ForeignFileError, UnicodeDecodeError) as error:
        print(f"error: {options.write}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        report(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
