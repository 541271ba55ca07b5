"""The settings file that makes METHOD=best use the best settings of a sweep, with the evidence in its comments."""

from __future__ import annotations

from pathlib import Path

from evaluate.report.tables import plain
from evaluate.sweeps.figures import Best, Measured, is_tunable
from utils.hardware.devices import find_device, short_name
from utils.own_files import content_of
from utils.results.sweep_file import Sweep
from utils.settings.best import LAYOUT, RECIPE_OF

FIRST_LINE = "# METHOD=best: settings that a sweep of this suite found"


def is_overlay(path: Path) -> bool:
    """Recognise a file that this module wrote."""
    return content_of(path).startswith(FIRST_LINE.encode())


def file_name(sweep: Sweep, best: Best) -> str:
    """Return the name of the file in the folder of sweeps."""
    work = "_".join((sweep.name, "best", *best.work.values()))
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in work) + ".env"


def place(sweep: Sweep, best: Best) -> str:
    """Return the name under which the suite reads the file in the checkout.

    A file for one device may change keys of LAYOUT only (utils/settings/best.py).
    """
    device = _device(best.chosen)
    keys = [key for key in sweep.axes if is_tunable(key)]
    if device is None or device in RECIPE_OF.get(sweep.platform, ()) or not set(keys) <= set(LAYOUT):
        return f"config.{sweep.platform}-best.env"
    return f"config.{sweep.platform}-best-{device.lower()}.env"


def text(sweep: Sweep, best: Best) -> str:
    """Return the content; `best` must have a chosen point."""
    if best.chosen is None:
        raise ValueError(best.why)
    result = best.chosen.results[0]
    versions = ", ".join(
        f"{name} {result['gpu_info'][key]}"
        for name, key in (("torch", "pytorch_version"), ("driver", "driver_version"))
        if result["gpu_info"][key]
    )
    fixed = [f"{key}={value}" for key, value in (sweep.fixed | best.work).items() if "DIR" not in key]
    comments = [
        FIRST_LINE,
        f"# Work: {' '.join(fixed)}",
        f"# Machine: {result['gpu_info']['device_name']}, {result['training_config']['num_gpus']} in use; {versions}",
        f"# Measured from {min(str(one['provenance']['started_utc']) for one in best.chosen.results)}",
        f"# Chosen: {best.why}",
        f"# Evidence: {sweep.name}.json beside this file, and the results of each point in the folder of its label:",
        *(f"#   {line(one)}" for one in _by_rate(best)),
        f"# Use: copy it to {place(sweep, best)} in the checkout, then METHOD=best; a recipe that is there is replaced",
    ]
    tuned = [f"{key}={best.chosen.point.settings[key]}" for key in sweep.axes if is_tunable(key)]
    return "\n".join([*map(plain, comments), *tuned]) + "\n"


def line(one: Measured) -> str:
    """Return one point in words, with its label."""
    if one.rate is None:
        return f"{one.point.name}: {one.why} ({one.point.label})"
    memory = "memory unknown" if one.memory_gb is None else f"{one.memory_gb:.3g} GB"
    runs = f"{len(one.rates)} run{'' if len(one.rates) == 1 else 's'}"
    return f"{one.point.name}: {one.rate:,.0f} tokens/s/GPU, {memory}, {runs} ({one.point.label})"


def _by_rate(best: Best) -> list[Measured]:
    return sorted(best.measured, key=lambda one: -(one.rate or 0.0))


def _device(chosen: Measured | None) -> str | None:
    if chosen is None:
        return None
    info = chosen.results[0]["gpu_info"]
    device = find_device(info["device_name"], info["total_memory_gb"], info["gpu_cores"])
    return None if device is None else short_name(device)
