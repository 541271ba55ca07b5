"""The figures of a sweep: for each point, speed and memory of its counted results, or the reason for none; the best
settings of each work, and the settings file that makes METHOD=best use them, with the evidence in its comments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluate.checks.entries import load_results
from evaluate.checks.recorded import grouped, machine_of
from evaluate.metrics.metrics import device_of
from evaluate.metrics.steady import tokens_per_second_per_gpu
from evaluate.report.blocks import Table
from evaluate.report.groups import known_values, mean_of
from evaluate.report.renderers import UNBROKEN, terminal
from evaluate.report.tables import plain
from utils.hardware.devices import short_name
from utils.own_files import content_of
from utils.results import sweep_file
from utils.results.fields import LIST, OBJECT, Wanted, checked, json_in
from utils.results.schema import Result
from utils.results.store import ResultError
from utils.results.sweep_file import Point, Sweep
from utils.settings.keys import KEYS
from utils.settings.layers import RECIPE_OF

BAND = 0.03
"""Points less than this share slower than the fastest one count as equally fast, as in a verdict."""
TUNABLE = ("layout", "means")
"""Parts of a certificate whose settings may be tuned: they change how the work is done, not the work."""
LAYOUT = ("MBS", "TP", "PP", "CP")
"""Keys of a settings file for one device (utils/settings/layers.py)."""
FIRST_LINE = "# METHOD=best: settings that a sweep of this suite found"
_IDENTITY = {"FRAMEWORK": "framework", "MODEL": "model", "MODEL_SIZE": "model_size"}


_TEXT = Wanted(lambda value: isinstance(value, str), "a text")
_KEYS = {
    "sweep_version": Wanted(lambda value: value == sweep_file.VERSION, str(sweep_file.VERSION)),
    "name": _TEXT,
    "platform": _TEXT,
    "axes": OBJECT,
    "fixed": OBJECT,
    "points": LIST,
}
_POINT = {
    "label": Wanted(lambda value: isinstance(value, str) and "/" not in value, "the name of a folder"),
    "state": Wanted(lambda value: value in sweep_file.STATES, ", ".join(sweep_file.STATES)),
    "reason": Wanted(lambda value: value is None or isinstance(value, str), "a text or null"),
}


class SweepError(ValueError):
    """A file is not that of a sweep; the message states the file, what is wrong and what to do."""


@dataclass(frozen=True)
class Measured:
    """One point with the figures of its counted results."""

    point: Point
    why: str = ""
    """Reason why there is no rate; empty if there is one."""
    results: tuple[Result, ...] = ()
    rates: tuple[float, ...] = ()
    """Tokens per second and GPU (rank on a CPU) over the steady steps of each counted run."""
    memory_gb: float | None = None
    """Largest peak of allocated memory of any run, 1e9 bytes; None if no run measured it."""

    @property
    def rate(self) -> float | None:
        """The geometric mean of the runs, as in a verdict; None without a counted run."""
        return mean_of(self.rates) if self.rates else None


@dataclass(frozen=True)
class Best:
    """The points of one work, and the one whose settings are the best."""

    work: dict[str, str]
    """Values of the axes that are not tuned; the same for all these points."""
    measured: tuple[Measured, ...]
    chosen: Measured | None
    why: str
    """Reason of the choice, or of none."""


def read(path: Path) -> Sweep:
    """Return the sweep in a file; raise SweepError for anything else."""
    advice = f"; name the .json of a sweep in OUTPUT_DIR/{sweep_file.FOLDER}"
    content = checked(json_in(path, SweepError, advice), str(path), SweepError, _KEYS, advice)
    axes = list(content["axes"])
    of_axes = Wanted(lambda value: isinstance(value, dict) and list(value) == axes, "a value of each axis")
    points = []
    for place, entry in enumerate(content["points"]):
        where = f"{path}: points[{place}]"
        points.append(Point(**checked(entry, where, SweepError, _POINT | {"settings": of_axes}, advice)))
    return Sweep(content["name"], content["platform"], content["axes"], content["fixed"], points)


def measure(point: Point, folder: Path) -> Measured:
    """Return the figures of a point from the results in its folder; results that break a rule do not count."""
    if point.state in (sweep_file.DOES_NOT_FIT, sweep_file.IMPOSSIBLE):
        return Measured(point, f"{point.state}: {point.reason}")
    if not folder.is_dir():
        return Measured(point, "not run yet")
    try:
        loaded = load_results([folder])
    except ResultError:
        return Measured(point, "no result in the folder of its label")
    counted = []
    reasons: Counter[str] = Counter()
    for entry in loaded.entries:
        reason = entry.why_not_counted or _differences(entry.result, point)
        reasons[reason] += 1
        if not reason:
            counted.append(entry.result)
    # a run that left no readable result was tried all the same
    for _, why in loaded.unreadable:
        reasons[f"it cannot be read: {why}"] += 1
    rates = known_values(map(tokens_per_second_per_gpu, counted))
    peaks = known_values(result["memory_metrics"]["peak_memory_allocated_gb"] for result in counted)
    why = ""
    if not rates:
        why = "; ".join(f"{reason} ({count} runs)" if count > 1 else reason for reason, count in reasons.items())
    return Measured(point, why, tuple(counted), rates, max(peaks, default=None))


def best_of(sweep: Sweep, measured: Sequence[Measured]) -> list[Best]:
    """Return the best settings for each work: of the points within BAND of the fastest, the one with least memory."""
    fixed = [key for key in sweep.axes if not _is_tunable(key)]
    bests = []
    for work, points in grouped(measured, lambda each: tuple(each.point.settings[key] for key in fixed)).items():
        chosen, why = _best(points)
        bests.append(Best(dict(zip(fixed, work, strict=True)), tuple(points), chosen, why))
    return bests


def table(measured: Sequence[Measured]) -> Table:
    """Return the figures of points."""
    header = ("point", "tokens/s/GPU", "spread", "peak GB", "runs", "label", "why none")
    return Table("Points", header, list(map(_row, measured)), 1, (5, 6))


def is_overlay(path: Path) -> bool:
    """Recognise a settings file that this module wrote."""
    return content_of(path).startswith(FIRST_LINE.encode())


def file_name(sweep: Sweep, best: Best) -> str:
    """Return the name of the settings file in the folder of sweeps."""
    work = "_".join((sweep.name, "best", *best.work.values()))
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in work) + ".env"


def place(sweep: Sweep, chosen: Measured) -> str:
    """Return the name under which the suite reads the settings file in the checkout.

    A file for one device may change keys of LAYOUT only.
    """
    device = device_of(chosen.results[0])
    name = short_name(device) if device else None
    is_of_layout = set(filter(_is_tunable, sweep.axes)) <= set(LAYOUT)
    # the file of the platform is that of its usual device
    if name is None or name in RECIPE_OF.get(sweep.platform, ()) or not is_of_layout:
        return f"config.{sweep.platform}-best.env"
    return f"config.{sweep.platform}-best-{name.lower()}.env"


def settings_file(sweep: Sweep, best: Best, chosen: Measured) -> str:
    """Return the content of the settings file of a chosen point."""
    result = chosen.results[0]
    info = result["gpu_info"]
    started = min(str(each["provenance"]["started_utc"]) for each in chosen.results)
    versions = []
    for name, version in (("torch", info["pytorch_version"]), ("driver", info["driver_version"])):
        if version:
            versions.append(f"{name} {version}")
    # the evidence stands in the file, because results are deleted earlier than settings
    by_rate = sorted(best.measured, key=lambda point: -(point.rate or 0.0))
    comments = [
        FIRST_LINE,
        f"# Work: {in_words(sweep.fixed | best.work)}",
        f"# Machine: {info['device_name']}, {result['training_config']['num_gpus']} in use; {', '.join(versions)}",
        f"# Measured from {started}",
        f"# Chosen: {best.why}",
        f"# Evidence: {sweep.name}.json beside this file, and the results of each point in the folder of its label:",
        *(f"#   {line}" for line in terminal([table(by_rate)], UNBROKEN).splitlines()),
        f"# Use: copy it to {place(sweep, chosen)} in the checkout, then METHOD=best; a recipe that is there is "
        "replaced",
    ]
    tuned = [f"{key}={chosen.point.settings[key]}" for key in filter(_is_tunable, sweep.axes)]
    return "\n".join([*map(plain, comments), *tuned]) + "\n"


def in_words(settings: dict[str, str]) -> str:
    """Return settings as `KEY=VALUE KEY=VALUE`, without folders."""
    return " ".join(f"{key}={value}" for key, value in settings.items() if "DIR" not in key)


def _is_tunable(key: str) -> bool:
    """Return whether a setting changes how the work is done; others change the work or are part of its name."""
    place = KEYS[key].in_results
    return place is not None and place.part in TUNABLE


def _differences(result: Result, point: Point) -> str:
    """Return what in a result contradicts the settings of its point; empty if nothing does."""
    differences = []
    if result["label"] != point.label:
        differences.append(f"label {result['label']!r}")
    for key, text in point.settings.items():
        place = KEYS[key].in_results
        if key in _IDENTITY:
            value, wanted = result[_IDENTITY[key]], text
        elif place is not None:
            value, wanted = result["training_config"].get(place.key), KEYS[key].parse(text)
        else:
            continue
        # the launcher replaces `auto`
        if wanted not in (None, "auto", value):
            differences.append(f"{key} is {value!r}")
    if not differences:
        return ""
    return f"the result is not of this point: {', '.join(differences)}"


def _best(measured: Sequence[Measured]) -> tuple[Measured | None, str]:
    timed = []
    machines = set()
    for point in measured:
        if point.rate is not None:
            timed.append((point.rate, point))
            for result in point.results:
                machines.add(f"{result['gpu_info']['device_name']} on {machine_of(result)}")
    if not timed:
        return None, "no point has a counted result"
    if len(machines) > 1:
        return None, f"the results are of several machines: {'; '.join(sorted(machines))}"
    fastest = max(rate for rate, _ in timed)
    near = [(rate, point) for rate, point in timed if rate >= (1 - BAND) * fastest]
    # of equally fast points the one with room to spare; a point whose memory is unknown comes last
    _, chosen = min(near, key=lambda pair: (pair[1].memory_gb is None, pair[1].memory_gb, -pair[0]))
    why = "the fastest"
    if len(near) > 1:
        why = f"least memory of {len(near)} points within {BAND:.0%} of the fastest"
    if len(chosen.rates) == 1:
        return chosen, f"{why}; one run: run it and its neighbours again with RUNS=auto"
    return chosen, f"{why}; {len(chosen.rates)} runs"


def _row(measured: Measured) -> tuple[str, ...]:
    rate = spread = memory = ""
    if measured.rate is not None:
        rate = f"{measured.rate:,.0f}"
    if measured.rate and len(measured.rates) > 1:
        spread = f"{(max(measured.rates) - min(measured.rates)) / measured.rate:.1%}"
    if measured.memory_gb is not None:
        memory = f"{measured.memory_gb:.3g}"
    point, runs = measured.point, str(len(measured.rates))
    return point.name, rate, spread, memory, runs, point.label, measured.why
